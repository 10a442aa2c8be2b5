"""Random graphs whose layers are loops, too, and random choices of what is dropped of them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from mithril import ops
from mithril.ir import Builder, Graph, Tensor, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Mesh, P
from mithril.partition.recompute import split_phases
from mithril.types import DType, TensorType

from tests.mesh.strategies import specs
from tests.partition.test_properties import MESHES, STEPS

F64 = DType.float64
COUNT = 3


@dataclass(frozen=True)
class Case:
    """A graph on a mesh, with specs of its inputs."""

    graph: Graph
    mesh: Mesh
    inputs: dict[str, P]


def mask(x: Tensor, seed: Tensor, salt: int) -> Tensor:
    """Drop elements by random bits, as Dropout does."""
    bits = ops.random_bits(seed, x.shape, salt=salt, width=8)
    return x * ops.cast(ops.cast(bits, DType.int32) > 100, F64)


def loop(x: Tensor, builder: Builder, number: int, seed: Tensor, *, is_nested: bool) -> Tensor:
    """Run a block again and again over stacked weights, with one weight for all."""
    features = x.shape[-1]
    stacked = builder.input(TensorType((COUNT, features, features), F64), f"w{number}")
    shared = builder.input(TensorType((features,), F64), f"w{number + 100}")

    def inner(x: Tensor, weight: Tensor) -> Tensor:
        hidden = ops.tanh(ops.einsum("rsd,ed->rse", x, weight))
        return x + mask(ops.sin(hidden) * shared, seed, number)

    def outer(x: Tensor, weight: Tensor) -> Tensor:
        twice = (
            ops.repeat(lambda x: inner(x, weight), x, count=2) if is_nested else inner(x, weight)
        )
        return ops.tanh(twice * 0.5)

    result: Tensor = ops.repeat(outer, x, stacked=(stacked,))
    return result


def build(steps: list[str], rows: int) -> Graph:
    """Return the graph of layers one after another; each is a scope of its own."""
    builder = Builder()
    x = builder.input(TensorType((rows, 4, 8), F64), "x")
    seed = builder.input(TensorType((), DType.uint32), "seed")
    for number, step in enumerate(steps):
        with builder.at(scope=f"{step}_{number}"):
            if step in ("loop", "nested"):
                x = loop(x, builder, number, seed, is_nested=step == "nested")
            elif step == "mask":
                x = mask(x, seed, number)
            else:
                x = STEPS[step](x, builder, number)
    return builder.build({"y": x, "loss": ops.mean(x)})


@st.composite
def cases(draw: st.DrawFn, rows: tuple[int, ...] = (3, 4, 8)) -> Case:
    """Return a random graph on a random mesh."""
    kinds = st.sampled_from([*sorted(STEPS), "loop", "nested", "mask", "loop"])
    steps = draw(st.lists(kinds, min_size=1, max_size=5))
    mesh = draw(st.sampled_from(MESHES))
    graph = build(steps, draw(st.sampled_from(rows)))
    named = [value for value in graph.inputs if value.name != "seed"]
    return Case(graph, mesh, {v.name: draw(specs(mesh, v.type.rank)) for v in named})


def droppable(graph: Graph) -> list[Value]:
    """Return every value that a forward node makes, those of loops' bodies included."""
    early, _ = split_phases(graph)
    found = [value for node in early for value in node.outputs]
    for node in early:
        for body in node.op.bodies:
            for region in regions(body):
                found += [value for inner in region.graph.nodes for value in inner.outputs]
    return found
