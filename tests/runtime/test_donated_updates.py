"""An update of AdamW may take the memory of what is given up, and nothing that others hold changes."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.cost.storages import Storages
from mithril.engine.reuse import find_overwritten, reuse_donated
from mithril.errors import BackendError
from mithril.ir import Builder
from mithril.mesh import Mesh, Sharding
from mithril.ops import Add
from mithril.ops.collective import AllGather
from mithril.ops.optimizer import AdamWStep
from mithril.plan import Execution, Port, Program
from mithril.types import DType, TensorType

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE

ALL = ["numpy", *BACKENDS]
SHAPES = {"a": (4, 6), "b": (6,), "c": (5, 2)}


def update(p, g, m, v, rate, count):
    made = {n: ops.adamw_step(p[n], g[n], m[n], v[n], rate, count, weight_decay=0.1) for n in p}
    return tuple({n: made[n][i] for n in p} for i in range(3))


def values(seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {n: rng.uniform(0.1, 1, shape).astype(np.float32) for n, shape in SHAPES.items()}
        for _ in range(4)
    ]


def expected(trees, rate, count):
    """Kingma and Ba (2015), algorithm 1, with the decay of Loshchilov and Hutter (2019)."""
    p, g, m, v = trees
    m = {n: 0.9 * m[n] + 0.1 * g[n] for n in p}
    v = {n: 0.999 * v[n] + 0.001 * g[n] ** 2 for n in p}
    return (
        {
            n: p[n]
            - rate
            * (m[n] / (1 - 0.9**count) / (np.sqrt(v[n] / (1 - 0.999**count)) + 1e-8) + 0.1 * p[n])
            for n in p
        },
        m,
        v,
    )


def close(found, wanted) -> None:
    for tree, other in zip(found, wanted, strict=True):
        for n, x in tree.items():
            np.testing.assert_allclose(x.numpy(), other[n], *TOLERANCE["float32"], err_msg=n)


def given(backend: ml.Backend, spec: P | None = None) -> list[dict[str, ml.Array]]:
    said = {} if spec is None else {"sharding": spec}
    return [{n: backend.array(x, **said) for n, x in tree.items()} for tree in values()]


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("spec", [None, P("data")], ids=str)
def test_three_updates_of_what_is_given_up(backend: str, spec: P | None) -> None:
    """With parameters split over two devices: 5 rows, too, which do not divide."""
    backend = opened(backend, **({} if spec is None else {"data": 2}))
    step = ml.jit(update, backend=backend, donate=(0, 2, 3))
    (p, g, m, v), (q, h, n, w) = given(backend, spec), values()
    for number in range(1, 4):
        before = p
        p, m, v = step(p, g, m, v, 0.1, backend.array(np.int32(number)))
        q, n, w = expected((q, h, n, w), 0.1, number)
        close((p, m, v), (q, n, w))
        with pytest.raises(BackendError, match="donated"):
            before["a"].numpy()
    close([g], [h])


@pytest.mark.parametrize("backend", ALL)
def test_what_is_not_given_up_stays_as_it_is(backend: str) -> None:
    backend = opened(backend)
    arrays = given(backend)
    for donate in ((), (0,), (2, 3)):
        trees = [tree if i not in donate else given(backend)[i] for i, tree in enumerate(arrays)]
        found = ml.jit(update, backend=backend, donate=donate)(*trees, 0.1, 3)
        close(found, expected(values(), 0.1, 3))
        close(arrays, values())


HOLD = [
    lambda x: x[:2],
    lambda x: x.reshape(-1, 1),
    lambda x: ml.jit(lambda x: x)(x) if isinstance(x, ml.Array) else x,
    lambda x: x.numpy() if isinstance(x, ml.Array) else x,
    lambda x: x.addressable_shards[0].data if isinstance(x, ml.Array) else x,
]


@pytest.mark.parametrize("backend", ALL)
def test_what_others_hold_stays_as_it_is(backend: str) -> None:
    backend = opened(backend)
    step = ml.jit(update, backend=backend, donate=(0, 2, 3))
    p, g, m, v = given(backend)
    p, m, v = step(p, g, m, v, 0.1, 1)
    for number, hold in enumerate(HOLD):
        held = [{n: hold(x) for n, x in tree.items()} for tree in (p, m, v)]
        kept = [{n: x.numpy().copy() for n, x in tree.items()} for tree in (p, m, v)]
        p, m, v = step(p, g, m, v, 0.1, number + 2)
        for tree, old in zip(held, kept, strict=True):
            for n, x in tree.items():
                now = x.numpy() if isinstance(x, ml.Array) else x
                np.testing.assert_array_equal(now, hold(old[n]), err_msg=f"{number} {n}")
        assert not np.array_equal(p["a"].numpy(), kept[0]["a"])
        del held


@pytest.mark.parametrize("backend", ALL)
def test_an_array_of_the_user_is_never_written_to(backend: str) -> None:
    backend = opened(backend)
    mine = values()
    p, g, m, v = ({n: backend.array(x) for n, x in tree.items()} for tree in mine)
    found = ml.jit(update, backend=backend, donate=(0, 1, 2, 3))(p, g, m, v, 0.1, 1)
    close(found, expected(values(), 0.1, 1))
    for tree, other in zip(mine, values(), strict=True):
        for n, x in tree.items():
            np.testing.assert_array_equal(x, other[n])


@pytest.mark.parametrize("number", [0.1, np.float32(0.1)])
def test_numbers_are_taken_in_float32(number: object) -> None:
    """A learning rate rounded to 16 bits would be another one."""
    backend = opened("numpy")
    x = backend.array(np.ones(3), dtype="float16")
    zeros = backend.zeros(3)
    new = ops.adamw_step(x, x, zeros, zeros, number, 1, eps=0.0)[0]
    assert new.dtype == "float16"
    np.testing.assert_allclose(new.numpy(), 0.9, *TOLERANCE["float16"])


def test_what_a_failed_run_may_have_written_over_is_known() -> None:
    backend = opened("numpy")
    plan = ml.jit(update, backend=backend).plan(*given(backend), 0.1, 1)
    names = [port.name for port in plan.only_stage.program.inputs]
    donated = [i for i, name in enumerate(names) if name[0] in "pgm"]
    found = [names[i] for i in find_overwritten(plan.only_stage.program, donated)]
    assert found == ["p.a", "p.b", "p.c", "m.a", "m.b", "m.c"]


@pytest.mark.parametrize("is_read_before", [True, False])
def test_what_a_collective_sends_is_written_over_when_that_was_waited_for(
    is_read_before: bool,
) -> None:
    """Others may read it as long as nobody needs what the collective makes."""
    mesh, builder = Mesh(data=2), Builder()
    type = TensorType((4,), DType("float32"))
    p, g, m, v = (builder.input(type, name) for name in "pgmv")
    rate, count = (
        builder.input(TensorType((), DType("float32")), name) for name in ("rate", "count")
    )
    (whole,) = builder.apply(AllGather(("data",), 0, 2), p)
    double = builder.apply(Add(), whole, whole)[0] if is_read_before else None
    new = builder.apply(AdamWStep(0.9, 0.999, 1e-8, 0.1), p, g, m, v, rate, count)[0]
    double = builder.apply(Add(), whole, whole)[0] if double is None else double
    graph = builder.build({"new": new, "double": double})
    split = Sharding.of(mesh, P("data"), 1)
    ports = [Port(name, type.with_shape((8,)), split) for name in "pgmv"]
    ports += [Port(name, rate.type, Sharding.of(mesh, P(), 0)) for name in ("rate", "count")]
    leaving = (Port("new", ports[0].type, split), Port("double", ports[0].type, split))
    program = Program(mesh, graph, tuple(ports), leaving)
    assert find_overwritten(program, [0, 2]) == ([0, 2] if is_read_before else [2])


def test_a_program_that_runs_is_split_as_its_parameters_are() -> None:
    backend = opened("numpy", data=2)
    plan = ml.jit(update, backend=backend).plan(*given(backend, P("data")), 0.1, 1)
    assert not plan.collectives()


@pytest.mark.parametrize("in_place", [False, True])
def test_memory_is_predicted_as_it_is_taken(in_place: bool) -> None:
    """Six results of three parameters are new memory only where they are not made in place."""
    plan = ml.jit(update, backend=opened("numpy")).plan(*given(opened("numpy")), 0.1, 1)
    program = plan.only_stage.program
    donated = [i for i, port in enumerate(program.inputs) if port.name[0] in "pm"]
    graph = reuse_donated(program, donated).graph
    found = Storages(graph, Execution(adds_in_place=in_place))
    taken = [found.of[value] for value in graph.outputs.values()]
    shared = {x.name.partition(".")[0] for x in graph.inputs if found.of[x] in taken}
    assert shared == ({"p", "m"} if in_place else set())


def test_numpy_writes_into_what_is_given_up_and_into_nothing_else() -> None:
    """In blocks: an array of two and a half; the second time nobody but the trees has them."""
    backend, shape = ml.NumpyBackend(), (5 << 14,)
    rng = np.random.default_rng(0)
    trees = [{"a": backend.array(rng.uniform(0.1, 1, shape).astype(np.float32))} for _ in range(4)]
    wanted = [{n: x.numpy().copy() for n, x in tree.items()} for tree in trees]
    step = ml.jit(update, backend=backend, donate=(0, 2, 3))
    p, g, m, v = trees
    p, m, v = step(p, g, m, v, 0.1, backend.array(np.int32(1)))
    seen = m["a"].shards[0]  # somebody else has it, so that it has to stay as it is
    kept = seen.copy()
    memory = [tree["a"].shards[0].__array_interface__["data"][0] for tree in (p, m, v)]
    p, m, v = step(p, g, m, v, 0.1, backend.array(np.int32(2)))
    now = [tree["a"].shards[0].__array_interface__["data"][0] for tree in (p, m, v)]
    assert [a == b for a, b in zip(memory, now, strict=True)] == [True, False, True]
    assert (seen == kept).all()
    once = expected(wanted, 0.1, 1)
    close((p, m, v), expected((once[0], wanted[1], *once[1:]), 0.1, 2))
