"""Small programs to choose in, every set that may be dropped of them, and what each takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from random import Random
from typing import Any

from mithril import ops
from mithril.compiler import PlanOptions
from mithril.cost import SIMULATED, predict_memory
from mithril.cost.kernels import OpCosts
from mithril.cost.simulate_plan import simulate_plan
from mithril.ir import Builder, Graph, Tensor, Value
from mithril.ir.rewrite import inline
from mithril.mesh import Mesh, P
from mithril.partition.fusion import Fusion
from mithril.partition.recompute import recompute
from mithril.partition.recompute.choose import Choice, Measured, choose_within
from mithril.partition.recompute.sections import LocalPart, Section, read_part
from mithril.plan import Plan, Program
from mithril.types import DType, TensorType

from tests.graphs import BLOCK_PARAMETERS, block, run, values_for
from tests.recompute.graphs import F64, mask

COSTS = OpCosts()
UNARY = {"exp": ops.exp, "sin": ops.sin, "tanh": ops.tanh, "square": lambda x: x * x}


def list_subsets(values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(combinations(values, n) for n in range(len(values) + 1))


def measure(program: Program, dropped: Iterable[Value]) -> Measured:
    """Return what a program takes that computes some values again, read off a whole plan."""
    plan = Plan.of_program(program.mesh, recompute(program, frozenset(dropped)))
    memory = predict_memory(plan, SIMULATED)
    seconds = simulate_plan(plan, SIMULATED, COSTS).seconds
    return Measured((memory.peak,), seconds, memory.fullest)


def part(program: Program) -> LocalPart:
    return LocalPart(program, SIMULATED)


def read_sections(of: LocalPart) -> Sequence[Section]:
    return read_part(of).sections


def choose(program: Program, limit: int) -> Choice:
    """Return the choice within some bytes."""
    return choose_within([part(program)], limit, lambda d: measure(program, d), "a budget")


def program_of(graph: Graph, mesh: Mesh | None = None, specs: Any = None) -> Program:
    """Return the local program of a graph and its gradients, on one device by default.

    Its sums travel alone, as where recomputation is chosen: buckets are made of what comes out.
    """
    wanted = tuple(v.name for v in graph.inputs if v.type.dtype.is_float)
    apart = PlanOptions(fusion=Fusion(all_reduces=False))
    ran = run(graph, mesh or Mesh(), values_for(graph), specs, differentiated=wanted, options=apart)
    return ran.plan.stages[0].program


def small_program(seed: int, mesh: Mesh, kind: str, most: int = 5) -> Program:
    """Return the program of a few ops: a chain with masks, one around a loop, or wired at random."""
    random = Random(seed)
    if kind == "wired":
        graph = random_graph(seed, random.randrange(3, most + 1))
    else:
        graph = _draw_chain(random, most, is_looped=kind == "loop")
    specs: dict[str, P] = {}
    for value in graph.inputs:
        axes: list[str | None] = [None] * value.type.rank
        for axis in mesh.names:
            dimension = random.randrange(-1, value.type.rank)
            if dimension >= 0 and not axes[dimension] and value.type.shape[dimension] % 2 == 0:
                axes[dimension] = axis
        specs[value.name] = P(*axes)
    return program_of(graph, mesh, specs)


def blocks_of(count: int) -> Program:
    """Return the program of equal transformer blocks one after another."""
    one, builder = block(b=16, s=16), Builder()
    x = builder.input(one.inputs[0].type, "x")
    for number in range(count):
        given = [builder.input(v.type, f"{v.name}{number}") for v in one.inputs[1:]]
        with builder.at(scope=f"block{number}"):
            x = inline(one, builder, [x, *given])["y"]
    graph = builder.build({"loss": ops.sum(x)})
    assert len(BLOCK_PARAMETERS) == len(one.inputs) - 1
    return program_of(graph)


def random_graph(seed: int, count: int) -> Graph:
    """Return a graph of so many values, of sizes that differ, each made of some before."""
    random, builder = Random(seed), Builder()
    made = [builder.input(TensorType((4, 8), F64), "x")]
    for number in range(count):
        x = random.choice(made[-3:])
        kind = random.choice(["unary", "unary", "binary", "product"])
        if kind == "product":
            columns = random.choice([4, 8, 32])
            weight = builder.input(TensorType((columns, x.shape[1]), F64), f"w{number}")
            made.append(ops.einsum("ab,cb->ac", x, weight))
        elif kind == "binary":
            other = random.choice([y for y in made if y.shape == x.shape])
            made.append(x * other)
        else:
            made.append(random.choice([ops.exp, ops.sin, ops.tanh, ops.relu])(x))
    total = ops.sum(made[-1] * made[-1])
    return builder.build({"loss": total})


def _draw_chain(random: Random, most: int, *, is_looped: bool) -> Graph:
    builder = Builder()
    x = builder.input(TensorType((8, random.choice([8, 16])), F64), "x")
    drawn = builder.input(TensorType((), DType.uint32), "seed")
    counts = (
        (random.randrange(3), random.randrange(3))
        if is_looped
        else (random.randrange(2, most + 1), 0)
    )
    for number in range(counts[0]):
        x = _draw_step(random, builder, x, number, drawn)
    x = _draw_loop(random, builder, x) if is_looped else x
    for number in range(counts[1]):
        x = _draw_step(random, builder, x, 10 + number, drawn)
    return builder.build({"loss": ops.sum(x * x)})


def _draw_step(random: Random, builder: Builder, x: Tensor, number: int, seed: Tensor) -> Tensor:
    kind = random.choice([*UNARY, "linear", "mask", "softmax"])
    if kind == "linear":
        columns = random.choice([4, 8, 32])
        weight = builder.input(TensorType((columns, x.shape[1]), F64), f"w{number}")
        return ops.einsum("ab,cb->ac", x, weight)
    if kind == "mask":
        return mask(x, seed, number)
    return ops.softmax(x) if kind == "softmax" else UNARY[kind](x)


def _draw_loop(random: Random, builder: Builder, x: Tensor) -> Tensor:
    width = x.shape[1]
    stacked = builder.input(TensorType((3, width, width), F64), "stacked")
    kinds = [random.choice([*UNARY, "linear", "residual"]) for _ in range(random.randrange(1, 4))]

    def body(x: Tensor, weight: Tensor) -> Tensor:
        y = x
        for kind in kinds:
            if kind == "linear":
                y = ops.einsum("ab,cb->ac", y, weight)
            else:
                y = ops.tanh(y) + x if kind == "residual" else UNARY[kind](y)
        return y

    result: Tensor = ops.repeat(body, x, stacked=(stacked,))
    return result
