"""The lockstep executor: what does not vary is computed once, values are freed, nothing is NumPy's."""

from __future__ import annotations

import ast
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import KERNELS, Kernel, on_namespace
from mithril.engine.lockstep import WORTH_STARTING, LockstepExecutable
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.ir import Builder, Op, Tensor
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllGather, AllReduce, AllToAll, AxisIndex, ReduceScatter
from mithril.plan import Program
from mithril.types import TensorType

from tests.engine.programs import (
    apply_op,
    everywhere,
    execute,
    f32,
    graph_of,
    program_of,
)
from tests.graphs import BLOCK_PARAMETERS, MEGATRON_BLOCK, block, run, values_for
from tests.tolerances import TOLERANCE

CLOSE = dict(zip(("rtol", "atol"), TOLERANCE["float32"], strict=True))

MESH = Mesh(a=2, b=3)


def counting(name: str, calls: Counter[str]) -> dict[str, Kernel]:
    """Return the kernels, one of which counts how often it runs."""

    def kernel(op: Any, types: Sequence[TensorType]) -> Callable[..., Any]:
        function = NUMPY_KERNELS[name](op, types)

        def counted(*operands: Any) -> Any:
            calls[name] += 1
            return function(*operands)

        return counted

    return {**NUMPY_KERNELS, name: kernel}


def calls_of(name: str, program: Program) -> int:
    """Return how often a kernel runs for all devices of a mesh together."""
    calls: Counter[str] = Counter()
    values = {
        p.name: [np.ones(p.sharding.local_shape(p.type.shape), np.float32)] for p in program.inputs
    }
    execute(program, {n: v * program.mesh.size for n, v in values.items()}, counting(name, calls))
    return calls[name]


VARYING = {
    "replicated": (Sharding(MESH, ((),)), 1),
    "split over a": (Sharding(MESH, (("a",),)), 2),
    "split over b": (Sharding(MESH, (("b",),)), 3),
    "split over both": (Sharding(MESH, (("b", "a"),)), 6),
    "partial over b": (Sharding(MESH, ((),), (("b", "sum"),)), 3),
    "split over a and partial over b": (Sharding(MESH, (("a",),), (("b", "max"),)), 6),
}


@pytest.mark.parametrize("case", VARYING)
def test_a_value_is_computed_once_for_all_devices_that_agree(case: str) -> None:
    sharding, times = VARYING[case]
    program = program_of(MESH, graph_of(ops.tanh, x=f32(6)), {"x": sharding})
    assert calls_of("tanh", program) == times


def test_a_value_varies_over_the_axes_of_all_its_operands() -> None:
    given = {"x": VARYING["split over a"][0], "y": VARYING["split over b"][0]}
    graph = graph_of(lambda x, y: (ops.tanh(x) * y, ops.tanh(y)), x=f32(6), y=f32(6))
    program = program_of(MESH, graph, given)
    assert calls_of("tanh", program) == 2 + 3
    assert calls_of("multiply", program) == 6


AFTER = {
    "all_reduce over b": (AllReduce(("b",), "sum"), 2),
    "all_reduce over both": (AllReduce(("b", "a"), "sum"), 1),
    "all_gather over a": (AllGather(("a",), 0, 2), 3),
    "reduce_scatter over b": (ReduceScatter(("b",), "sum", 0, 3), 6),
    "all_to_all over a": (AllToAll(("a",), 0, 0, 2), 6),
}


@pytest.mark.parametrize("case", AFTER)
def test_a_reduction_or_a_gather_ends_the_difference(case: str) -> None:
    op, times = AFTER[case]
    graph = graph_of(lambda x: ops.tanh(apply_op(op, x)[0]), x=f32(6))
    assert calls_of("tanh", program_of(MESH, graph, {"x": everywhere(MESH, 1)})) == times


def test_a_device_index_makes_a_value_vary_over_its_axes_only() -> None:
    def scaled(x: Tensor) -> Tensor:
        (index,) = x.builder.apply(AxisIndex(("b",)))
        return ops.tanh(x) * ops.cast(index, "float32")

    program = program_of(MESH, graph_of(scaled, x=f32(2)))
    assert calls_of("tanh", program) == 1
    assert calls_of("multiply", program) == 3


