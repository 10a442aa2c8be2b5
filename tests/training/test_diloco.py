"""DiLoCo: parts of an axis train as if each were alone, and agree on parameters now and then."""

from __future__ import annotations

import re

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.errors import MeshError, OptionError, PlanError, ShapeError, ShardingError
from mithril.runtime.training import DilocoStep
from mithril.trees import flatten

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE
from tests.training.test_char_gpt import BATCH as GPT_BATCH
from tests.training.test_char_gpt import LENGTH, LETTERS, RATE, TEXT, char_gpt

EVERY, STEPS, BATCH = 3, 7, 8
RTOL, ATOL = TOLERANCE["float32"]
SPLIT = P(("pod", "data"))
SMALL = {"partition_objective": "memory_usage"}
SPACES = ("data", "tensor", "fully_sharded", "annotations")


def make_model() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(4, name="up")(input="x", output="h")
    model += ml.Relu(name="act")(input="h", output="a")
    model += ml.Linear(1, name="down")(input="a", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


def draw_batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.standard_normal((BATCH, 3), np.float32),
            "t": rng.standard_normal((BATCH, 1), np.float32),
        }
        for _ in range(STEPS)
    ]


def make_shapes(split: ml.P = SPLIT, batch: int = BATCH) -> dict[str, ml.TensorSpec]:
    return {
        "x": ml.TensorSpec((batch, 3), sharding=split),
        "t": ml.TensorSpec((batch, 1), sharding=split),
    }


def open_step(backend: ml.Backend, **options: object) -> DilocoStep:
    rule = ml.optim.diloco(ml.optim.adamw(1e-2), every=EVERY)
    return ml.train_step(make_model(), backend, rule, shapes=make_shapes(), **options)


def train_by_hand() -> tuple[list[float], dict[str, np.ndarray]]:
    """Return losses and parameters of two models that are trained alone and averaged."""
    backend, outer = ml.NumpyBackend(), ml.optim.sgd(0.7, momentum=0.9, nesterov=True)
    shapes = {"x": (BATCH // 2, 3), "t": (BATCH // 2, 1)}
    step = ml.train_step(make_model(), backend, ml.optim.adamw(1e-2), shapes=shapes)
    states = [step.init(seed=0) for _ in range(2)]
    anchor = {n: backend.array(x.numpy()) for n, x in states[0].params.items()}
    kept, losses = outer.init(anchor), []
    for number, batch in enumerate(draw_batches(), 1):
        told = []
        for i in range(2):
            part = {n: np.split(x, 2)[i] for n, x in batch.items()}
            states[i], metrics = step(states[i], part)
            told.append(metrics.numbers()["loss"])
        losses.append(float(np.mean(told)))
        if number % EVERY == 0:
            slopes = {
                n: x - (states[0].params[n] + states[1].params[n]) / 2 for n, x in anchor.items()
            }
            anchor, kept = outer.apply(slopes, kept, anchor)
            for i in range(2):
                copies = {n: backend.array(x.numpy()) for n, x in anchor.items()}
                states[i] = states[i]._replace(params=type(states[i].params)(copies))
    return losses, {n: np.stack([s.params[n].numpy() for s in states]) for n in anchor}


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_parts_train_alone_and_meet(zero: int) -> None:
    check_training(ml.NumpyBackend(ml.Mesh(pod=2, data=2)), zero=zero)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_trains_so(name: str, zero: int) -> None:
    check_training(opened(name, pod=2, data=2), zero=zero)


@quick(lambda options: options in ({}, SMALL))
@pytest.mark.parametrize(
    "options", [{}, {"zero": 1}, SMALL, *({"partition_search_space": one} for one in SPACES)]
)
def test_a_search_lays_out_each_part(options: dict[str, object]) -> None:
    """Nothing is split over the axis, where a search for little memory would split the most."""
    step = check_training(ml.NumpyBackend(ml.Mesh(pod=2, data=2)), auto_partition=True, **options)
    assert step.plan.search is not None
    assert "pod" not in {axis for row in step.plan.collectives() for axis in row.axes}
    if options == SMALL:
        assert step.plan.specs["up.weight"].sharding.split_axes == ("data",)


def test_so_does_that_of_a_backend() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pod=2), auto_sharding=True)
    rule = ml.optim.diloco(ml.optim.adamw(1e-2), every=EVERY)
    step = ml.train_step(make_model(), backend, rule, shapes=make_shapes(P("pod")))
    assert step.plan.search is not None
    assert not step.plan.collectives()


