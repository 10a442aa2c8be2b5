"""Liveness against an oracle: local graphs run with NumPy, the arrays that are referenced counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from mithril import ops
from mithril.cost.liveness import Liveness
from mithril.cost.strides import lay_out
from mithril.ir import Builder, Graph, Node, Repeat, Start, Tensor, Value, Wait
from mithril.ir.operand import apply
from mithril.ops.collective import AllGather, ReduceScatter
from mithril.ops.control import repeat
from mithril.plan import Execution
from mithril.types import DType, TensorType

from tests.profiles import scaled

ROWS, COLUMNS = 4, 6
FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": lambda op, x, y: np.add(x, y, order="C"),
    "multiply": lambda op, x, y: np.multiply(x, y, order="C"),
    "exp": lambda op, x: np.exp(x, order="C"),
    "reshape": lambda op, x: np.reshape(x, op.shape),
    "transpose": lambda op, x: np.transpose(x, op.order),
    "broadcast": lambda op, x: np.broadcast_to(x, op.shape),
    "slice": lambda op, x: x[tuple(map(slice, op.start, op.stop, op.step))],
    "sum": lambda op, x: np.asarray(np.sum(x, op.axes, keepdims=op.keepdims), order="C"),
    "concatenate": lambda op, *xs: np.asarray(np.concatenate(xs, op.axis), order="C"),
}


class Oracle:
    """Runs a graph, and counts the memory of all arrays that anybody still needs."""

    def __init__(self) -> None:
        self.most = 0
        self.after: list[int] = []

    def run(self, graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        kept = [array_owner(x) for x in inputs]
        return self._run(graph, inputs, [], kept, self.after)

    def _run(
        self,
        graph: Graph,
        inputs: Sequence[np.ndarray],
        around: Sequence[np.ndarray],
        kept: Sequence[np.ndarray],
        after: list[int],
    ) -> list[np.ndarray]:
        known: dict[Value, np.ndarray] = dict(zip(graph.inputs, inputs, strict=True))
        outputs = set(graph.outputs.values())
        for position, node in enumerate(graph.nodes):
            operands = [known[value] for value in node.inputs]
            if isinstance(node.op, Repeat):
                results = self._loop(node, node.op, operands, [*around, *known.values()], kept)
            else:
                results = [FUNCTIONS[node.op.name](node.op, *operands)]
            known.update(zip(node.outputs, results, strict=True))
            self.most = max(self.most, count([*around, *known.values()], kept))
            del operands, results
            later = {value for other in graph.nodes[position + 1 :] for value in other.inputs}
            for value in list(known):
                if value not in later and value not in outputs and value not in graph.inputs:
                    del known[value]
            after.append(count([*around, *known.values()], kept))
        return [known[value] for value in graph.outputs.values()]

    def _loop(
        self,
        node: Node,
        op: Repeat,
        operands: list[np.ndarray],
        around: list[np.ndarray],
        kept: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        first = len(operands) - op.stacked
        stacks = [np.empty(value.type.shape, np.float32) for value in node.outputs[op.carried :]]
        carries, made = operands[: op.carried], []
        for i in range(op.count):
            given = [*carries, *operands[op.carried : first], *(x[i] for x in operands[first:])]
            held = [*around, *stacks, *carries, *made]
            found = self._run(op.body, given, held, kept, [])
            carries, made = found[: op.carried], found[op.carried :]
            for stack, part in zip(stacks, made, strict=True):
                stack[i] = part
        return [*carries, *stacks]


def array_owner(x: np.ndarray) -> np.ndarray:
    """Return the array whose memory a view shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def count(arrays: Sequence[np.ndarray], kept: Sequence[np.ndarray]) -> int:
    """Return the bytes of the memory of arrays, without that of the inputs."""
    owners = {id(owner): owner for owner in map(array_owner, arrays)}
    return sum(x.nbytes for x in owners.values() if not any(x is y for y in kept))


# ------------------------------------------------------------------ graphs