def test_the_source_is_straight_lines() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return apply_op(AllReduce(("a",), "sum"), ops.exp(x) * y)[0]

    mesh = Mesh(a=2)
    given = {"x": Sharding(mesh, ((), ("a",)))}
    program = program_of(mesh, graph_of(function, x=f32(2, 2), y=f32(2, 2)), given)
    assert LockstepExecutable(program, NUMPY_KERNELS, np).source == (
        "def run(inputs, observe):\n"
        "    v0_0 = inputs[0][0]\n"
        "    v0_1 = inputs[0][1]\n"
        "    v1 = inputs[1][0]\n"
        "    v2_0 = f0(v0_0)\n"
        "    v2_1 = f0(v0_1)\n"
        "    del v0_0, v0_1\n"
        "    v3_0 = f1(v2_0, v1)\n"
        "    v3_1 = f1(v2_1, v1)\n"
        "    del v2_0, v2_1, v1\n"
        "    if observe: observe(f2_issued)\n"
        "    v4 = f2([v3_0, v3_1])\n"
        "    del v3_0, v3_1\n"
        "    return [[v4, v4]]\n"
    )


# -------------------------------------------------------------------------------- freeing


def alive(names: dict[str, Kernel], peak: list[int]) -> dict[str, Kernel]:
    """Return kernels that note how many of their results are alive whenever one of them starts."""
    made: list[weakref.ref[np.ndarray]] = []

    def watched(kernel: Kernel) -> Kernel:
        def factory(op: Any, types: Sequence[TensorType]) -> Callable[..., Any]:
            function = kernel(op, types)

            def call(*operands: Any) -> Any:
                peak.append(sum(ref() is not None for ref in made))
                found = function(*operands)
                results = found if isinstance(found, tuple) else (found,)
                made.extend(weakref.ref(result) for result in results)
                return found

            return call

        return factory

    return {name: watched(kernel) for name, kernel in names.items()}


def peak_of(function: Callable[..., Any], mesh: Mesh, **types: TensorType) -> int:
    """Return the most results alive when a kernel starts, on values that differ everywhere."""
    given = {name: everywhere(mesh, t.rank) for name, t in types.items()}
    program = program_of(mesh, graph_of(function, **types), given)
    values = {n: [np.ones(t.shape, np.float32) for _ in range(mesh.size)] for n, t in types.items()}
    peak: list[int] = []
    execute(program, values, alive(NUMPY_KERNELS, peak))
    return max(peak)


def chain(x: Tensor) -> Tensor:
    for _ in range(20):
        x = ops.tanh(x)
    return x


def test_a_chain_keeps_two_values_alive_however_long() -> None:
    assert peak_of(chain, Mesh(), x=f32(4)) == 1  # the operand; its result comes on top
    assert peak_of(chain, Mesh(a=4), x=f32(4)) == 4 + 3  # operands, and results but one


def test_a_value_lives_until_its_last_use() -> None:
    def late(x: Tensor) -> Tensor:
        first = ops.exp(x)
        return chain(first) + first

    assert peak_of(late, Mesh(), x=f32(4)) == 2


def test_outputs_live_on() -> None:
    def kept(x: Tensor) -> tuple[Tensor, ...]:
        first = ops.exp(x)
        second = ops.exp(first)
        return first, second, ops.exp(second)

    assert peak_of(kept, Mesh(), x=f32(4)) == 2
    values = [np.zeros(4, np.float32)]
    found, _ = execute(program_of(Mesh(), graph_of(kept, x=f32(4))), {"x": values})
    np.testing.assert_allclose(found["y1"][0], np.e, **CLOSE)


def test_results_nobody_uses_are_freed_at_once() -> None:
    def normed(x: Tensor, w: Tensor) -> Tensor:
        y = ops.layer_norm(x, w, w)
        return chain(ops.exp(y))

    assert peak_of(normed, Mesh(), x=f32(2, 4), w=f32(4)) == 1


