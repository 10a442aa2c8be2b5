"""A cache that is given up is written to where it lies, and nothing that others hold changes."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.engine.reuse import find_overwritten, reuse_donated
from mithril.errors import BackendError, OptionError, ShapeError
from mithril.ops import DynamicUpdateSlice

from tests.conformance.engines import BACKENDS, opened

ALL = ["numpy", *BACKENDS]
SHAPE = (2, 8, 3)


@ml.layer
def Write(cache, new, position):  # noqa: N802
    return mnp.dynamic_update_slice(cache, new, position, axis=1)


def compiled_on(backend: ml.Backend) -> ml.CompiledModel:
    model = ml.Model()
    model |= Write()(cache="cache", new="new", position="position", output="next")
    return ml.compile(model, backend)


def step(compiled, cache, number: int, **options):
    backend = compiled.backend
    inputs = {"cache": cache, "new": np.full((2, 1, 3), number + 1, np.float32)}
    inputs["position"] = backend.array(np.int32(number))
    return compiled.evaluate({}, inputs, donate="cache", **options)["next"]


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("spec", [None, P("data"), P(None, "data")], ids=str)
def test_a_cache_is_written_position_by_position_by_one_plan(backend: str, spec) -> None:
    backend = opened(backend, **({} if spec is None else {"data": 2}))
    compiled = compiled_on(backend)
    cache = backend.zeros(*SHAPE, sharding=P() if spec is None else spec)
    expected = np.zeros(SHAPE)
    for number in range(10):  # the last ones are moved in
        before, cache = cache, step(compiled, cache, number)
        expected[:, min(number, 7)] = number + 1
        with pytest.raises(BackendError, match=r"donated to evaluate\(\) as 'cache'"):
            before.numpy()
        np.testing.assert_array_equal(cache.numpy(), expected)
    assert compiled.recompiles == 1
    assert not compiled.plan.collectives()


HOLD = [
    lambda x: x[:, :4],
    lambda x: x.reshape(2, 24),
    lambda x: ml.jit(lambda x: x)(x) if isinstance(x, ml.Array) else x,
    lambda x: x.numpy() if isinstance(x, ml.Array) else x,
    lambda x: x.addressable_shards[0].data if isinstance(x, ml.Array) else x,
]


@pytest.mark.parametrize("backend", ALL)
def test_what_others_hold_stays_as_it_is(backend: str) -> None:
    backend = opened(backend)
    compiled = compiled_on(backend)
    cache = step(compiled, backend.zeros(*SHAPE), 0)
    kept = cache.numpy().copy()
    for number, hold in enumerate(HOLD):
        held = hold(cache)
        cache = step(compiled, cache, number + 1)
        values = held.numpy() if isinstance(held, ml.Array) else held
        np.testing.assert_array_equal(values, hold(kept), err_msg=str(number))
        kept = cache.numpy().copy()
        assert (kept[:, number + 1] == number + 2).all()
        del held


@pytest.mark.parametrize("backend", ALL)
def test_an_array_of_the_user_is_never_written_to(backend: str) -> None:
    backend = opened(backend)
    compiled = compiled_on(backend)
    mine = np.zeros(SHAPE, np.float32)
    cache = step(compiled, backend.array(mine), 0)
    cache = step(compiled, cache, 1)
    assert not mine.any()
    assert (cache.numpy()[:, :2] == [[[1] * 3, [2] * 3]]).all()


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS[:2], BACKENDS[-1]])
def test_the_memory_is_that_of_the_array_given_up(backend: str) -> None:
    backend = opened(backend)
    compiled = compiled_on(backend)
    shape = (2, 1 << 18, 3)
    cache = backend.zeros(*shape)
    new, places = np.ones((2, 1, 3), np.float32), [backend.array(np.int32(i)) for i in range(4)]
    pointers = []
    for place in places:
        inputs = {"cache": cache, "new": new, "position": place}
        cache = compiled.evaluate({}, inputs, donate="cache")["next"]
        pointers.append(pointer(cache))
    assert len(set(pointers[1:])) == 1


def pointer(array) -> int:
    handle = array.shards
    if isinstance(handle, list):
        host = np.array(handle[0], copy=False)
        return int(host.__array_interface__["data"][0])
    if hasattr(handle, "data_ptr"):
        return int(handle.data_ptr())
    return int(handle.unsafe_buffer_pointer())


def test_every_call_says_by_itself_what_it_gives_up() -> None:
    backend = opened("numpy")
    compiled = compiled_on(backend)
    cache, new = backend.zeros(*SHAPE), backend.ones(2, 1, 3)
    inputs = {"cache": cache, "new": new, "position": backend.array(np.int32(0))}
    compiled.evaluate({}, inputs)
    compiled.evaluate({}, inputs, donate=["new"])
    assert not cache.numpy().any()
    with pytest.raises(BackendError, match="as 'new'"):
        new.numpy()
    compiled.evaluate({}, {**inputs, "new": backend.ones(2, 1, 3)}, donate="inputs")
    with pytest.raises(BackendError, match="as 'cache'"):
        cache.numpy()
    assert compiled.recompiles == 1
    with pytest.raises(OptionError, match="donate='caches' is no argument"):
        compiled.evaluate({}, inputs, donate="caches")


def test_parameters_may_be_given_up() -> None:
    backend = opened("numpy")
    model = ml.Model()
    model |= ml.Linear(2, name="a")(input="x", output="y")
    compiled = ml.compile(model, backend, donate="params")
    params = compiled.randomize_params(0)
    compiled.evaluate(params, {"x": np.ones((1, 2))}, donate="x")
    with pytest.raises(BackendError, match=r"as 'a\.weight'"):
        params["a.weight"].numpy()


def test_what_a_failed_run_may_have_written_over_is_lost() -> None:
    backend = opened("numpy")

    @ml.jit(donate="cache")
    def write_then_look_up(cache, new, ids):
        written = mnp.dynamic_update_slice(cache, new, 0, axis=0)
        return written, mnp.take(new, ids)

    cache, new = backend.zeros(4), backend.ones(1)
    with pytest.raises(ShapeError, match="meets id 9"):
        write_then_look_up(cache, new, backend.array(np.array([9], np.int32)))
    with pytest.raises(BackendError, match="was donated"):
        cache.numpy()
    assert new.numpy() == 1


def plan_of(function, *shapes):
    backend = opened("numpy")
    return ml.jit(function).plan(*(backend.zeros(*shape) for shape in shapes))


def overwritten(function) -> list[int]:
    (stage,) = plan_of(function, (4, 2), (1, 2)).stages
    found = find_overwritten(stage.program, [0])
    marked = reuse_donated(stage.program, [0]).graph.nodes
    in_place = [n for n in marked if isinstance(n.op, DynamicUpdateSlice) and n.op.in_place]
    assert bool(in_place) >= bool(found)
    assert not any(getattr(node.op, "in_place", False) for node in stage.program.graph.nodes)
    return found


def write(x, new, at=0):
    return mnp.dynamic_update_slice(x, new, at, axis=0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (write, [0]),
        (lambda x, new: write(write(x, new), new, 2), [0]),
        (lambda x, new: (write(x, new), x), []),
        (lambda x, new: write(x, new) + x.sum(), []),
        (lambda x, new: write(x, mnp.dynamic_slice(x, 1, 1, axis=0) + new), [0]),
        (lambda x, new: (write(x, new), mnp.dynamic_slice(x, 1, 1, axis=0)), []),
        (lambda x, new: write(x * 2, new), []),
        (lambda x, new: write(x, x), []),
    ],
)
def test_only_what_nobody_reads_later_is_overwritten(function, expected: list[int]) -> None:
    assert overwritten(function) == expected