def step(draw: st.DrawFn, made: list[Tensor]) -> Tensor:
    """Return one more tensor of some that are there."""
    x = draw(st.sampled_from(made))
    kind = draw(st.sampled_from(sorted(FUNCTIONS)))
    match kind:
        case "add" | "multiply":
            fitting = [y for y in made if y.shape == x.shape]
            y = draw(st.sampled_from(fitting))
            return x + y if kind == "add" else x * y
        case "reshape":
            sizes = [(x.size,), (2, x.size // 2), (x.size // 2, 2)] if x.size % 2 == 0 else [(-1,)]
            return ops.reshape(x, draw(st.sampled_from(sizes)))
        case "transpose":
            return ops.transpose(x, draw(st.permutations(range(x.ndim))))
        case "broadcast":
            return ops.broadcast_to(x, (2, *x.shape)) if x.size < 100 else x
        case "slice":
            return x[1:] if x.ndim and x.shape[0] > 1 else x
        case "sum":
            return ops.sum(x, axis=0) if x.ndim > 1 else x
        case "concatenate":
            return ops.concatenate([x, x], 0) if x.ndim and x.size < 100 else x
    return ops.exp(x)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return a graph of elementwise ops, movements and sums, with or without a loop."""
    builder = Builder()
    type = TensorType((ROWS, COLUMNS), DType.float32)
    made = [builder.input(type, name) for name in "xy"]
    for _ in range(draw(st.integers(1, 8))):
        made.append(step(draw, made))
    if draw(st.booleans()):
        stack = builder.input(type.with_shape((3, ROWS, COLUMNS)), "stack")
        fixed = draw(st.sampled_from([x for x in made if x.shape == (ROWS, COLUMNS)]))

        def body(x: Tensor, part: Tensor) -> tuple[Tensor, ...]:
            inner = [x, part, fixed]
            for _ in range(draw(st.integers(1, 4))):
                inner.append(step(draw, inner))
            return ops.exp(x) * part, ops.exp(inner[-1])

        made += repeat(body, made[0], stacked=[stack])
    outputs = draw(st.lists(st.sampled_from(made[2:] or made), min_size=1, max_size=3))
    return builder.build({f"out{i}": x for i, x in enumerate(outputs)})


@settings(max_examples=scaled(400), deadline=None)
@given(graphs())
def test_predicted_memory_is_what_numpy_references(graph: Graph) -> None:
    oracle = Oracle()
    inputs = [np.full(value.type.shape, 0.1, np.float32) for value in graph.inputs]
    with np.errstate(all="ignore"):  # exponentials of exponentials; their memory is looked at
        oracle.run(graph, inputs)
    found = Liveness(Execution(fuses=False)).measure(graph)
    assert list(found.curve) == oracle.after
    assert found.peak == oracle.most
    assert sum(holding.bytes for holding in found.alive) == found.peak


def test_shapes_that_numpy_sees_without_a_copy_have_strides() -> None:
    x = np.zeros((4, 6, 2), np.float32)
    for y in (x, x.transpose(1, 0, 2), x[:, 1:], x[::2], x[:, :1], np.broadcast_to(x[0], x.shape)):
        strides = tuple(step // x.itemsize for step in y.strides)
        for shape in ((y.size,), (2, -1), (-1, 2), (y.shape[0], -1), (-1, y.shape[-1])):
            z = y.reshape(shape)
            found = lay_out(y.shape, strides, z.shape)
            assert (found is None) == (not np.shares_memory(z, y)), (y.shape, strides, shape)


# ------------------------------------------------------------------ how engines differ


def chain(length: int = 3) -> Graph:
    """Return a chain of exponentials over 1000 bytes."""
    builder = Builder()
    x = builder.input(TensorType((250,), DType.float32), "x")
    for _ in range(length):
        x = ops.exp(x)
    return builder.build({"y": x})


@pytest.mark.parametrize(
    ("execution", "peak"),
    [(Execution(), 2000), (Execution(fuses=True), 1000)],
    ids=["kernel by kernel", "fused"],
)
def test_values_inside_a_fused_chain_are_never_in_memory(execution: Execution, peak: int) -> None:
    assert Liveness(execution).measure(chain()).peak == peak


def test_results_over_operands_that_nobody_reads_again_take_no_memory() -> None:
    reusing = Execution(reused_operands=(("exp", (0,)),))
    assert Liveness(reusing).measure(chain()).peak == 1000
    assert Liveness(reusing).measure(chain(1)).peak == 1000  # the operand is the caller's


def test_only_the_first_of_several_results_lies_over_an_operand() -> None:
    """A norm of ten rows of 100 bytes each has two statistics of a row."""
    builder = Builder()
    types = (TensorType(shape, DType.float32) for shape in ((10, 25), (25,), (25,)))
    x, gain, bias = (builder.input(t, name) for t, name in zip(types, "xgb", strict=True))
    results = apply(ops.LayerNorm(1e-5), ops.exp(x), gain, bias)
    graph = builder.build(dict(zip("yms", results, strict=True)))
    assert Liveness(Execution()).measure(graph).peak == 2080
    reusing = Execution(reused_operands=((ops.LayerNorm.name, (0,)),))
    assert Liveness(reusing).measure(graph).peak == 1080


def linear() -> Graph:
    """Return a product of matrices of 400 bytes, plus a vector."""
    builder = Builder()
    x, w = (builder.input(TensorType((10, 10), DType.float32), name) for name in "xw")
    b = builder.input(TensorType((10,), DType.float32), "b")
    return builder.build({"y": x @ w + b})


def test_a_bias_that_is_added_in_the_product_needs_no_memory_of_its_own() -> None:
    assert Liveness(Execution()).measure(linear()).peak == 800
    assert Liveness(Execution(adds_in_product=True)).measure(linear()).peak == 400


@pytest.mark.parametrize(("equation", "copies"), [("bhqd,bhkd->bhqk", 0), ("bqhd,bkhd->bhqk", 2)])
def test_an_operand_that_is_no_matrix_is_copied_for_a_product(equation: str, copies: int) -> None:
    builder = Builder()
    x, y = (builder.input(TensorType((3, 3, 3, 5), DType.float32), name) for name in "xy")
    graph = builder.build({"z": ops.einsum(equation, x, y)})
    expected = 3 * 3 * 3 * 3 * 4 + copies * x.type.nbytes
    assert Liveness(Execution()).measure(graph).peak == expected


def test_kernels_take_what_their_engine_says() -> None:
    found = Liveness(Execution(workspaces=(("exp", 0.5),))).measure(chain(1))
    assert found.peak == 1000 + 500
    assert [holding.name for holding in found.alive] == ["exp", "workspace of exp"]


@pytest.mark.parametrize(
    ("part", "order", "copies"),
    [("rows", (1, 0, 2), 0), ("rows", (0, 2, 1), 1), ("all", (1, 0, 2), 1), ("", (0, 2, 1), 0)],
)
def test_an_operand_is_copied_that_does_not_lie_as_the_kernel_wants_it(
    part: str, order: tuple[int, ...], copies: int
) -> None:
    builder = Builder()
    x = builder.input(TensorType((5, 10, 5), DType.float32), "x")
    graph = builder.build({"y": ops.exp(ops.transpose(x, order))})
    found = Liveness(Execution(ordered=(("exp", (part,)),))).measure(graph)
    assert found.peak == 1000 + copies * 1000


@pytest.mark.parametrize("copies", [False, True])
def test_what_is_exchanged_is_copied_where_the_library_below_does_so(copies: bool) -> None:
    """Along the first dimension nothing else has to be laid out; parts are copied out at the end."""
    execution = Execution(joins_parts=True, overlaps=True, copies_parts=copies)
    builder = Builder()
    x = builder.input(TensorType((250,), DType.float32), "x")
    part, whole = ReduceScatter(("a",), "sum", 0, 2), AllGather(("a",), 0, 2)
    half = builder.apply(part, ops.exp(x))[0]
    found = Liveness(execution).measure(builder.build({"y": half}))
    assert found.peak == 1000 + 500 + (500 if copies else 0)
    builder = Builder()
    x = builder.input(TensorType((250,), DType.float32), "x")
    gathered = Liveness(execution).measure(builder.build({"y": builder.apply(whole, x)[0]}))
    assert gathered.peak == (2000 + 2000 if copies else 2000)


def test_what_is_scattered_has_memory_once_it_is_waited_for() -> None:
    """Until then there are the parts of all devices."""
    execution = Execution(joins_parts=True, overlaps=True, copies_parts=True)
    part = ReduceScatter(("a",), "sum", 0, 2)
    builder = Builder()
    x = builder.input(TensorType((250,), DType.float32), "x")
    pending = builder.apply(Start(part), x)[0]
    beside = ops.exp(x)
    made = builder.apply(Wait(), pending)[0]
    graph = builder.build({"y": made, "z": beside})
    assert Liveness(execution).measure(graph).curve == (0, 1000, 1500)
    early = replace(execution, copies_parts=False)
    assert Liveness(early).measure(graph).curve == (500, 1500, 1500)


def test_outputs_are_there_from_the_start_where_memory_is_laid_out() -> None:
    builder = Builder()
    x = builder.input(TensorType((250,), DType.float32), "x")
    y = builder.input(TensorType((10, 10), DType.float32), "y")
    graph = builder.build({"a": y @ y, "b": ops.sum(ops.exp(x), axis=0)})
    found = Liveness(Execution(fuses=True, lays_out=True)).measure(graph)
    assert found.curve[0] >= 400 + 4
    assert Liveness(Execution()).measure(graph).curve[0] == 400


def test_a_compiler_gives_each_output_memory_of_its_own() -> None:
    """Equal ones, and those that are views, are copied; what else is equal is computed once."""
    builder = Builder()
    x = builder.input(TensorType((10, 10), DType.float32), "x")
    y = x @ x
    made = {"y": y, "row": ops.reshape(y, (100,)), "given": ops.reshape(x, (100,))}
    graph = builder.build({**made, "same": x @ x, "exp": ops.exp(x), "other": ops.exp(x)})
    laid_out = Liveness(Execution(fuses=True, lays_out=True)).measure(graph)
    assert sum(held.bytes for held in laid_out.made.values()) == laid_out.peak == 6 * 400
    eager = Liveness(Execution()).measure(graph)
    assert len(set(eager.results)) == 5  # the row is a view, and what is given lies in the input


def test_what_a_compiler_computes_once_is_in_memory_once() -> None:
    builder = Builder()
    x = builder.input(TensorType((10, 10), DType.float32), "x")
    graph = builder.build({"y": (x @ x) + ops.exp(x @ x), "z": ops.relu(x @ x)})
    laid_out = Liveness(Execution(fuses=True, lays_out=True)).measure(graph)
    assert laid_out.peak == 3 * 400  # the product, and both outputs
