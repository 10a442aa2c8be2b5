"""Sizes that do not divide: padding is added, cut off, and never reaches a result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh, P, Sharding
from mithril.partition.padding import extent, identity_of, mask, stretch, trim
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

from tests.graphs import Ran, on_one_device, run, values_for
from tests.tolerances import TOLERANCE

F32, I32 = DType.float32, DType.int32
counts = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def evaluate(graph: Graph, **values: np.ndarray) -> dict[str, np.ndarray]:
    """Run a local graph on one device."""
    mesh = Mesh()

    def ports(named: dict) -> tuple[Port, ...]:
        return tuple(
            Port(n, v.type, Sharding.replicated(mesh, v.type.rank)) for n, v in named.items()
        )

    program = Program(mesh, graph, ports({v.name: v for v in graph.inputs}), ports(graph.outputs))
    results = LockstepExecutable(program, NUMPY_KERNELS, np)(
        [[values[v.name]] for v in graph.inputs]
    )
    return {name: part for name, (part,) in zip(graph.outputs, results, strict=True)}


@given(st.integers(0, 12), counts)
def test_stretching_and_trimming_undo_each_other(size: int, cuts: list[int]) -> None:
    builder = Builder()
    x = builder.input(TensorType((2, size, 3), I32), "x")
    wide = stretch(x, 1, cuts)
    graph = builder.build({"wide": wide, "back": trim(wide, 1, size, cuts)})
    values = np.arange(1, 6 * size + 1, dtype=np.int32).reshape(2, size, 3)
    found = evaluate(graph, x=values)
    np.testing.assert_array_equal(found["back"], values)
    assert found["wide"].shape[1] % int(np.prod(cuts)) == 0


@given(st.integers(1, 12), counts)
def test_parts_of_a_stretched_dimension_are_the_boxes(size: int, cuts: list[int]) -> None:
    names = ("a", "b", "c")[: len(cuts)]
    mesh = Mesh(dict(zip(names, cuts, strict=True)))
    sharding = Sharding.of(mesh, P(names), 1)
    builder = Builder()
    x = builder.input(TensorType((size,), I32), "x")
    indices = [builder.input(TensorType((), I32), name) for name in names]
    here = extent(indices, cuts, size)
    graph = builder.build({"wide": stretch(x, 0, cuts), "start": here.start, "count": here.count})
    values = np.arange(1, size + 1, dtype=np.int32)
    (local,) = sharding.local_shape((size,))
    for device in range(mesh.size):
        where = {n: np.asarray(i, np.int32) for n, i in mesh.coordinates(device).items()}
        found = evaluate(graph, x=values, **where)
        (box,) = sharding.box(device, (size,))
        part = found["wide"][device * local : (device + 1) * local]
        np.testing.assert_array_equal(part[: found["count"]], values[box])
        assert found["count"] == box.stop - box.start
        if found["count"]:
            assert found["start"] == box.start


def test_a_mask_selects() -> None:
    builder = Builder()
    x = builder.input(TensorType((2, 3), F32), "x")
    count = builder.input(TensorType((), I32), "count")
    graph = builder.build({"y": mask(x, 1, count, 0)})
    values = np.array([[1, 2, np.inf], [3, 4, np.nan]], np.float32)
    found = evaluate(graph, x=values, count=np.asarray(2, np.int32))
    np.testing.assert_array_equal(found["y"], [[1, 2, 0], [3, 4, 0]])


def test_identities_change_nothing() -> None:
    for dtype in (F32, I32):
        values = np.asarray([-7, 5]).astype(dtype.numpy)
        for reduction, function in (("sum", np.sum), ("prod", np.prod), ("max", np.max)):
            more = np.append(values, np.asarray(identity_of(reduction, dtype), dtype.numpy))
            assert function(more) == function(values)
        more = np.append(values, np.asarray(identity_of("min", dtype), dtype.numpy))
        assert np.min(more) == np.min(values)
    for reduction, identity in (("sum", False), ("max", False), ("min", True), ("prod", True)):
        assert identity_of(reduction, DType.bool_) is identity
    assert np.isnan(identity_of("top", F32))  # comes last
    assert identity_of("top", I32) == np.iinfo(np.int32).min


# ------------------------------------------------------------------ whole plans


def checked(graph: Graph, mesh: Mesh, inputs: dict[str, P], wanted: tuple[str, ...]) -> Ran:
    values = values_for(graph)
    ran = run(graph, mesh, values, inputs, differentiated=wanted, compute=list(inputs))
    rtol, atol = TOLERANCE["float32"]
    for name, expected in on_one_device(graph, values, wanted).items():
        np.testing.assert_allclose(ran.outputs[name], expected, rtol=rtol, atol=atol, err_msg=name)
    assert ran.executed == [(r.kind, r.axes, r.bytes) for r in ran.plan.collectives()]
    return ran


def classifier(batch: int, features: int, classes: int) -> Graph:
    """A linear layer, a norm, logits and their mean cross-entropy."""
    builder = Builder()

    def parameter(name: str, *shape: int) -> Tensor:
        return builder.input(TensorType(shape, F32), name)

    x, targets = (
        parameter("x", batch, features),
        builder.input(TensorType((batch,), I32), "targets"),
    )
    hidden = ops.einsum("bi,oi->bo", x, parameter("up", features, features)) + parameter(
        "bias", features
    )
    normed = ops.layer_norm(hidden, parameter("gain", features), parameter("shift", features))
    logits = ops.einsum("bi,oi->bo", ops.gelu(normed), parameter("head", classes, features))
    return builder.build({"loss": ops.mean(ops.cross_entropy(logits, targets)), "logits": logits})


PARAMETERS = ("up", "bias", "gain", "shift", "head")


def test_a_batch_of_10_over_4() -> None:
    graph = classifier(10, 8, 6)
    ran = checked(graph, Mesh(data=4), {"x": P("data"), "targets": P("data")}, (*PARAMETERS, "x"))
    assert ran.rows("forward") == []
    numbers = 8 * 8 + 3 * 8 + 6 * 8 + 1  # and the loss
    assert ran.rows("backward") == [("all_reduce", ("data",), 4 * numbers)]
    logits = next(p for p in ran.plan.stages[0].program.outputs if p.name == "logits")
    assert logits.sharding.local_shape((10, 6)) == (3, 6)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
def test_a_batch_smaller_or_just_larger_than_the_mesh(batch: int) -> None:
    inputs = {"x": P("data"), "targets": P("data")}
    checked(classifier(batch, 8, 6), Mesh(data=4), inputs, (*PARAMETERS, "x"))


def test_a_dimension_cut_twice() -> None:
    inputs = {"x": P(("data", "tensor")), "targets": P("data")}
    checked(classifier(10, 8, 6), Mesh(data=4, tensor=2), inputs, (*PARAMETERS, "x"))


def test_padding_that_holds_nan_reaches_nothing() -> None:
    """Padded rows are zeros: their logarithm is -inf, and 0 / 0 is nan."""
    builder = Builder()
    x = builder.input(TensorType((5, 3), F32), "x")
    scaled = ops.log(x) / x
    outputs = {"sum": ops.sum(scaled), "max": ops.max(scaled), "min": ops.min(scaled, 0)}
    graph = builder.build({**outputs, "product": ops.einsum("bi,bj->ij", scaled, x)})
    values = {"x": np.random.default_rng(0).uniform(1, 2, (5, 3)).astype(np.float32)}
    found = run(graph, Mesh(data=4), values, {"x": P("data")}).outputs
    expected = run(graph, Mesh(), values).outputs
    rtol, atol = TOLERANCE["float32"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


def test_padded_bytes_are_counted() -> None:
    builder = Builder()
    x = builder.input(TensorType((10, 3), F32), "x")
    graph = builder.build({"y": x * 2.0})
    ran = run(graph, Mesh(data=4), values_for(graph), {"x": P("data")}, outputs={"y": P()})
    assert ran.rows("forward") == [("all_gather", ("data",), 4 * 12 * 3)]
    assert ran.executed == ran.rows("forward")


def test_uneven_splits_are_not_chosen_where_they_are_refused() -> None:
    from mithril.compiler import PlanOptions, Request, Target, make_plan
    from mithril.sharding import Layout

    builder = Builder()
    x = builder.input(TensorType((8, 4), F32), "x")
    weight = builder.input(TensorType((6, 4), F32), "weight")
    graph = builder.build({"y": ops.einsum("bi,oi->bo", x, weight)})
    mesh = Mesh(data=4)
    target = Target("numpy", mesh, frozenset(KERNELS))
    layouts = {"weight": Layout(computed=Sharding.of(mesh, P("data"), 2))}
    for pads, local in ((True, (8, 2)), (False, (8, 6))):
        plan = make_plan(graph, Request(layouts), target, PlanOptions(pads=pads))
        (port,) = plan.outputs
        assert port.sharding.local_shape((8, 6)) == local
