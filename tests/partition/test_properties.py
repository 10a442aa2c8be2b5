"""Random graphs on random meshes with random shardings equal one device, and do what the plan says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.cost import SIMULATED
from mithril.engine import Engine
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh, P, Sharding, carry, refine
from mithril.mesh.refinement import has_same_layout
from mithril.sharding import Layout, Resharder, choose, collect, find_constraints
from mithril.sharding.move_prices import PRICE_UNIT, MovePrices
from mithril.sharding.objective import Objective
from mithril.types import DType, TensorType

from tests.graphs import Ran, on_one_device, run, values_for
from tests.mesh.strategies import specs
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

F64 = DType.float64
MESHES = [
    Mesh(a=2), Mesh(a=4), Mesh(a=2, b=2), Mesh(a=2, b=4), Mesh(a=2, b=2, c=2),
    Mesh(a=2, b=4, order=("b", "a")), Mesh(a=2, b=2, c=2, order=("b", "c", "a")),
]  # fmt: skip
Case = tuple[Graph, Mesh, dict[str, P | Sharding], dict[str, P], dict[str, list[str]]]
RTOL, ATOL = TOLERANCE["float64"]
SIZES = st.sampled_from([1, 3, 5, 6, 8])
Step = Callable[[Tensor, Builder, int], Tensor]


def weight(builder: Builder, number: int, *shape: int) -> Tensor:
    return builder.input(TensorType(shape, F64), f"w{number}")


STEPS: dict[str, Step] = {
    "linear": lambda x, b, n: ops.einsum("rsd,ed->rse", x, weight(b, n, 8, x.shape[-1])),
    "widen": lambda x, b, n: ops.einsum("rsd,ed->rse", x, weight(b, n, 16, x.shape[-1])),
    "bias": lambda x, b, n: x + weight(b, n, x.shape[-1]),
    "relu": lambda x, b, n: ops.relu(x),
    "tanh": lambda x, b, n: ops.tanh(x),
    "square": lambda x, b, n: x * x,
    "residual": lambda x, b, n: x + ops.tanh(x),
    "softmax": lambda x, b, n: ops.softmax(x),
    "norm": lambda x, b, n: ops.layer_norm(
        x, weight(b, n, x.shape[-1]), weight(b, n + 100, x.shape[-1])
    ),
    "heads": lambda x, b, n: ops.attention(
        *[x.reshape(*x.shape[:2], 4, x.shape[-1] // 4)] * 3, causal=True
    ).reshape(x.shape),
    "pairs": lambda x, b, n: ops.tanh(x.reshape(*x.shape[:2], 2, x.shape[-1] // 2)).reshape(
        x.shape
    ),
    "swap": lambda x, b, n: x.transpose(1, 0, 2),
    "merge": lambda x, b, n: ops.tanh(x.reshape(-1, x.shape[-1])).reshape(x.shape),
    "mean": lambda x, b, n: x - ops.mean(x, 1, keepdims=True),
    "largest": lambda x, b, n: x - ops.max(x, 2, keepdims=True),
    "cut": lambda x, b, n: ops.concatenate([x[:, 2:], x[:, :2]], 1),
    "dropout": lambda x, b, n: x * ops.cast(ops.one_hot(ops.argmax(x, 2), x.shape[2]), F64),
}


def build(steps: list[str], rows: int = 8, columns: int = 8, features: int = 8) -> Graph:
    builder = Builder()
    x = builder.input(TensorType((rows, columns, features), F64), "x")
    for number, step in enumerate(steps):
        with builder.at(scope=f"{step}_{number}"):
            x = STEPS[step](x, builder, number)
    return builder.build({"y": x, "loss": ops.mean(x)})


@st.composite
def refined(draw: st.DrawFn, mesh: Mesh, spec: P, rank: int) -> P | Sharding:
    """The spec, or one like it in which an axis of 4 is seen as 2 x 2."""
    wide = [axis.name for axis in mesh.axes if axis.size == 4]
    if not wide or draw(st.booleans()):
        return spec
    finer = refine(mesh, {wide[0]: (2, 2)})
    return Sharding.of(finer, draw(specs(finer, rank)), rank)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    steps = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
    mesh = draw(st.sampled_from(MESHES))
    graph = build(steps, draw(SIZES), draw(SIZES), draw(st.sampled_from([4, 8, 12])))
    inputs, roles = {}, {"compute": [], "free": []}
    for value in graph.inputs:
        spec = draw(specs(mesh, value.type.rank))
        role = draw(st.sampled_from(["given", "compute", "free"])) if value.name != "x" else "given"
        if role == "free":
            roles["free"].append(value.name)
        else:
            inputs[value.name] = draw(refined(mesh, spec, value.type.rank))
            if role == "compute":
                roles["compute"].append(value.name)
    outputs = {}
    spec = draw(specs(mesh, 3))
    if draw(st.booleans()):
        outputs["y"] = spec
    return graph, mesh, inputs, outputs, roles


def fits(mesh: Mesh, spec: P, shape: tuple[int, ...]) -> bool:
    return all(size % mesh.product(spec.axes(d)) == 0 for d, size in enumerate(shape))


@settings(max_examples=scaled(150))
@given(cases())
def test_sharded_equals_one_device(
    case: Case,
) -> None:
    graph, mesh, inputs, outputs, roles = case
    ran = compare(case)
    forward = run(graph, mesh, values_for(graph), inputs, outputs=outputs, **roles)
    for name, found in forward.outputs.items():
        np.testing.assert_allclose(found, ran.outputs[name], RTOL, ATOL, err_msg=name)
    assert ran.executed == [(r.kind, r.axes, r.bytes) for r in ran.plan.collectives()]
    for name, spec in outputs.items():
        program = ran.plan.stages[0].program
        port = next(p for p in program.outputs if p.name == name)
        promised = Sharding.of(mesh, spec, 3)
        assert carry(port.sharding, program.mesh) == carry(promised, program.mesh)
        assert has_same_layout(port.sharding, promised, port.type.shape)


def compare(case: Case, **engine: Callable[[Mesh], Engine]) -> Ran:
    """Compare a graph and its gradients on a mesh with one simulated device."""
    graph, mesh, inputs, outputs, roles = case
    values, wanted = values_for(graph), tuple(value.name for value in graph.inputs)
    ran = run(
        graph, mesh, values, inputs, outputs=outputs, differentiated=wanted, **roles, **engine
    )
    for name, value in on_one_device(graph, values, wanted).items():
        np.testing.assert_allclose(ran.outputs[name], value, RTOL, ATOL, err_msg=name)
    return ran


@given(cases(), st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_order_of_annotations(case: Case, random: object) -> None:
    graph, mesh, inputs, outputs, roles = case
    values = values_for(graph)
    shuffled = list(inputs.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    backwards = {role: names[::-1] for role, names in roles.items()}
    one = run(graph, mesh, values, inputs, outputs=outputs, **roles)
    two = run(graph, mesh, values, dict(shuffled), outputs=outputs, **backwards)
    assert str(one.plan) == str(two.plan)


@settings(max_examples=scaled(40))
@given(
    st.lists(
        st.sampled_from(["linear", "bias", "relu", "residual", "swap"]), min_size=1, max_size=2
    ),
    st.sampled_from(MESHES[:3]),
    st.data(),
)
def test_choice_is_the_cheapest_of_all(steps: list[str], mesh: Mesh, data: st.DataObject) -> None:
    builder = Builder()
    x = builder.input(TensorType((8, 8, 8), F64), "x")
    for number, step in enumerate(steps):
        x = STEPS[step](x, builder, number)
    graph = builder.build({"y": x})
    arriving = {}
    for value in graph.inputs:
        spec = data.draw(specs(mesh, value.type.rank))
        if fits(mesh, spec, value.type.shape):
            arriving[value.name] = Sharding.of(mesh, spec, value.type.rank)
    given_ = find_constraints(graph, mesh, {n: Layout(s) for n, s in arriving.items()})
    resharder = Resharder(mesh, SIMULATED)
    candidates = collect(graph, given_)
    objective = Objective(graph, given_, candidates, MovePrices(resharder))
    sizes = objective.domains
    if np.prod(np.array(sizes, float)) > 20_000:
        return
    best = min(
        sum(float(t.costs[tuple(values[v] for v in t.variables)]) for t in objective.list_tables())
        for values in itertools.product(*map(range, sizes))
    )
    choice = choose(graph, given_, candidates, MovePrices(resharder))
    assert choice.is_exact
    assert choice.price * PRICE_UNIT == best