def test_a_lazy_namespace_is_told_every_few_nodes_to_start() -> None:
    """What it is given is needed further on, and in order; statistics nobody uses are not.

    What is hardly any work is computed at the end.
    """

    def function(x: Tensor) -> Tensor:
        for _ in range(7):
            x = ops.tanh(x)
        return chain(ops.layer_norm(x, x, x))

    started: list[Any] = []
    lazy = ModuleType("lazy")
    vars(lazy).update(vars(np), start=started.extend)
    for size in (3, WORTH_STARTING // 8):
        program = program_of(Mesh(), graph_of(function, x=f32(size)))
        values = {"x": [np.linspace(0.1, 0.3, size, dtype=np.float32)]}
        found, _ = execute(program, values, xp=lazy)
        assert bool(started) == (size > 3)
    (normed, halfway, late) = started
    np.testing.assert_array_equal(_after(8, normed), halfway)
    np.testing.assert_array_equal(_after(8, halfway), late)
    np.testing.assert_array_equal(_after(4, late), found["y"][0])


def _after(count: int, x: Any) -> Any:
    for _ in range(count):
        x = np.tanh(x)
    return x


def test_everything_but_the_outputs_is_deleted_once_after_its_last_use() -> None:
    graph = block()
    ran = run(
        graph, Mesh(data=2, tensor=2), values_for(graph), {**MEGATRON_BLOCK, "x": P("data")},
        compute=[*MEGATRON_BLOCK], differentiated=BLOCK_PARAMETERS,
    )  # fmt: skip
    source = LockstepExecutable(ran.plan.stages[0].program, NUMPY_KERNELS, np).source
    (function,) = ast.parse(source).body
    made: list[str] = []
    freed: list[str] = []
    last: dict[str, int] = {}
    for line, statement in enumerate(function.body):
        names = {n.id: n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id[0] == "v"}
        if isinstance(statement, ast.Delete):
            freed += names
            assert all(last[name] >= line - MESH_LINES for name in names)
        else:
            last.update(dict.fromkeys(names, line))
            made += [n for n, node in names.items() if isinstance(node.ctx, ast.Store)]
    returned = {n.id for n in ast.walk(function.body[-1]) if isinstance(n, ast.Name)}
    assert len(made) == len(set(made)) > 100
    assert len(freed) == len(set(freed))
    assert not set(freed) & returned
    assert set(freed) | returned == set(made)


MESH_LINES = 5
"""A node takes at most one line per device, and its collective one more."""


# ------------------------------------------------------------------------------ generic


class Namespace(ModuleType):
    """NumPy under another name that notes which of its functions are asked for."""

    def __init__(self) -> None:
        super().__init__("other")
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(np, name)


def test_any_array_namespace_will_do() -> None:
    mesh = Mesh(a=2)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        (whole,) = apply_op(AllGather(("a",), 0, 2), ops.exp(x))
        return whole, *apply_op(AllReduce(("a",), "max"), x)

    program = program_of(mesh, graph_of(function, x=f32(2)), {"x": everywhere(mesh, 1)})
    parts = [np.asarray([1, 2], np.float32), np.asarray([3, 0], np.float32)]
    namespace = Namespace()
    found, _ = execute(program, {"x": parts}, on_namespace(KERNELS, namespace), namespace)
    expected, _ = execute(program, {"x": parts})
    np.testing.assert_equal(found, expected)
    assert {"exp", "concat", "maximum"} <= set(namespace.asked)
    assert namespace.asked["exp"] == 1, "the function is looked up when the program is lowered"


def test_the_block_runs_on_another_namespace() -> None:
    graph = block()
    values = {n: v for n, v in values_for(graph).items() if not n.startswith("output_gradients")}
    inputs = {name: [value] for name, value in values.items()}
    program = program_of(Mesh(), graph)
    found, _ = execute(program, inputs, xp=Namespace())
    expected, _ = execute(program, inputs)
    np.testing.assert_array_equal(found["y"], expected["y"])


class Halve(Op):
    """An op of a plugin's own."""

    name = "halve"

    def infer(self, inputs: Sequence[TensorType]) -> Sequence[TensorType]:
        return inputs


def test_kernels_come_from_the_table_and_see_op_types_and_namespace() -> None:
    seen: list[tuple[object, ...]] = []

    def halve(op: Op, types: Sequence[TensorType], xp: ModuleType) -> Callable[..., Any]:
        seen.append((op.name, list(types), xp))
        return lambda x: x / 2

    program = program_of(MESH, graph_of(lambda x: apply_op(Halve(), x)[0], x=f32(2)))
    parts = [np.asarray([4, 8], np.float32)] * 6
    found, _ = execute(program, {"x": parts}, on_namespace({"halve": halve}, np))
    np.testing.assert_array_equal(found["y"], [[2, 4]] * 6)
    assert seen == [("halve", [f32(2)], np)]


def test_an_input_may_be_an_output() -> None:
    builder = Builder()
    x = builder.input(f32(1), "x")
    program = program_of(MESH, builder.build({"x": x, "again": x}), {"x": everywhere(MESH, 1)})
    parts = [np.asarray([n], np.float32) for n in range(6)]
    found, _ = execute(program, {"x": parts})
    assert [part is given for part, given in zip(found["x"], parts, strict=True)] == [True] * 6
    assert found["x"] == found["again"]


def test_an_executable_runs_again_with_other_values() -> None:
    program = program_of(Mesh(), graph_of(ops.exp, x=f32(1)))
    executable = LockstepExecutable(program, NUMPY_KERNELS, np)
    for value in (0.0, 1.0):
        ((found,),) = executable([[np.asarray([value], np.float32)]])
        np.testing.assert_array_equal(found, np.exp(np.asarray([value], np.float32)))