def check_training(backend: ml.Backend, **options: object) -> DilocoStep:
    """Check that a step makes what models make that are trained alone and averaged."""
    step = open_step(backend, **options)
    state, losses = step.init(seed=0), []
    for batch in draw_batches():
        state, metrics = step(state, batch)
        losses.append(metrics.numbers()["loss"])
    wanted, params = train_by_hand()
    np.testing.assert_allclose(losses, wanted, RTOL, ATOL)
    for key, x in params.items():
        assert state.params[key].sharding.dims[0] == ("pod",)
        np.testing.assert_allclose(state.params[key].numpy(), x, RTOL, ATOL)
    assert state.step.item() == STEPS
    return step


def test_local_steps_are_silent_on_the_axis() -> None:
    step = open_step(ml.NumpyBackend(ml.Mesh(pod=2, data=2)))
    step.init(seed=0)
    assert {axis for row in step.plan.collectives() for axis in row.axes} == {"data"}
    rows = step.outer_plan.collectives()
    assert {row.kind for row in rows} == {"all_reduce"}
    assert {axis for row in rows for axis in row.axes} == {"pod"}
    plain = ml.train_step(
        make_model(), ml.NumpyBackend(ml.Mesh(pod=2, data=2)), ml.optim.adamw(1e-2),
        shapes=make_shapes(), metrics=(),
    )  # fmt: skip
    every_step = sum(row.bytes for row in plain.plan.collectives() if "pod" in row.axes)
    assert sum(row.bytes for row in rows) / EVERY <= 0.36 * every_step


def test_the_anchor_is_what_a_model_is_evaluated_with() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    step = open_step(backend)
    state = step.init(seed=0)
    for batch in draw_batches()[:EVERY]:
        state, _ = step(state, batch)
    compiled = ml.compile(make_model(), backend, shapes=make_shapes())
    loss = compiled.evaluate(state.optimizer.anchor, batch)["loss"]
    assert np.isfinite(loss.numpy())
    for name, x in state.params.items():
        for part in x.numpy():
            np.testing.assert_array_equal(part, state.optimizer.anchor[name].numpy())


def test_a_state_goes_on_after_it_was_saved(tmp_path) -> None:
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    first, batches = open_step(backend), draw_batches()
    state = first.init(seed=0)
    for batch in batches[:2]:
        state, _ = first(state, batch)
    ml.save(tmp_path / "state", state)
    again = open_step(backend)
    loaded = ml.load(tmp_path / "state", like=again.init(seed=1))
    for batch in batches[2:]:
        state, _ = first(state, batch)
        loaded, _ = again(loaded, batch)
    for name, x in state.params.items():
        np.testing.assert_array_equal(x.numpy(), loaded.params[name].numpy())


