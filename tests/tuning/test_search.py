"""The search: bounds that no plan is below, the best of all, and what it finds for which reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.mesh import Mesh
from mithril.runtime.planned import plan_backend
from mithril.runtime.strategy import Strategy
from mithril.tuning.bound import _Estimator, estimate
from mithril.tuning.config import AxisRole, Config, Role
from mithril.tuning.correction import _name_kind
from mithril.tuning.model import TunedModel
from mithril.tuning.price import Price, price
from mithril.tuning.recipes import make_by_recipe
from mithril.tuning.search import Search
from mithril.tuning.space import _divisors, list_configs

from benchmarks.recipe_models import make_case
from tests.tolerances import TOLERANCE
from tests.tuning.models import H100, TOKENS, make_chain, make_deep, make_gpt, make_mlp

SHAPES = {"x": (64, 32)}
CASES = {
    "mlp": (make_mlp, {"x": ml.TensorSpec((64, 32))}),
    "deep": (make_deep, {"input": ml.TensorSpec((16, 32)), "t": ml.TensorSpec((16, 32))}),
    "gpt": (make_gpt, TOKENS),
}


def tune(name: str, objective: str = "throughput", hardware: str = H100) -> TunedModel:
    make, shapes = CASES[name]
    return TunedModel(make(), shapes, ml.Hardware.load(hardware), ml.Precision(), objective)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("objective", ["throughput", "latency", "memory_usage"])
def test_no_plan_is_below_its_bound(name: str, objective: str) -> None:
    tuned, seen = tune(name, objective), 0
    for number, config in enumerate(list_configs(tuned, "mixed_parallel", 4)):
        if number % 7:
            continue
        strategy = make_by_recipe(tuned, config)
        found = price(tuned, strategy) if isinstance(strategy, Strategy) else None
        if isinstance(found, Price):
            seen += 1
            assert estimate(tuned, config).find_bound(objective) <= found.cost(objective), config
    assert seen


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "latency", "memory_usage", "communication"])
def test_it_is_the_best_of_all(objective: str) -> None:
    tuned = tune("mlp", objective)
    configs = list(list_configs(tuned, "mixed", 4))
    found = Search(tuned, patience=len(configs)).run(configs)
    prices = []
    for config in configs:
        strategy = make_by_recipe(tuned, config)
        one = price(tuned, strategy) if isinstance(strategy, Strategy) else None
        prices += [one.cost(objective)] if isinstance(one, Price) else []
    assert found[0].cost(objective) <= min(prices)
    recipes = [c.cost(objective) for c in found if not c.config.is_searched]
    assert min(recipes) == min(prices)


@pytest.mark.slow
def test_what_is_left_out_has_a_bound_above_the_best() -> None:
    tuned = tune("gpt", "memory_usage")
    search = Search(tuned)
    search.run(list_configs(tuned, "mixed", 4))
    assert search.pruned
    assert search.considered == search.pruned + len(search.planned) + len(search.unplanned) + len(
        search.refusals
    )
    assert search.find_bound() <= min(c.cost("memory_usage") for c in search.planned)


@pytest.mark.slow
def test_a_wide_batch_of_a_small_model_is_split() -> None:
    """Gradients of few parameters are cheap to sum; to split channels, images would be sent."""
    model = ml.Model()
    model |= ml.Conv2d(16, 3, padding=1, name="conv")(input="image", output="h")
    model += ml.Relu(name="act")
    model += ml.GlobalAvgPool(name="pool")
    model += ml.Linear(10, name="head")(output="y")
    found = ml.auto_tune(model, H100, input_shapes={"image": (4096, 3, 64, 64)}, devices=8)
    assert found.mesh == {"data": 8}
    assert found.shardings == {}


def test_wide_layers_of_a_small_batch_are_split_by_heads_and_hidden_units() -> None:
    """One sample cannot be split; weights of 64 MB take longer to read than sums to send."""
    model = ml.Model()
    model |= ml.FeedForward(16384, name="mlp")(input="x", output="y")
    found = ml.auto_tune(
        model, H100, input_shapes={"x": (1, 1024)}, devices=8, tuning_objective="latency",
        strategy_space="tensor",
    )  # fmt: skip
    assert found.mesh == {"tensor": 8}
    assert str(found.shardings["mlp.up.weight"]) == "P('tensor')"
    assert str(found.shardings["mlp.down.weight"]) == "P(None, 'tensor')"


@pytest.mark.slow
def test_layers_go_into_stages_where_the_link_between_nodes_is_slow() -> None:
    """Sums of gradients would send all weights over the link, stages send activations once.

    Of 16 layers each weight is as large as what a layer returns for the batch.
    """
    h100 = ml.Hardware.load(H100)
    node, network = replace(h100.levels[0], devices=2), replace(h100.levels[1], bandwidth=1e10)
    slow = replace(h100, name="two-nodes", levels=(node, network))
    shapes = {"input": (4096, 4096), "t": (4096, 4096)}

    def tune(hardware: ml.Hardware, space: str = "mixed_parallel") -> ml.Strategy:
        return ml.auto_tune(
            make_deep(16, 4096), hardware, input_shapes=shapes, devices=4, strategy_space=space
        )

    found = tune(slow)
    # The slowest axis comes first: stages across nodes, in which two devices or one share a batch.
    # Both take as long within 0.1 %; which is planned in time depends on the machine.
    assert list(found.mesh) in (["pipeline", "data"], ["pipeline"])
    count = found.mesh["pipeline"]
    places = Counter(found.stages[f"layer_{n}"] % count for n in range(16))  # they go round
    assert set(places.values()) == {16 // count}
    assert found.findings.seconds < tune(slow, "mixed").findings.seconds
    plan = ml.compile(
        make_deep(16, 4096), plan_backend(found.make_mesh(), slow), shapes=shapes,
        partition_strategy=found,
    ).plan  # fmt: skip
    own = 4 // count
    assert {stage.devices for stage in plan.stages} == {
        tuple(range(first, first + own)) for first in range(0, 4, own)
    }
    assert plan.timeline(slow).seconds == pytest.approx(found.findings.seconds)


@pytest.mark.slow
def test_what_lies_between_layers_is_split_beside_weights() -> None:
    """Norms and sums on a part of the sequence are computed, and kept, once in a tensor group."""
    backend = ml.NumpyBackend(ml.Mesh(tensor=4), hardware=H100)
    shapes = {name: ml.TensorSpec((1, 4096), "int32") for name in TOKENS}
    found = ml.auto_tune(
        make_gpt(2, 512), backend, input_shapes=shapes, measure=False, strategy_space="tensor"
    )
    assert found.value_shardings == {"x0": ml.P(None, "tensor"), "x1": ml.P(None, "tensor")}
    alone = replace(found, value_shardings={})
    peaks = [
        ml.compile(make_gpt(2, 512), backend, shapes=shapes, partition_strategy=one).plan.memory()
        for one in (found, alone)
    ]
    assert peaks[0].peak < peaks[1].peak


@pytest.mark.slow
def test_parameters_are_split_where_they_would_not_fit() -> None:
    """Copies of all parameters are more than a device holds; ZeRO 3 keeps a part on each."""
    small = replace(ml.Hardware.load(H100), name="small", memory_bytes=3_000_000)
    model = make_deep(6, 256)  # 1.6 MB of parameters, and as much of gradients
    shapes = dict.fromkeys(ml.compile(model, ml.NumpyBackend()).inputs, (64, 256))
    found = ml.auto_tune(model, small, input_shapes=shapes, devices=4, strategy_space="data")
    assert found.zero == 3
    assert found.findings.memory <= 3_000_000
    with pytest.raises(ml.PlanError, match="finds no strategy that fits: "):
        tiny = replace(small, memory_bytes=900_000)
        ml.auto_tune(model, tiny, input_shapes=shapes, devices=4, strategy_space="data")
    with pytest.raises(ml.PlanError, match=r"least is .* on a device of 29.3 KiB; use more d"):
        tiny = replace(small, memory_bytes=30_000)
        ml.auto_tune(model, tiny, input_shapes=shapes, devices=4, strategy_space="data")


def test_what_no_recipe_splits_is_searched() -> None:
    """A square layer added to its input can be split by none of the recipes over a tensor axis."""
    model = ml.Model()
    model |= ml.Linear(2048, name="square")(input="x", output="h")
    model |= ml.Add(name="add")(inputs=["x", "h"], output="y")
    backend = ml.NumpyBackend(ml.Mesh(a=2), hardware=H100)
    shapes = {"x": (1, 2048)}
    found = ml.auto_tune(
        model, backend, input_shapes=shapes, tuning_objective="latency", measure=False
    )
    assert found.auto_partition == "latency"
    plan = ml.compile(model, backend, shapes=shapes, partition_strategy=found, inference=True).plan
    assert plan.search is not None
    assert plan.search.objective == "latency"
    with pytest.raises(
        ml.OptionError, match="partition_objective='communication' contradicts part"
    ):
        ml.compile(model, backend, partition_strategy=found, partition_objective="communication")


@pytest.mark.slow
def test_the_mesh_of_a_backend_stays_and_its_axes_get_roles() -> None:
    backend = ml.NumpyBackend(device_mesh=(4, 2))
    found = ml.auto_tune(make_mlp(), backend, input_shapes=SHAPES, measure=False)
    assert found.mesh == {"data": 4, "model": 2}
    compiled = ml.compile(make_mlp(), backend, partition_strategy=found, shapes=SHAPES)
    assert compiled.plan.timeline().seconds == pytest.approx(found.findings.seconds)
    assert found.findings.profile == "simulated"


@pytest.mark.slow
def test_what_the_model_says_stays() -> None:
    model = make_mlp()
    model.shard({"up.weight": ml.P(None, "model")})
    backend = ml.NumpyBackend(device_mesh=(4, 2))
    found = ml.auto_tune(model, backend, input_shapes=SHAPES, measure=False)
    assert "up.weight" not in found.shardings
    ml.compile(model, backend, partition_strategy=found, shapes=SHAPES)


def test_what_cannot_be_planned_is_no_alternative() -> None:
    tuned, refused = tune("mlp"), []

    def refuse_tensor(tuned: TunedModel, config: Config) -> Strategy | str:
        if "tensor" not in str(config):
            return make_by_recipe(tuned, config)
        refused.append(str(config))
        return "refused"

    configs = list(list_configs(tuned, "mixed", 4))
    search = Search(tuned, refuse_tensor, patience=len(configs))
    rows = search.describe(search.run(configs)[0]).findings.alternatives
    assert rows
    assert refused
    assert not {row.kind for row in rows} & set(refused)


@pytest.mark.slow
def test_alternatives_say_what_they_would_cost_more() -> None:
    found = ml.auto_tune(make_mlp(), H100, input_shapes=SHAPES, devices=4).findings
    assert found.alternatives
    assert all(row.more >= 0 or not row.fits for row in found.alternatives)
    assert found.bound <= found.seconds
    text = str(ml.auto_tune(make_mlp(), H100, input_shapes=SHAPES, devices=4))
    assert "no strategy of the space is below" in text
    assert "configurations" in text


def test_a_bar_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    options = {"input_shapes": SHAPES, "devices": 2, "strategy_space": "data"}
    ml.auto_tune(make_mlp(), H100, progress=True, **options)  # type: ignore[arg-type]
    assert "planning" in capsys.readouterr().err
    ml.auto_tune(make_mlp(), H100, progress=False, **options)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    with pytest.raises(ml.OptionError, match="progress='yes' is neither True nor False"):
        ml.auto_tune(make_mlp(), H100, progress="yes", **options)  # type: ignore[arg-type]


def test_the_budget_is_kept() -> None:
    """A budget of a thousandth of a second still gives the plan of the best estimate."""
    backend = ml.NumpyBackend(device_mesh=(4, 2))
    found = ml.auto_tune(make_mlp(), backend, input_shapes=SHAPES, tuning_budget_hours=1e-6)
    assert found.findings.planned == 1
    assert found.findings.measured is None
    assert found.findings.bound < found.findings.seconds  # what is unplanned may be better


def test_where_nothing_fits_the_budget_is_kept() -> None:
    """Bounds let all through: what does not fit is activations, which they do not count."""
    tiny = replace(ml.Hardware.load(H100), name="tiny", memory_bytes=700_000)
    shapes = {"x": (2**14, 32)}
    with pytest.raises(ml.PlanError, match="configurations unplanned for want of time; use more"):
        ml.auto_tune(
            make_mlp(), tiny, input_shapes=shapes, devices=2, strategy_space="tensor",
            tuning_budget_hours=1e-6,
        )  # fmt: skip


def test_bad_input() -> None:
    model, options = make_mlp(), {"input_shapes": SHAPES}
    with pytest.raises(ml.OptionError, match="tuning_budget_hours=0 is no time to tune in"):
        ml.auto_tune(model, H100, devices=4, tuning_budget_hours=0, **options)
    with pytest.raises(ml.OptionError, match="tuning_objective='speed' does not exist"):
        ml.auto_tune(model, H100, devices=4, tuning_objective="speed", **options)
    with pytest.raises(ml.OptionError, match="strategy_space='all' does not exist"):
        ml.auto_tune(model, H100, devices=4, strategy_space="all", **options)
    with pytest.raises(ml.OptionError, match="devices=None is no number of devices; say how many"):
        ml.auto_tune(model, H100, **options)
    with pytest.raises(ml.OptionError, match="devices=4 is for hardware that is not here"):
        ml.auto_tune(model, ml.NumpyBackend(), devices=4, **options)
    with pytest.raises(ml.BackendError, match="takes a backend or hardware, not a Mesh"):
        ml.auto_tune(model, Mesh(data=2), devices=4, **options)
    with pytest.raises(ml.GraphError, match=r"auto_tune\(\) takes a Model or a layer, not a str;"):
        ml.auto_tune("model", H100, devices=4, **options)
    with pytest.raises(
        ml.GraphError, match=r"input_shapes is \['z'\], and the model takes \['x'\]"
    ):
        ml.auto_tune(model, H100, devices=4, input_shapes={"z": (8, 16)})
    with pytest.raises(ml.OptionError, match="measure=True needs devices, and there are none"):
        ml.auto_tune(model, H100, devices=4, measure=True, **options)
    with pytest.raises(ml.PlanError, match="finds no strategy in space 'pipeline' for 64 devices"):
        ml.auto_tune(model, H100, devices=64, strategy_space="pipeline", **options)


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (make_chain(8, 8), (16, 8), "model has 2 layers, which cannot be cut into 4 stages; use"),
        (make_chain(8, 8, 8, 8), (2, 8), "a batch of 2 gives 4 stages no micro-batch each"),
        (ml.Linear(8), (16, 8), "the model is one layer, of which every device computes"),
        (make_chain(150_000, 8, 8, 8), (4, 150_000), "pipeline=4.*: 4 layers cannot be cut into"),
    ],
)
def test_it_says_why_layers_have_no_stages(
    model: ml.Model | ml.Layer, shape: tuple[int, ...], reason: str
) -> None:
    asked = {"strategy_space": "pipeline", "tuning_objective": "latency", "devices": 4}
    with pytest.raises(ml.PlanError, match=f"finds no strategy in space 'pipeline' .*{reason}"):
        ml.auto_tune(model, H100, input_shapes={"input": shape}, **asked)


@pytest.mark.parametrize("devices", [1, 2, 12, 49, 97])
def test_sizes_of_axes_divide_the_devices(devices: int) -> None:
    assert _divisors(devices) == [n for n in range(1, devices + 1) if devices % n == 0]


def test_stages_compute_products_of_their_whole_size() -> None:
    """A stage has some of the products, each as large as without stages."""
    tuned = tune("deep")
    deep = Config((AxisRole("pipeline", 4, Role.pipeline),), microbatches=4)
    wide = Config((AxisRole("data", 4, Role.data),))
    seconds = [_Estimator(tuned, config)._compute() for config in (deep, wide)]
    assert seconds[0] == pytest.approx(seconds[1])


def test_micro_batches_start_each_sum_anew_and_add_up_gradients() -> None:
    tuned = tune("mlp")
    tensor = Config((AxisRole("tensor", 4, Role.tensor),))
    data = Config((AxisRole("data", 4, Role.data),))
    start, _ = tuned.find_link("all_reduce", ("tensor",), tensor.axes)

    def spend(config: Config, times: int) -> float:
        return _Estimator(tuned, replace(config, microbatches=times))._communicate()[0]

    # Each has a sum in its forward, and one in its backward.
    assert spend(tensor, 8) - spend(tensor, 1) == pytest.approx(7 * 2 * start)
    assert spend(data, 8) == spend(data, 1)  # what is added up is summed once
    added = 3 * tuned.parameter_bytes / tuned.hardware.memory_bandwidth
    once, often = (_Estimator(tuned, replace(data, microbatches=n))._accumulate() for n in (1, 8))
    assert (once, often) == (0.0, pytest.approx(7 * added))


@pytest.mark.slow
def test_a_plan_corrects_the_estimates_of_its_kind() -> None:
    tuned = tune("deep")
    search = Search(tuned, patience=2)
    search.run(list_configs(tuned, "mixed_parallel", 4))
    (one, *others) = search.planned
    kind = _name_kind(one.config)
    ratios = [
        candidate.price.seconds / candidate.estimate.seconds
        for candidate in (one, *others)
        if candidate.price is not None and _name_kind(candidate.config) == kind
    ]
    found = search.correction.apply(one.config, one.estimate)
    assert found.seconds / one.estimate.seconds == pytest.approx(geometric_mean(ratios))
    assert found.least_seconds == one.estimate.least_seconds


def test_of_two_orders_of_axes_that_are_alike_one_is_planned_first() -> None:
    tuned = tune("deep")
    configs = list(list_configs(tuned, "mixed_parallel", 4))
    ordered = Search(tuned)._order(configs)
    twins = [candidate for candidate in ordered if candidate.is_twin]
    assert twins
    fitting = [c.is_twin for c in ordered if c.estimate.memory <= tuned.hardware.memory_bytes]
    assert fitting == sorted(fitting)


def test_each_use_of_the_mesh_is_planned_where_plans_are_measured() -> None:
    tuned = tune("mlp")
    configs = list(list_configs(tuned, "mixed", 4))
    few = Search(tuned, patience=1, searches=False)
    all_uses = Search(tuned, patience=1, searches=False, measures=True)
    few.run(configs)
    best = all_uses.run(configs)[0]
    uses = {candidate.config.use for candidate in all_uses.planned}
    assert uses > {candidate.config.use for candidate in few.planned}
    chosen = all_uses.choose_to_measure(12)
    assert chosen[0] == best
    first = [candidate.config.use for candidate in chosen[:3]]
    assert len(set(first)) == 3
    assert len(all_uses.choose_to_measure(2)) == 2


@pytest.mark.slow
def test_sequences_between_layers_are_measured_split_and_whole() -> None:
    """A start of a collective may cost more than what splitting them saves; a clock tells."""
    tuned = tune("gpt")
    search = Search(tuned, patience=1, searches=False, measures=True)
    search.run(list_configs(tuned, "mixed", 4))
    chosen = [candidate.config for candidate in search.choose_to_measure(16)]
    split = [config for config in chosen if config.splits_stream]
    assert split
    assert any(replace(c, splits_stream=False).use in {o.use for o in chosen} for c in split)


def test_without_an_optimizer_no_gradients_are_scattered_for_nothing() -> None:
    configs = list_configs(tune("mlp"), "mixed_parallel", 4)
    assert {config.zero for config in configs} == {0, 3}
    tuned = replace(tune("gpt"), optimizer=ml.optim.adamw(1e-3))
    assert {config.zero for config in list_configs(tuned, "mixed_parallel", 4)} == {0, 1, 2, 3}


def test_what_is_planned_after_all_was_not_left_out() -> None:
    tuned = tune("mlp")
    configs = list(list_configs(tuned, "mixed", 4))
    search = Search(tuned, patience=1, searches=False, measures=True)
    search.run(configs)
    left_out = search.pruned + len(search.unplanned)
    assert search.considered == left_out + len(search.planned) + len(search.refusals)
    assert not {c.config for c in search.unplanned} & {c.config for c in search.planned}


def test_inputs_of_outputs_that_are_not_wanted_are_not_asked_for() -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="a")(input="x", output="y")
    model |= ml.Linear(4, name="b")(input="z", output="w")
    found = ml.auto_tune(model, H100, input_shapes={"x": (8, 4)}, devices=2, outputs=["y"])
    assert list(found.inputs) == ["x"]


@pytest.mark.slow
def test_outputs_that_are_not_wanted_cost_nothing() -> None:
    model = make_mlp()
    model |= ml.Linear(4096, name="wide")(input="h", output="z")
    given = {"input_shapes": SHAPES, "devices": 2}
    whole = ml.auto_tune(model, H100, **given)
    found = ml.auto_tune(model, H100, **given, outputs=["y"])
    assert found.findings.seconds < whole.findings.seconds
    assert "wide.weight" not in found.parameters
    planned = plan_backend(found.make_mesh(), H100)
    compiled = ml.compile(model, planned, shapes=SHAPES, outputs=["y"], partition_strategy=found)
    assert list(compiled.outputs) == ["y"]
    with pytest.raises(ml.OptionError, match=r"outputs=\['y'\] is given together with optimizer="):
        ml.auto_tune(model, H100, **given, outputs=["y"], optimizer=ml.optim.adam(1e-3))


@pytest.mark.slow
def test_experts_that_cut_an_axis_are_planned_with_micro_batches() -> None:
    """Experts that cut the axis of samples; batches that are put together lie over all of it."""
    case = make_case("moe_small", 0, 8)
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=4))
    tuned = TunedModel(
        case.model, case.specs, backend.hardware, ml.Precision(), "throughput",
        backend=backend, outputs=[case.output],
    )  # fmt: skip
    wanted = "context=2 × data=4 × experts, 8 micro-batches, context_parallel='all_gather'"
    configs = list_configs(tuned, "mixed_parallel", backend.mesh)
    config = next(config for config in configs if str(config) == wanted)
    strategy = make_by_recipe(tuned, config)
    values = np.random.default_rng(0).standard_normal(case.specs["x0"].shape, np.float32)

    def evaluate(backend: ml.Backend, **options: Any) -> dict[str, np.ndarray]:
        compiled = ml.compile(
            case.model, backend, shapes=case.specs, outputs=[case.output], **options
        )
        params, inputs = compiled.randomize_params(seed=0), {"x0": backend.array(values)}
        seeds = {case.output: backend.ones(*values.shape)}
        outputs, gradients = compiled.evaluate(params, inputs, seeds)
        return {name: x.numpy() for name, x in {**outputs, **gradients}.items()}

    found = evaluate(backend, partition_strategy=strategy)
    for name, expected in evaluate(ml.NumpyBackend()).items():
        scale = max(float(np.abs(expected).max()), 1.0)
        np.testing.assert_allclose(
            found[name] / scale, expected / scale, *TOLERANCE["float32"], err_msg=name
        )
