"""Collectives with operands, and the programs of each algorithm that carries them out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from mithril.cost import SIMULATED
from mithril.ir import Builder, Graph
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from mithril.partition.algorithms import KNOWN, Algorithms, carry_out
from mithril.partition.algorithms.asked import AUTO, NATIVE
from mithril.plan import Plan, Port, Program
from mithril.plan.proof import prove_order
from mithril.types import DType, TensorType

INTEGERS = ("int32", "uint8", "int8")
DTYPES = ("float32", "bfloat16", "float16", "bool", *INTEGERS)
REWRITTEN = {k: [a for a in known if a not in (NATIVE, AUTO)] for k, known in KNOWN.items()}
MESHES = [Mesh(a=2, b=2), Mesh(a=2, b=3), Mesh(a=2, b=4)]


@dataclass(frozen=True)
class Case:
    """A collective on a mesh, its operands, and an algorithm."""

    mesh: Mesh
    op: Collective
    types: tuple[TensorType, ...]
    algorithm: str

    def program(self) -> Program:
        """Return the program with the engine's own collective."""
        builder = Builder()
        xs = [builder.input(type, f"x{n}") for n, type in enumerate(self.types)]
        made = builder.apply(self.op, *xs)
        return program_of(builder.build({f"y{n}": y for n, y in enumerate(made)}), self.mesh)

    def rewritten(self) -> Program:
        """Return the program with those that carry it out."""
        names = dict.fromkeys(self.mesh.names, self.algorithm)
        program = carry_out(self.program(), SIMULATED, Algorithms({self.op.name: names}))
        prove_order(Plan.of_program(self.mesh, program))
        verify(program.graph)
        return program

    def values(self, seed: int) -> dict[str, list[np.ndarray]]:
        """Return operands by device: small numbers, whose sums every dtype holds exactly.

        They are all above zero, or all below, so that zeros in their place are found in an extreme.
        """
        rng = np.random.default_rng(seed)
        dtype = self.types[0].dtype
        if dtype == DType.bool_:
            low, high = 0, 2
        else:
            low, high = (1, 6) if seed % 2 or dtype.value.startswith("u") else (-5, 0)
        return {
            f"x{n}": [
                rng.integers(low, high, t.shape).astype(dtype.numpy) for _ in range(self.mesh.size)
            ]
            for n, t in enumerate(self.types)
        }


def program_of(graph: Graph, mesh: Mesh) -> Program:
    """Return a program whose inputs and outputs have a part of their own on each device.

    Its order is proved.
    """

    def port(name: str, local: TensorType) -> Port:
        whole = local.with_shape((local.shape[0] * mesh.size, *local.shape[1:]))
        return Port(name, whole, Sharding.of(mesh, P(mesh.names), local.rank))

    entering = tuple(port(value.name, value.type) for value in graph.inputs)
    leaving = tuple(port(name, value.type) for name, value in graph.outputs.items())
    program = Program(mesh, verify(graph), entering, leaving)
    prove_order(Plan.of_program(mesh, program))
    return program


@st.composite
def cases(draw: st.DrawFn, most: int = 9, dtypes: tuple[str, ...] = DTYPES) -> Case:
    """Draw a collective over an axis of 2 to 9 devices, or over two axes."""
    wide = [mesh for mesh in MESHES if mesh.size <= most]
    mesh = draw(
        st.one_of(
            st.integers(2, most).map(lambda n: Mesh(a=n)),
            *([st.sampled_from(wide)] if wide else []),
        )
    )
    axes = draw(st.permutations(mesh.names)) if draw(st.booleans()) else mesh.names[-1:]
    axes, dtype = tuple(axes), draw(st.sampled_from(dtypes))
    count, dimension = mesh.product(axes), draw(st.integers(0, 1))
    kind = draw(st.sampled_from(sorted(REWRITTEN)))
    reductions = ("max", "min") if dtype == "bool" else ("sum", "max", "min")
    reduction = draw(st.sampled_from(reductions))
    size, several = st.integers(1, 5), st.integers(1, 3)
    shapes = [[draw(size), draw(size)] for _ in range(draw(several))]
    op: Collective
    if kind == AllReduce.name:
        op = AllReduce(axes, reduction)
    elif kind == AllGather.name:
        op = AllGather(axes, dimension, count)
    elif kind == ReduceScatter.name:
        op = ReduceScatter(axes, reduction, dimension, count)
    else:
        op = AllToAll(axes, dimension, draw(st.integers(0, 1)), count)
    if isinstance(op, ReduceScatter | AllToAll):
        for shape in shapes:
            shape[dimension] *= count
    types = tuple(TensorType(tuple(shape), DType(dtype)) for shape in shapes)
    return Case(mesh, op, types, draw(st.sampled_from(REWRITTEN[kind])))
