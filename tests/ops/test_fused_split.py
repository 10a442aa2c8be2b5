"""Fused ops on a mesh: what splitting them costs, and equality with one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh, P
from mithril.types import DType, TensorType

from tests.graphs import Ran
from tests.partition.test_golden import all_reduce, checked

F32 = DType.float32
ROWS, N = 6, 32
ROW = 4 * ROWS
"""Bytes of one number a row."""
TENSOR = Mesh(tensor=4)


def graph_of(function: Callable[..., object], *shapes: tuple[int, ...]) -> tuple[Graph, list[str]]:
    names = [f"x{i}" for i in range(len(shapes))]
    builder = Builder()
    inputs = [builder.input(TensorType(s, F32), n) for s, n in zip(shapes, names, strict=True)]
    return builder.build({"y": ops.tanh(function(*inputs))}), names


def split(function: Callable[..., object], *shapes: tuple[int, ...]) -> Ran:
    """Run a function of operands whose last dimension is split, with all gradients."""
    graph, names = graph_of(function, *shapes)
    specs = {n: P(*[None] * (len(s) - 1), "tensor") for n, s in zip(names, shapes, strict=True)}
    return checked(graph, TENSOR, specs, tuple(names), compute=names)


NUMBERS_OF_A_ROW = {
    "softmax": (ops.softmax, 1, 2, 1),
    "log_softmax": (ops.log_softmax, 1, 2, 1),
    "layer_norm": (ops.layer_norm, 3, 2, 2),
    "rms_norm": (ops.rms_norm, 2, 1, 1),
}
"""Function, operands, and how many numbers per row are reduced forward and backward."""


@pytest.mark.parametrize("n", [N, 30], ids=["even", "uneven"])
@pytest.mark.parametrize("name", NUMBERS_OF_A_ROW)
def test_a_split_row_costs_some_numbers_per_row(name: str, n: int) -> None:
    function, operands, forward, backward = NUMBERS_OF_A_ROW[name]
    ran = split(function, (ROWS, n), *[(n,)] * (operands - 1))
    assert {row[0] for phase in ("forward", "backward") for row in ran.rows(phase)} == {
        "all_reduce"
    }
    for phase, count in (("forward", forward), ("backward", backward)):
        assert sum(size for _, _, size in ran.rows(phase)) == count * ROW, (name, phase)


def test_rows_of_rms_norm_are_a_batch() -> None:
    graph, names = graph_of(ops.rms_norm, (ROWS * 2, N), (N,))
    ran = checked(graph, Mesh(data=4), {"x0": P("data")}, tuple(names))
    assert ran.rows("forward") == []
    assert ran.rows("backward") == [all_reduce("data", 4 * N)]
    assert {"rms_norm", "rms_norm_gradient"} <= ops_of(ran)


@pytest.mark.parametrize("s", [8, 6, 5])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_rope_needs_no_exchange_along_the_sequence(interleaved: bool, fused: bool, s: int) -> None:
    graph, names = graph_of(lambda x: ops.rope(x, offset=2, interleaved=interleaved), (2, s, 3, 4))
    kernels = frozenset(KERNELS) - (set() if fused else {"rope"})
    specs = {"x0": P(None, "tensor")}
    ran = checked(graph, TENSOR, specs, tuple(names), compute=names, kernels=kernels)
    assert ran.rows("forward") == ran.rows("backward") == []
    assert ("rope" in ops_of(ran)) == fused


def test_positions_are_split_with_the_sequence() -> None:
    def turned(x: Tensor) -> Tensor:
        steps = ops.iota(x, (6,))
        return ops.rope(x, steps * steps) + ops.rope(x, ops.iota(x, (2, 6)))

    graph, names = graph_of(turned, (2, 6, 1, 4))
    specs = {"x0": P(None, "tensor")}
    ran = checked(graph, Mesh(tensor=3), specs, tuple(names), compute=names)
    assert ran.rows("forward") == ran.rows("backward") == []


def test_silu_is_split_anywhere() -> None:
    ran = split(ops.silu, (ROWS, N))
    assert ran.rows("forward") == ran.rows("backward") == []


def test_targets_in_the_padding_of_uneven_parts_are_classes() -> None:
    """Row number 5 is padding, and 5 would be no class."""
    graph, names = graph_of(lambda x: ops.cross_entropy(x, ops.iota(x, (5,))), (5, 5))
    ran = checked(graph, TENSOR, {"x0": P("tensor")}, tuple(names), compute=["x0"])
    assert {"cross_entropy", "cross_entropy_gradient"} <= ops_of(ran)


# ------------------------------------------------------------------ attention

B, S, H, G, E, D = 2, 4, 8, 2, 4, 32


def grouped(masked: bool) -> Graph:
    """Attention of 8 query heads over 2 key and value heads, projections included."""
    builder = Builder()

    def parameter(name: str, *shape: int) -> Tensor:
        return builder.input(TensorType(shape, F32), name)

    x = parameter("x", B, S, D)
    weights = {"q": parameter("q", H * E, D), "o": parameter("o", D, H * E)}
    weights |= {name: parameter(name, G * E, D) for name in ("k", "v")}
    mask = parameter("mask", 1, H, S, S) if masked else None

    def project(name: str, value: Tensor, heads: int) -> Tensor:
        with builder.at(scope=name):
            return ops.einsum("bsi,oi->bso", value, weights[name]).reshape(B, S, heads, E)

    q, k, v = project("q", x, H), project("k", x, G), project("v", x, G)
    mixed = ops.attention(ops.rope(q), ops.rope(k), v, mask=mask, causal=True)
    with builder.at(scope="o"):
        y = ops.einsum("bso,io->bsi", mixed.reshape(B, S, H * E), weights["o"])
    return builder.build({"y": y})


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "expanded", [set(), {"attention", "attention_gradient"}], ids=["fused", "expanded"]
)
def test_groups_of_heads_are_split_over_an_axis(masked: bool, expanded: set[str]) -> None:
    specs = {**dict.fromkeys(("q", "k", "v"), P("tensor")), "o": P(None, "tensor")}
    if masked:
        specs["mask"] = P(None, "tensor")
    wanted = ("q", "k", "v", "o", "x")
    kernels = frozenset(KERNELS) - expanded
    graph, mesh = grouped(masked), Mesh(tensor=2)
    ran = checked(graph, mesh, specs, wanted, compute=list(specs), kernels=kernels)
    assert ran.rows("forward") == [all_reduce("tensor", 4 * B * S * D)]
    assert ran.rows("backward") == [all_reduce("tensor", 4 * B * S * D)]
    assert ("attention" in ops_of(ran)) == (not expanded)


def test_heads_of_a_group_are_split_too() -> None:
    """2 groups over 4 devices: pairs of devices share a group, and add up dk and dv."""
    specs = {**dict.fromkeys(("q", "k", "v"), P("tensor")), "o": P(None, "tensor")}
    wanted = ("q", "k", "v", "o", "x")
    ran = checked(grouped(False), TENSOR, specs, wanted, compute=list(specs))
    assert "attention" in ops_of(ran)
    head = 4 * B * S * E
    assert ran.rows("forward") == [
        ("all_gather", ("tensor.1",), 2 * head),  # keys and values travel together
        all_reduce("tensor", 4 * B * S * D),
    ]
    assert ran.rows("backward") == [
        ("reduce_scatter", ("tensor.1",), 2 * head),
        all_reduce("tensor", 4 * B * S * D),
    ]


def ops_of(ran: Ran) -> set[str]:
    return {node.op.name for node in ran.plan.stages[0].program.graph.nodes}
