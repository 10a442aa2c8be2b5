"""`load_balancing=`: layers in stages of equal time, predicted or measured, and results as ever."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.runtime.balancing import balance

from tests.tolerances import TOLERANCE
from tests.tuning.models import make_deep, make_mlp

SHAPES = {"input": (8, 32), "t": (8, 32)}
MESH = ml.Mesh(data=2, pipeline=2)


def compile_deep(model: ml.Model | None = None, **options: object) -> ml.CompiledModel:
    backend = ml.NumpyBackend(MESH)
    given = {"shapes": SHAPES, "load_balancing": True, **options}
    return ml.compile(model or make_deep(), backend, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["greedy", "optimal"])
@pytest.mark.parametrize("measured", [False, True])
def test_layers_are_put_into_stages(algorithm: str, measured: bool) -> None:
    compiled = compile_deep(
        load_balancing_algorithm=algorithm, profiling_based_partitioning=measured
    )
    plan = compiled.plan
    assert len({stage.devices for stage in plan.stages}) == 2
    (note,) = [note for note in plan.notes if note.startswith("load_balancing=True")]
    assert f"in 2 stages ({algorithm}); {'measured' if measured else 'predicted'} " in note
    rng = np.random.default_rng(0)
    batch = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    found = compiled.evaluate(compiled.randomize_params(seed=0), batch)["loss"].numpy()
    one = ml.compile(make_deep(), ml.NumpyBackend())
    wanted = one.evaluate(one.randomize_params(seed=0), batch)["loss"].numpy()
    np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"])


def test_uneven_layers_end_a_stage_where_time_is_even() -> None:
    model = ml.Model()
    for number, width in enumerate((2048, 32, 32, 32, 32)):
        model += ml.Linear(width, name=f"layer_{number}")
    plan = ml.compile(
        model, ml.NumpyBackend(MESH), shapes={"input": (64, 2048)}, load_balancing=True
    ).plan
    first = {n.scope for s in plan.stages if 0 in s.devices for n in s.program.graph.nodes}
    assert {scope for scope in first if scope.startswith("layer_")} == {"layer_0"}


def test_measured_times_count(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"layer_0": 9.0, **{f"layer_{n}": 1.0 for n in range(1, 6)}}
    monkeypatch.setattr(balance.Trial, "time_layers", lambda self: slow)
    places = compile_deep(profiling_based_partitioning=True).get_partition_map()["layers"]
    assert places["layer_0"]["devices"] != places["layer_1"]["devices"]
    even = compile_deep().get_partition_map()["layers"]
    assert even["layer_0"]["devices"] == even["layer_1"]["devices"]


def test_where_there_is_nothing_to_balance_the_plan_says_so() -> None:
    model, shapes = make_mlp(), {"x": (8, 16)}
    flat = ml.compile(
        model, ml.NumpyBackend(device_mesh=(4, 2)), shapes=shapes, load_balancing=True
    )
    assert "load_balancing=True changes nothing: the mesh has no axis 'pipeline'" in str(flat.plan)
    model.stage("up", 0)
    model.stage("act", 0)
    model.stage("down", 1)
    staged = ml.compile(model, ml.NumpyBackend(MESH), shapes=shapes, load_balancing=True)
    assert any("the model says itself where its layers run" in n for n in staged.plan.notes)
    lone = ml.compile(
        ml.Linear(4), ml.NumpyBackend(MESH), shapes={"input": (8, 4)}, load_balancing=True
    )
    assert any("the model is one layer" in note for note in lone.plan.notes)


def test_a_train_step_is_balanced_as_its_model() -> None:
    step = ml.train_step(
        make_deep(), ml.NumpyBackend(MESH), ml.optim.sgd(0.1), shapes=SHAPES, load_balancing=True
    )
    assert {stage.devices for stage in step.plan.stages} >= {(0, 2), (1, 3)}


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ml.OptionError, match="has to know how long layers take, and therefore the"):
        compile_deep(shapes=None)
    with pytest.raises(
        ml.OptionError, match="load_balancing_algorithm='greedy' has no effect without load_balanc"
    ):
        compile_deep(load_balancing=False, load_balancing_algorithm="greedy")
    with pytest.raises(ml.OptionError, match="load_balancing_algorithm='best' does not exist"):
        compile_deep(load_balancing_algorithm="best")
    with pytest.raises(ml.OptionError, match="load_balancing=1 is neither True nor False"):
        compile_deep(load_balancing=1)
    with pytest.raises(ml.PlanError, match="which cannot be cut into 2 stages"):
        one = ml.Model()
        one |= ml.Linear(4, name="lone")(input="input", output="y")
        compile_deep(one, shapes={"input": (8, 4)})
    monkeypatch.setattr(balance, "process_count", lambda: 2)
    with pytest.raises(ml.BackendError, match="measures layers in each of 2 processes"):
        compile_deep(profiling_based_partitioning=True)
