"""The pass that mixes precisions: which ops it takes for linear algebra, and where casts end up."""

from __future__ import annotations

import pytest
from mithril import ops
from mithril.ir import Builder, Graph, Tensor
from mithril.ir.verify import verify
from mithril.ops import Cast, Einsum
from mithril.options import Precision
from mithril.testing.cases import CASES, Case, is_first_of_its_op
from mithril.transform import eliminate_dead, mix
from mithril.types import DType, TensorType, as_dtype

from tests.profiles import quick

F32, BF16 = DType.float32, DType.bfloat16
LINEAR_ALGEBRA = {
    "attention", "convolution", "einsum", "grouped_matmul", "grouped_outer", "lstm",
}  # fmt: skip


def mixed(graph: Graph, **options: str) -> Graph:
    return verify(eliminate_dead(verify(mix(graph, Precision(**options), {"w"}))))


def casts(graph: Graph) -> list[tuple[str, str]]:
    return [
        (str(node.inputs[0].type), str(node.outputs[0].type))
        for node in graph.nodes
        if isinstance(node.op, Cast)
    ]


def traced(dtype: DType, kept: DType) -> tuple[Builder, Tensor, Tensor]:
    """Return a builder with an input x, and a parameter w as its layer sees it."""
    builder = Builder()
    x = builder.input(TensorType((2, 4), dtype), "x")
    w = builder.input(TensorType((3, 4), kept), "w")
    return builder, x, ops.cast(w, dtype)


def test_a_weight_is_moved_before_it_is_cast() -> None:
    builder, x, w = traced(BF16, F32)
    graph = builder.build({"y": x @ w.T})
    found = mixed(graph, activation_dtype="bfloat16", compute_dtype="float32")
    assert casts(found) == [
        ("bfloat16[2, 4]", "float32[2, 4]"),
        ("float32[2, 3]", "bfloat16[2, 3]"),
    ]
    (product,) = [node for node in found.nodes if isinstance(node.op, Einsum)]
    assert [str(v.type) for v in product.inputs] == ["float32[2, 4]", "float32[4, 3]"]


def test_a_table_is_looked_up_in_before_it_is_cast() -> None:
    builder, _, w = traced(BF16, F32)
    ids = builder.input(TensorType((5,), DType.int32), "ids")
    found = mixed(builder.build({"y": ops.take(w, ids)}), activation_dtype="bfloat16")
    assert casts(found) == [("float32[5, 4]", "bfloat16[5, 4]")]


def test_a_parameter_is_cast_once_where_it_meets_activations() -> None:
    builder, x, w = traced(BF16, F32)
    found = mixed(builder.build({"y": x + w[:2], "z": x * w[:2]}), dtype="bfloat16")
    assert casts(found) == [("float32[2, 4]", "bfloat16[2, 4]")] * 2  # one for each slice
    builder, x, w = traced(BF16, F32)
    part = w[:2]
    found = mixed(builder.build({"y": x + part, "z": x * part}), dtype="bfloat16")
    assert casts(found) == [("float32[2, 4]", "bfloat16[2, 4]")]


def test_a_named_value_has_the_activation_dtype() -> None:
    builder, x, w = traced(BF16, F32)
    builder.assign_name(part := w[:2], "part")
    found = mixed(
        builder.build({"y": x @ part.T}), activation_dtype="bfloat16", compute_dtype="float32"
    )
    (named,) = [value for value in found.values() if value.name == "part"]
    assert named.type.dtype == BF16


def test_a_scalar_output_leaves_as_it_was_accumulated() -> None:
    builder, x, _ = traced(BF16, BF16)
    graph = builder.build({"loss": ops.mean(x), "rows": ops.mean(x, 0)})
    found = mixed(graph, dtype="bfloat16")
    assert {name: str(v.type) for name, v in found.outputs.items()} == {
        "loss": "float32[]",
        "rows": "bfloat16[4]",
    }


def test_a_uniform_policy_changes_nothing() -> None:
    builder, x, w = traced(F32, F32)
    graph = builder.build({"y": ops.tanh(x @ w.T)})
    assert str(mixed(graph, dtype="float32")) == str(graph)


FORWARD = [case for case in CASES if not case.op.name.endswith("_gradient")]


@quick(is_first_of_its_op)
@pytest.mark.parametrize("case", FORWARD, ids=str)
def test_linear_algebra_is_what_contracts_two_float_operands(case: Case) -> None:
    types = [TensorType(array.shape, as_dtype(array.dtype)) for array in case.arrays]
    is_outer = isinstance(case.op, Einsum) and not contracted(case.op)
    expected = case.op.name in LINEAR_ALGEBRA and not is_outer
    assert case.op.contracts(types, case.op.infer(types)) == expected


def contracted(op: Einsum) -> set[str]:
    left, right, result = op.terms
    return {*left} & {*right} - {*result}


def test_every_kind_of_linear_algebra_has_a_case() -> None:
    assert {case.op.name for case in FORWARD} >= LINEAR_ALGEBRA
