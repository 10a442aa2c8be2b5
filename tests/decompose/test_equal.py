"""Products in parts make what products of the whole make, and are issued as plans list them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.compiler import PlanOptions
from mithril.ir import Builder, Graph
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P
from mithril.partition.overlap import Overlap
from mithril.plan.proof import prove_order
from mithril.types import DType, TensorType

from tests.graphs import Ran, run, values_for
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

SPLIT = [P("tensor"), P(None, "tensor"), P()]
ROWS = [P(None, "tensor"), P("tensor"), P(None, None, "tensor"), P()]


@dataclass(frozen=True)
class Case:
    """Layers of products, with the layouts of all that they take."""

    graph: Graph
    mesh: Mesh
    inputs: dict[str, P]
    rests: dict[str, P]
    leaves: P

    def run(self, strategy: str) -> Ran:
        """Return what a plan with all products in parts makes, or with none."""
        names = tuple(value.name for value in self.graph.inputs)
        return run(
            self.graph, self.mesh, values_for(self.graph), self.inputs, at_rest=self.rests,
            differentiated=names, outputs={"y": self.leaves},
            options=PlanOptions(overlap=Overlap(strategy, "said")),
        )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw sizes that often do not divide, and layouts of every kind."""
    count = draw(st.integers(2, 5))
    mesh = draw(st.sampled_from([Mesh(tensor=count), Mesh(data=2, tensor=count)]))
    builder = Builder()
    dtype = draw(st.sampled_from([DType.float32, DType.float32, DType.bfloat16]))
    sizes = st.integers(1, 3).map(lambda n: n * count) | st.integers(2, 7)
    b, s, width = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    x = builder.input(TensorType((b, s, width), dtype), "x")
    inputs, rests = {"x": draw(st.sampled_from(ROWS))}, dict[str, P]()
    for number in range(draw(st.integers(1, 3))):
        wide = draw(sizes)
        name = f"w{number}"
        w = builder.input(TensorType((wide, width), dtype), name)
        (rests if draw(st.booleans()) else inputs)[name] = draw(st.sampled_from(SPLIT))
        with builder.at(scope=f"layer_{number}"):
            x = ops.tanh(ops.einsum("bsd,hd->bsh", x, w))
        width = wide
    return Case(builder.build({"y": x}), mesh, inputs, rests, draw(st.sampled_from(ROWS)))


def check_same(found: Ran, wanted: Ran, dtype: str) -> None:
    for name, value in wanted.outputs.items():
        made = found.outputs[name]
        assert made.dtype == value.dtype
        scale = max(1.0, float(np.abs(value.astype(np.float64)).max(initial=0)))
        rtol, atol = TOLERANCE[dtype]
        np.testing.assert_allclose(
            made.astype(np.float64), value.astype(np.float64), rtol, atol * scale, err_msg=name
        )
    verify(found.plan.stages[0].program.graph)
    prove_order(found.plan)
    assert found.executed == list(found.plan.list_issued())


@settings(max_examples=scaled(300), deadline=None)
@given(cases())
def test_random_plans_make_the_same_with_products_in_parts(case: Case) -> None:
    found, wanted = case.run("decompose"), case.run("none")
    check_same(found, wanted, case.graph.inputs[0].type.dtype.value)