def test_steps_that_a_part_skips_count_for_all(tmp_path) -> None:
    """The gradients of one part overflow at first; outer steps stay due at the same time."""
    step = open_step(ml.NumpyBackend(ml.Mesh(pod=2, data=2)), loss_scale="dynamic")
    state, made = step.init(seed=0), []
    batches = draw_batches()
    batches[0]["t"][: BATCH // 2] *= 1e36
    for number, batch in enumerate(batches, 1):
        state, _ = step(state, batch)
        assert {int(part.data) for part in state.step.addressable_shards} == {number}
        if number == 2:
            ml.save(tmp_path / "state", state)
        made.append(state.optimizer.anchor["up.weight"].numpy())
    again = ml.load(tmp_path / "state", like=step.init(seed=1))
    for batch, anchor in zip(batches[2:], made[2:], strict=True):
        again, _ = step(again, batch)
        np.testing.assert_array_equal(again.optimizer.anchor["up.weight"].numpy(), anchor)
    small, large = state.loss_scale["loss_scale.scale"].numpy()
    assert small < large


def test_parts_draw_other_random_numbers() -> None:
    model = ml.Model()
    model |= ml.Dropout(0.5, name="drop")(input="x", output="h")
    model += ml.Linear(1, name="down")(input="h", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    backend = ml.NumpyBackend(ml.Mesh(pod=2))
    shapes = {n: ml.TensorSpec((8, k), sharding=P("pod")) for n, k in (("x", 16), ("t", 1))}
    rule = ml.optim.diloco(ml.optim.sgd(0.1), every=10)
    step = ml.train_step(model, backend, rule, shapes=shapes)
    batch = {"x": np.ones((8, 16), np.float32), "t": np.ones((8, 1), np.float32)}
    state, _ = step(step.init(seed=0), batch)
    weights = state.params["down.weight"].numpy()
    assert not np.array_equal(weights[0], weights[1])


@pytest.mark.slow
def test_two_parts_learn_as_much_with_a_tenth_of_the_bytes() -> None:
    """Half the default momentum: of 30 outer steps, 0.9 remembers the first third for too long."""
    backend = ml.NumpyBackend(ml.Mesh(pod=2))
    outer = ml.optim.sgd(0.7, momentum=0.5, nesterov=True)
    inner = ml.optim.adamw(RATE)
    steps = {
        "plain": open_gpt(backend, inner),
        "diloco": open_gpt(backend, ml.optim.diloco(inner, outer, every=10)),
    }
    losses = {name: np.mean(train_gpt(step)[-20:]) for name, step in steps.items()}
    assert abs(losses["diloco"] - losses["plain"]) <= 0.05 * losses["plain"]
    assert not steps["diloco"].plan.collectives(), "parts of one device are silent"
    every_step, every_tenth = (
        sum(row.bytes for row in plan.collectives())
        for plan in (steps["plain"].plan, steps["diloco"].outer_plan)
    )
    assert every_tenth / 10 <= 0.12 * every_step


def open_gpt(backend: ml.Backend, rule: object) -> DilocoStep:
    spec = ml.TensorSpec((GPT_BATCH, LENGTH), "int32", P("pod"))
    return ml.train_step(char_gpt(False), backend, rule, shapes={"ids": spec, "next": spec})


def train_gpt(step: DilocoStep) -> list[float]:
    """Return the losses of 300 steps."""
    ids = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
    starts = np.random.default_rng(5).integers(0, len(ids) - LENGTH - 1, (300, GPT_BATCH))
    state, found = step.init(seed=0), []
    for rows in starts:
        places = rows[:, None] + np.arange(LENGTH)
        state, metrics = step(state, {"ids": ids[places], "next": ids[places + 1]})
        found.append(metrics.numbers()["loss"])
    assert found[-1] < 0.1 * found[0]
    return found


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("mesh", "shapes", "error", "text"),
    [
        ({"data": 2}, make_shapes(P("data")), MeshError,
         "diloco() trains over mesh axis 'pod', which Mesh(data=2) does not have; give one of its "
         "axes by axis="),
        ({"pod": 2, "data": 2}, make_shapes(P("data")), ShardingError,
         "diloco() finds no input that is split over axis 'pod': all parts would train on the same "
         "batch; give a TensorSpec with sharding=P('pod') in shapes="),
        ({"pod": 2, "data": 2}, make_shapes(P(("data", "pod"))), ShardingError,
         "input 'x' is split as P(('data', 'pod'), None); parts of axis 'pod' train by "
         "themselves on parts of the batch: name it first in the first dimension"),
        ({"pod": 2}, make_shapes(P("pod"), 7), ShapeError,
         "input 'x' is float32[7, 3] for 2 parts of axis 'pod' that train by themselves; give a "
         "batch that 2 divides"),
    ],
)  # fmt: skip
def test_meshes_and_batches_that_do_not_fit(mesh, shapes, error, text) -> None:
    rule = ml.optim.diloco(ml.optim.sgd(0.1), every=2)
    with pytest.raises(error) as raised:
        ml.train_step(make_model(), ml.NumpyBackend(ml.Mesh(**mesh)), rule, shapes=shapes)
    assert str(raised.value) == text


def test_parameters_over_the_axis_are_refused() -> None:
    model = make_model()
    model.shard({"up.weight": P("pod", None)})
    rule = ml.optim.diloco(ml.optim.sgd(0.1), every=2)
    with pytest.raises(PlanError, match="uses mesh axis 'pod', whose parts train by themselves"):
        ml.train_step(model, ml.NumpyBackend(ml.Mesh(pod=2)), rule, shapes=make_shapes(P("pod")))


def test_parameters_of_16_bits_are_refused() -> None:
    step = open_step(ml.NumpyBackend(ml.Mesh(pod=2, data=2), param_dtype="bfloat16"))
    with pytest.raises(OptionError, match="what an outer step adds would be rounded away"):
        step.init(seed=0)


def test_states_of_other_optimisers_are_refused() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    step = open_step(backend)
    other = ml.train_step(make_model(), backend, ml.optim.adamw(1e-2), shapes=make_shapes())
    with pytest.raises(OptionError, match="is called with the state of another optimiser"):
        step(other.init(seed=0), draw_batches()[0])
    with pytest.raises(PlanError, match="outer step has no plan before there is a state"):
        _ = open_step(backend).outer_plan


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"every": 0}, "every=0, no whole number from 1 on"),
        ({"every": 2, "axis": 3}, "axis=3; give the name of one mesh axis"),
        ({"every": 2, "outer": 3}, "diloco() takes transformations, not"),
    ],
)
def test_rules_that_make_no_sense(given, text) -> None:
    with pytest.raises(OptionError) as raised:
        ml.optim.diloco(ml.optim.sgd(0.1), **given)
    assert text in str(raised.value)


