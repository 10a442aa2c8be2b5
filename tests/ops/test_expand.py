"""Expansions: the smaller ops compute what the fused op computes, and so do their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from mithril.engine.kernels import KERNELS
from mithril.ir import Builder, Graph
from mithril.testing.cases import CASES, Case, is_first_of_its_op, with_floats
from mithril.testing.evaluate import (
    assert_close,
    coarsest,
    evaluate,
    gradients,
    graph_of,
    inputs_of,
    type_of,
)
from mithril.transform import expand

from tests.ops.test_gradients import arrays_for, is_last
from tests.profiles import quick


def has_expansion(case: Case) -> bool:
    builder = Builder()
    inputs = [builder.input(type_of(array), "") for array in case.arrays]
    return case.op.expand(inputs) is not None


FUSED = [case for case in CASES if has_expansion(case)]
FUSED_NAMES = {case.op.name for case in FUSED}


def both(case: Case, dtype: str = "float64") -> tuple[Graph, Graph, dict[str, np.ndarray]]:
    """Return the graph of a case's op, its expansion, and values for both."""
    arrays = arrays_for(case, dtype)
    graph = graph_of(case.op, [type_of(array) for array in arrays])
    return graph, expand(graph, set(KERNELS) - {case.op.name}), inputs_of(arrays)


def test_the_fused_ops_are_these() -> None:
    assert {
        "attention", "attention_gradient", "cross_entropy", "cross_entropy_gradient", "gelu",
        "gelu_gradient", "layer_norm", "layer_norm_gradient", "log_softmax", "rms_norm",
        "rms_norm_gradient", "rope", "silu", "silu_gradient", "softmax", "softmax_gradient",
    } <= FUSED_NAMES  # fmt: skip


@quick(lambda case, dtype: dtype == "float64" or is_first_of_its_op(case))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_expansion_computes_the_same(case: Case, dtype: str) -> None:
    graph, expanded, values = both(case, dtype)
    assert case.op.name not in {node.op.name for node in expanded.nodes}
    found, expected = evaluate(expanded, values), evaluate(graph, values)
    for name, result in expected.items():
        assert_close(found[name], result, coarsest(*values.values(), result))


@pytest.mark.parametrize("case", [c for c in FUSED if with_floats(c) and not is_last(c)], ids=str)
def test_expansion_has_the_same_gradients(case: Case) -> None:
    graph, expanded, values = both(case)
    found, expected = gradients(expanded, values), gradients(graph, values)
    for name, gradient in expected.items():
        assert_close(found[name], gradient)


def test_expansion_goes_on_until_only_kernels_are_left() -> None:
    case = next(case for case in FUSED if case.op.name == "attention")
    primitive = set(KERNELS) - FUSED_NAMES
    graph = graph_of(case.op, [type_of(array) for array in case.arrays])
    expanded = expand(graph, primitive)
    assert {node.op.name for node in expanded.nodes} <= primitive
