"""No two layers, repetitions, steps or parts draw the same masks, however they are nested."""

from __future__ import annotations

from functools import cache
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.ops import advance_seed, dropout, split_seed

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.profiles import quick

STEPS, ROWS, WIDTH = 3, 8, 16
OUTER, INNER = 4, 2
SHAPE = (ROWS, WIDTH)


@ml.layer(parameters=("w",))
def Keep(x, masked):  # noqa: N802
    """Add what is masked, times a parameter whose gradient is a sum over the rows then."""
    return x + masked * ml.parameter("w", masked.shape[-1:], ml.Constant(0.0))


@ml.layer()
def Total(x):  # noqa: N802
    """Sum everything up."""
    return mnp.sum(x)


def model() -> ml.Model:
    """Return a loop of a loop with two random layers."""
    inner = ml.Model()
    for number in range(2):
        inner |= ml.Dropout(0.5, name=f"drop_{number}")(input="one", output=f"masked_{number}")
    inner |= Keep(name="keep_0")(x="x", masked="masked_0", output="h")
    inner |= Keep(name="keep_1")(x="h", masked="masked_1", output="y")
    outer = ml.Model()
    outer |= ml.Repeat(inner, INNER, carry={"x": "y"}, name="inner")(x="x", one="one", y="y")
    made = ml.Model()
    made |= ml.Repeat(outer, OUTER, carry={"x": "y"}, name="outer")(x="x", one="one", y="y")
    made |= Total(name="end")(x="y", output="loss")
    return made


def draw_masks(backend: ml.Backend, optimizer: Any, **options: Any) -> np.ndarray:
    """Return the masks of all steps, layers and repetitions, and of all parts of a mesh axis.

    What is masked is 2 ** row, so that a sum over rows tells each.
    """
    spec, made = P(backend.mesh.names[0]) if backend.mesh.names else P(), model()
    if "pipeline" in options:
        made.stage("outer", [0, 1])
        made.stage("end", 1)
    shapes = {name: ml.TensorSpec(SHAPE, sharding=spec) for name in ("x", "one")}
    step = ml.train_step(made, backend, optimizer, shapes=shapes, **options)
    weights = np.broadcast_to(2.0 ** np.arange(ROWS)[:, None], SHAPE).astype(np.float32)
    batch = {"x": np.zeros(SHAPE, np.float32), "one": weights}
    state, sums = step.init(seed=5), []
    for _ in range(STEPS):
        state, _ = step(state, batch)
        sums.append([-state.params[f"outer.inner.keep_{i}.w"].numpy() for i in range(2)])
    drawn = np.diff(np.array(sums), axis=0, prepend=0.0) / 2.0  # what stays is doubled
    numbers = drawn.astype(np.int64)
    np.testing.assert_array_equal(numbers, drawn)
    return numbers[..., None, :] >> np.arange(ROWS)[:, None] & 1


@cache
def on_one_device() -> np.ndarray:
    return draw_masks(ml.NumpyBackend(), ml.optim.sgd(1.0))


def check_apart(masks: np.ndarray, size: int) -> None:
    """Check that masks of some size are all different, and drop half of what they are about."""
    rows = masks.reshape(-1, size)
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert abs(rows.mean() - 0.5) < 0.05


def test_masks_of_nested_loops_and_of_steps_are_all_different() -> None:
    masks = on_one_device()
    assert masks.shape == (STEPS, 2, OUTER, INNER, *SHAPE)
    check_apart(masks, ROWS * WIDTH)


STRATEGIES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "data": ({"data": 2}, {}),
    "uneven": ({"data": 3}, {"zero": 1}),
    "zero 3, accumulate": ({"data": 2}, {"zero": 3, "accumulate": 2}),
    "stages": (
        {"data": 2, "pipeline": 2},
        {"pipeline": ml.PipelineOptions(schedule="1f1b", microbatch_size=4)},
    ),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masks_are_those_of_one_device(strategy: str) -> None:
    mesh, options = STRATEGIES[strategy]
    made = draw_masks(ml.NumpyBackend(ml.Mesh(**mesh)), ml.optim.sgd(1.0), **options)
    np.testing.assert_array_equal(made, on_one_device())


@quick(lambda name: name in (LOCKSTEP, "mlx"))
@pytest.mark.parametrize("name", BACKENDS)
def test_masks_are_the_same_on_every_backend(name: str) -> None:
    made = draw_masks(opened(name, data=2), ml.optim.sgd(1.0), accumulate=2)
    np.testing.assert_array_equal(made, on_one_device())


def test_parts_that_train_alone_draw_masks_of_their_own() -> None:
    """Of a part, a layer and a repetition none is that of another part, layer and repetition."""
    masks = draw_parts(ml.NumpyBackend(ml.Mesh(pod=2, data=2)))
    assert masks.shape == (STEPS, 2, 2, OUTER, INNER, *SHAPE)
    first, second = masks[:, :, 0, ..., : ROWS // 2, :], masks[:, :, 1, ..., ROWS // 2 :, :]
    check_apart(np.stack([first, second]), ROWS // 2 * WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_parts_draw_the_same_on_every_backend(name: str) -> None:
    wanted = draw_parts(ml.NumpyBackend(ml.Mesh(pod=2)))
    np.testing.assert_array_equal(draw_parts(opened(name, pod=2)), wanted)


def draw_parts(backend: ml.Backend) -> np.ndarray:
    return draw_masks(backend, ml.optim.diloco(ml.optim.sgd(1.0), every=100))


def test_seeds_are_split_again_and_again_without_meeting() -> None:
    seed = ml.NumpyBackend().array(0, dtype="uint32")
    first = split_seed(seed, 40)
    found = [first.numpy(), split_seed(seed, 40, salt=1).numpy()]
    found += [split_seed(first[i], 40).numpy() for i in range(40)]
    found += [split_seed(advance_seed(seed), 40).numpy()]
    every = np.concatenate(found)
    assert len(np.unique(every)) == every.size


def test_a_scan_draws_anew_where_it_is_given_seeds() -> None:
    @ml.layer()
    def Steps(x):  # noqa: N802
        def draw(carry, seed):
            masked = dropout(x, seed, 0.5)
            return carry + masked, masked

        return ml.scan(draw, x, split_seed(ml.seed(), 5))[1]

    compiled = ml.compile(Steps(), ml.NumpyBackend())
    masks = compiled.evaluate({}, {"x": np.ones(SHAPE, np.float32)}, seed=1)["output"].numpy()
    check_apart(masks > 0, ROWS * WIDTH)
