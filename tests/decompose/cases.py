"""Plans of products with layouts of every kind, and running their programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from mithril import ops
from mithril.compiler import PlanOptions
from mithril.cost import SIMULATED
from mithril.engine import Engine
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.shards import trim_padding
from mithril.ir import Builder, Graph
from mithril.ir.start import join_starts
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P, edges
from mithril.partition.overlap import Overlap
from mithril.plan import Plan, Program
from mithril.plan.proof import prove_order
from mithril.types import DType, TensorType

from tests.graphs import Ran, run, values_for
from tests.tolerances import TOLERANCE

WEIGHTS = [P("tensor"), P(None, "tensor"), P()]
ROWS = [P(None, "tensor"), P("tensor"), P(None, None, "tensor"), P()]
BESIDE = replace(SIMULATED, execution=replace(SIMULATED.execution, overlaps=True))
"""Devices on which collectives go on beside kernels."""


@dataclass(frozen=True)
class Case:
    """Layers of products, with the layouts of all that they take."""

    graph: Graph
    mesh: Mesh
    inputs: dict[str, P]
    rests: dict[str, P]
    leaves: P
    is_exact: bool = False

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Its inputs, and the gradient of its output."""
        found = values_for(self.graph)
        if self.is_exact:  # numbers whose sums are the same in any order
            return {name: np.rint(4 * x) for name, x in found.items()}
        return found

    @property
    def dtype(self) -> str:
        """Of all values."""
        return self.graph.inputs[0].type.dtype.value

    def run(self, strategy: str) -> Ran:
        """Return what the plan of a strategy makes, with gradients."""
        names = tuple(value.name for value in self.graph.inputs)
        return run(
            self.graph, self.mesh, self.values, self.inputs, at_rest=self.rests,
            differentiated=names, outputs={"y": self.leaves},
            options=PlanOptions(overlap=Overlap(strategy, "said")),
        )  # fmt: skip

    def program(self) -> Program:
        """Return the program whose collectives are whole."""
        program = self.run("none").plan.stages[0].program
        return replace(program, graph=join_starts(program.graph))


@st.composite
def cases(draw: st.DrawFn, most: int = 5, is_exact: bool = False) -> Case:
    """Draw sizes that often do not divide, and layouts of every kind.

    Args:
        most: devices that split tensors.
        is_exact: whether numbers are such that no order of a sum changes it.
    """
    count = draw(st.integers(2, most))
    mesh = draw(st.sampled_from([Mesh(tensor=count), Mesh(data=2, tensor=count)]))
    dtypes = [DType.float32] if is_exact else [DType.float32, DType.float32, DType.bfloat16]
    dtype = draw(st.sampled_from(dtypes))
    sizes = st.integers(1, 3).map(lambda n: n * count) | st.integers(2, 7)
    builder, width = Builder(), draw(sizes)
    x = builder.input(TensorType((draw(st.integers(1, 3)), draw(sizes), width), dtype), "x")
    inputs, rests = {"x": draw(st.sampled_from(ROWS))}, dict[str, P]()
    for number in range(draw(st.integers(1, 2 if is_exact else 3))):
        name, wide = f"w{number}", draw(sizes)
        w = builder.input(TensorType((wide, width), dtype), name)
        (rests if draw(st.booleans()) else inputs)[name] = draw(st.sampled_from(WEIGHTS))
        with builder.at(scope=f"layer_{number}"):
            x = ops.einsum("bsd,hd->bsh", x, w)
            x = ops.relu(x) if is_exact else ops.tanh(x)
        width = wide
    leaves = draw(st.sampled_from(ROWS))
    return Case(builder.build({"y": x}), mesh, inputs, rests, leaves, is_exact)


Row = tuple[str, tuple[str, ...], int]


def execute(
    program: Program, values: Mapping[str, np.ndarray], engine: Engine | None = None
) -> tuple[dict[str, np.ndarray], list[Row]]:
    """Return the outputs of a program and what was exchanged; equal parts have equal bits."""
    engine = engine or NumpyEngine(program.mesh)
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box].copy())
        for port in program.inputs
    ]
    rows: list[Row] = []
    made = engine.lower(program)(handles, lambda told: rows.append(told.row))
    found: dict[str, np.ndarray] = {}
    for port, held in zip(program.outputs, made, strict=True):
        whole = found[port.name] = np.zeros(port.type.shape, port.type.dtype.numpy)
        known: dict[object, np.ndarray] = {}
        for device in range(program.mesh.size):
            box = port.sharding.box(device, port.type.shape)
            part = trim_padding(np.asarray(engine.shard(held, port.sharding, device)), box)
            same = known.setdefault(edges(box), part)
            np.testing.assert_array_equal(part, same, f"{port.name} on device {device}")
            whole[box] = part
    return found, rows


def check_program(program: Program) -> None:
    """Check that a program is well formed, and that no device waits for ever."""
    verify(program.graph)
    prove_order(Plan.of_program(program.mesh, program))


def check_close(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], dtype: str
) -> None:
    """Check that values are those of the whole products, up to the order of sums."""
    rtol, atol = TOLERANCE[dtype]
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        made, exact = found[name].astype(np.float64), value.astype(np.float64)
        scale = max(1.0, np.abs(exact).max(initial=0.0))
        np.testing.assert_allclose(made, exact, rtol, atol * scale, err_msg=name)