def test_models_with_stages_are_refused() -> None:
    model = make_model()
    for name, stage in {"up": 0, "act": 0, "down": 1, "end": 1}.items():
        model.stage(name, stage)
    rule = ml.optim.diloco(ml.optim.sgd(0.1), every=2)
    with pytest.raises(PlanError, match="train by themselves run one program; leave the stages"):
        ml.train_step(
            model, ml.NumpyBackend(ml.Mesh(pod=2, pipeline=2)), rule, shapes=make_shapes(P("pod"))
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"accumulate": 2},
            "a batch is cut into 2 micro-batches, and parts of mesh axis 'pod' that",
        ),
        (
            {"offload_optimizer": True},
            "offload_optimizer=True is given with ml.optim.diloco, whose",
        ),
    ],
)
def test_options_of_steps_that_parts_do_not_take(options, text) -> None:
    rule = ml.optim.diloco(ml.optim.adamw(0.1), every=2)
    backend = ml.NumpyBackend(ml.Mesh(pod=2))
    with pytest.raises(OptionError, match=f"^{re.escape(text)}"):
        ml.train_step(make_model(), backend, rule, shapes=make_shapes(P("pod")), **options)


def test_a_rule_checks_itself() -> None:
    rule = ml.optim.sgd(0.1)
    with pytest.raises(OptionError, match="every=0, no whole number from 1 on"):
        ml.optim.Diloco(rule, rule, 0, "pod")


def test_memory_counts_what_waits_for_the_outer_step() -> None:
    step = open_step(ml.NumpyBackend(ml.Mesh(pod=2, data=2)))
    before = step.memory()
    state = step.init(seed=0)
    leaves: list[ml.Array] = []
    flatten([state.optimizer.anchor, state.optimizer.outer], leaves)
    after, kept = step.memory(), sum(x.type.nbytes for x in leaves)
    assert after.peak == before.peak + kept
    row, earlier = after.fullest, before.fullest
    assert row.parts["optimizer"] == earlier.parts["optimizer"] + kept
    assert sum(one.bytes for one in row.alive) == sum(one.bytes for one in earlier.alive) + kept
    assert [size - kept for size in row.curve] == list(earlier.curve)
