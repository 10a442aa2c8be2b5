"""Every op that is registered is complete and has a case."""

from __future__ import annotations

import inspect

import mithril.ops  # noqa: F401 - fills the registry
import pytest
from mithril.engine.kernels import KERNELS
from mithril.ir import Op, registry

from tests.ops.cases import CASES, is_first_of_its_op
from tests.profiles import quick

OPS = sorted(registry().items())
# These appear only in local programs: never differentiated, never partitioned.
LOCAL = {"axis_index", "keep_first", "take_shard", "wait"}
# A graph, or a home of the user's choice: see tests/transform/test_repeat.py and tests/functional.
CONTROL = {"checkpoint", "constrain", "repeat"}
# Attention that says what becomes of a split sequence: see tests/partition/test_context.py.
CONTEXT = {f"{how}_attention{part}" for how in ("ring", "ulysses") for part in ("", "_gradient")}
APART = LOCAL | CONTROL | CONTEXT
GLOBAL_OPS = [(n, c) for n, c in OPS if not c.is_collective and n not in APART]


def test_every_op_is_complete() -> None:
    assert len(GLOBAL_OPS) > 100
    for name, op in GLOBAL_OPS:
        for method in ("infer", "gradient", "rule"):
            assert getattr(op, method) is not getattr(Op, method), f"{name} has no {method}"
        assert name in KERNELS


def test_every_op_has_a_case() -> None:
    assert {name for name, _ in GLOBAL_OPS} <= {case.op.name for case in CASES}


def test_every_op_is_documented_by_a_sentence() -> None:
    for name, op in OPS:
        assert "__doc__" in vars(op), name
        first = inspect.cleandoc(op.__doc__ or "").split("\n\n", maxsplit=1)[0]
        assert first.endswith("."), first
        assert not first.startswith(op.__name__ + "("), f"{name}: dataclass wrote the docstring"


@quick(is_first_of_its_op)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cost_counts_at_least_the_results(case) -> None:
    from tests.ops.evaluate import type_of

    types = [type_of(array) for array in case.arrays]
    outputs = case.op.infer(types)
    cost = case.op.cost(types, outputs)
    assert isinstance(cost.flops, int)
    assert isinstance(cost.bytes, int)
    assert cost.flops >= 0
    assert cost.bytes >= sum(t.nbytes for t in outputs)


@quick(is_first_of_its_op)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attributes_print_and_compare(case) -> None:
    assert str(case.op).startswith(case.op.name)
    assert case.op == type(case.op)(**case.op.attributes)
    assert len({case.op, type(case.op)(**case.op.attributes)}) == 1
