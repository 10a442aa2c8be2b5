"""auto_partition: what is searched for, what holds it, what is told of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.report.explain import explain
from mithril.report.prediction import predict

from tests.tolerances import TOLERANCE

MESH = ml.Mesh(data=4, model=2)
ROWS, COLUMNS = 256, 48


def mlp(**shardings: P) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(64, name="up")(input="input", output="hidden")
    model += ml.Relu()(input="hidden", output="bent")
    model += ml.Linear(8, name="down")(input="bent", output="output")
    if shardings:
        model.shard(shardings)
    return model


def searched(model: ml.Model | None = None, mesh: ml.Mesh = MESH, **options: object) -> object:
    shapes = {"input": (ROWS, COLUMNS)}
    backend = ml.NumpyBackend(mesh)
    return ml.compile(model or mlp(), backend, auto_partition=True, shapes=shapes, **options)


def kinds(compiled: object) -> set[str]:
    return {row.kind for row in compiled.plan.collectives()}


def axes_of(compiled: object) -> set[str]:
    return {axis for lies in compiled.shardings.values() for axis in lies.split_axes}


OPTIONS: dict[str, dict[str, object]] = {
    "nothing": {},
    "latency": {"partition_objective": "latency"},
    "memory": {"partition_objective": "memory_usage"},
    "communication": {"partition_objective": "communication", "max_memory_per_device": "100 kB"},
    "data": {"partition_search_space": "data"},
    "fully_sharded": {"partition_search_space": "fully_sharded"},
    "tensor": {"partition_search_space": "tensor"},
    "little memory": {"max_memory_per_device": "50 kB"},
    "small sums": {"partition_constraints": {"max_all_reduce_size": "1 kB"}},
    "no sums": {"partition_constraints": {"forbid": ["all_reduce"]}},
    "no data": {"partition_constraints": {"forbid": [("*", "data")]}},
    "fixed": {"partition_constraints": {"shardings": {"up.weight": P("model", None)}}},
    "fixed input": {"partition_constraints": {"shardings": {"input": P("data")}}},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_found_computes_what_one_device_does(options: str) -> None:
    compiled = searched(**OPTIONS[options])
    backend, one = compiled.backend, ml.NumpyBackend()
    params = compiled.randomize_params(seed=0)
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    seeds = {"output": np.ones((ROWS, 8), np.float32)}
    executed: list[tuple[str, tuple[str, ...], int]] = []
    outputs, gradients = compiled.evaluate(
        params, {"input": x}, seeds, observe=lambda told: executed.append(told.row)
    )
    assert (
        executed == list(compiled.plan.list_issued(0)) or len(executed) > 0 or not kinds(compiled)
    )
    reference = ml.compile(mlp(), one)
    expected, wanted = reference.evaluate(
        {name: one.array(value.numpy()) for name, value in params.items()}, {"input": x}, seeds
    )
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["output"].numpy(), expected["output"].numpy(), rtol, atol)
    for name, gradient in wanted.items():
        scale = np.abs(gradient.numpy()).max()
        np.testing.assert_allclose(
            gradients[name].numpy() / scale, gradient.numpy() / scale, rtol, atol, err_msg=name
        )
    assert gradients["up.weight"].sharding == compiled.shardings["up.weight"]
    assert compiled.plan.search is not None
    assert backend.mesh == MESH


def test_the_result_is_data_and_is_told() -> None:
    compiled = searched()
    found = compiled.plan.search
    assert (found.objective, found.space, found.unit) == ("throughput", "mixed", "picoseconds")
    assert found.is_exact
    assert found.gap == 0.0
    assert found.bound <= found.cost
    assert found.variables > 20
    predicted = str(predict(compiled.plan, compiled.inputs, compiled.backend.hardware))
    for text in (str(compiled.plan), compiled.explain(), explain(compiled.plan), predicted):
        assert "search for throughput over 'mixed'" in text
        assert "the best" in text
    assert "decided by auto_partition" in compiled.explain("up.weight")
    read = plan_from_json(plan_to_json(compiled.plan)).search
    assert read == found
    assert str(read) == str(found)


def test_more_freedom_costs_no_more() -> None:
    mixed, data, tensor = (
        searched(partition_search_space=s).plan.search for s in ("mixed", "data", "tensor")
    )
    assert mixed.cost <= min(data.cost, tensor.cost)
    fixed = searched(partition_constraints={"shardings": {"up.weight": P(None, "data")}})
    assert mixed.cost <= fixed.plan.search.cost


def test_spaces_split_what_they_say() -> None:
    data, tensor = (
        searched(partition_search_space="data"),
        searched(partition_search_space="tensor"),
    )
    assert not axes_of(data)
    assert kinds(data) == {"all_reduce"}
    batch = next(port for port in tensor.plan.inputs if port.name == "input").sharding
    assert not batch.dims[0]
    assert axes_of(tensor)
    sharded = searched(partition_search_space="fully_sharded")
    assert all(sharding.split_axes for sharding in sharded.shardings.values())
    assert {"reduce_scatter"} <= kinds(sharded) <= {"all_gather", "all_reduce", "reduce_scatter"}
    same = searched(partition_search_space="mixed_parallel").plan.search
    assert same == searched(partition_search_space="mixed").plan.search


def test_objectives_find_what_they_name() -> None:
    results = {
        name: searched(partition_objective=name).plan
        for name in ("throughput", "memory_usage", "communication")
    }
    times = {name: plan.search.seconds for name, plan in results.items()}
    memories = {name: plan.search.memory for name, plan in results.items()}
    assert min(times.values()) == times["throughput"]
    assert min(memories.values()) == memories["memory_usage"]
    assert not results["communication"].collectives()
    assert results["throughput"].collectives()


def test_parameters_lie_as_the_objective_wants_it_whatever_runs_first() -> None:
    x = np.ones((ROWS, COLUMNS), np.float32)
    found = {}
    for objective in ("throughput", "latency"):
        for seeds in (None, {"output": np.ones((ROWS, 8), np.float32)}):
            compiled = ml.compile(
                mlp(), ml.NumpyBackend(MESH), auto_partition=True, partition_objective=objective
            )
            compiled.evaluate(compiled.randomize_params(), {"input": x}, seeds)
            found.setdefault(objective, []).append(dict(compiled.shardings))
    assert found["throughput"][0] == found["throughput"][1]
    assert found["latency"][0] == found["latency"][1]
    assert not any(lies.split_axes for lies in found["latency"][0].values())


def test_what_was_found_is_found_again_when_it_is_said() -> None:
    first = searched()
    lies, rests = {}, {}
    for name, sharding in first.shardings.items():
        is_at_rest = "rest" in first.plan.specs[name].decided_by
        (rests if is_at_rest else lies)[name] = sharding.spec
    arrives = next(port for port in first.plan.inputs if port.name == "input").sharding.spec
    again = searched(mlp(**lies), in_shardings={"input": arrives}, at_rest=rests)
    rows = [[(r.kind, r.axes, r.bytes) for r in c.plan.collectives()] for c in (first, again)]
    assert rows[0] == rows[1]
    assert again.plan.search.cost == pytest.approx(first.plan.search.cost, rel=1e-9)


def test_an_annotation_is_a_constraint() -> None:
    compiled = searched(mlp(**{"up.weight": P("model", None)}))
    assert compiled.shardings["up.weight"].spec == P("model", None)
    assert "decided by the annotation" in compiled.explain("up.weight")
    at_rest = searched(at_rest={"up.weight": P("data", None)})
    assert at_rest.shardings["up.weight"].spec == P("data", None)
    assert "all_gather" in kinds(at_rest) or "all_to_all" in kinds(at_rest)


def test_limits_hold() -> None:
    small = searched(partition_constraints={"max_all_reduce_size": "2 kB"}).plan
    assert all(row.bytes <= 2000 for row in small.collectives() if row.kind == "all_reduce")
    none = searched(partition_constraints={"forbid": ["all_reduce", "all_to_all"]})
    assert not {"all_reduce", "all_to_all"} & kinds(none)
    free = searched(partition_constraints={"forbid": [("up.*", "data"), ("up.*", "model")]})
    assert not free.shardings["up.weight"].split_axes


@pytest.mark.slow
def test_the_plan_keeps_to_the_memory_that_is_granted() -> None:
    least = searched(partition_objective="memory_usage").plan.memory().peak
    most = searched().plan.memory().peak
    costs = []
    for limit in np.linspace(least, most, 5).astype(int):
        plan = searched(max_memory_per_device=int(limit)).plan
        assert plan.memory().peak <= limit
        assert plan.search.bound <= plan.search.cost * (1 + 1e-9)
        assert plan.search.limit == limit
        costs.append(plan.search.cost)
    assert costs[-1] == searched().plan.search.cost
    assert costs[0] >= costs[-1]


@pytest.mark.slow
def test_backends_search_for_all_models() -> None:
    shapes = {"input": (ROWS, COLUMNS)}
    for config, spaces in (
        ({"force_data_parallel": True}, ("data",)),
        ({"allow_mixed_mesh_models": False}, ("data", "tensor")),
        ({"force_data_parallel": False, "allow_mixed_mesh_models": True}, ("mixed",)),
    ):
        backend = ml.NumpyBackend(MESH, auto_sharding_config=config)
        compiled = ml.compile(mlp(), backend, shapes=shapes)
        assert compiled.plan.search.space in spaces
        best = min(searched(partition_search_space=s).plan.search.cost for s in spaces)
        assert compiled.plan.search.cost == best
        assert ml.compile(mlp(), backend, shapes=shapes, auto_partition=False).plan.search is None
    assert ml.compile(mlp(), ml.NumpyBackend(MESH, auto_sharding=True), shapes=shapes).plan.search
    assert ml.compile(mlp(), ml.NumpyBackend(MESH), shapes=shapes).plan.search is None


def test_a_step_of_training_is_searched_with_its_optimiser() -> None:
    model = mlp()
    model += ml.MeanSquaredError(name="end")(input="output", target="target", output="loss")
    shapes = {"input": (ROWS, COLUMNS), "target": (ROWS, 8)}
    rng = np.random.default_rng(0)
    batch = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    losses = {}
    for name, mesh, options in (
        ("one", ml.Mesh(), {}),
        ("searched", MESH, {"auto_partition": True}),
        ("small", MESH, {"auto_partition": True, "partition_objective": "memory_usage"}),
    ):
        step = ml.train_step(
            model, ml.NumpyBackend(mesh), ml.optim.adam(0.01), shapes=shapes, **options
        )
        state = step.init(seed=0)
        told = []
        for _ in range(3):
            state, metrics = step(state, batch)
            told.append(metrics["loss"].item())
        losses[name] = told
        if options:
            assert step.plan.search is not None
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(losses["searched"], losses["one"], rtol, atol)
    np.testing.assert_allclose(losses["small"], losses["one"], rtol, atol)


def staged() -> ml.Model:
    model = mlp()
    model.stage("up", 0)
    model.stage("down", 1)
    return model


def constrained(**limits: object) -> Callable[[], object]:
    return lambda: searched(partition_constraints=limits)


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "objective": (
        lambda: searched(partition_objective="speed"),
        ml.OptionError,
        r"partition_objective='speed' is no objective.*; objectives: 'throughput', 'latency', 'memory_usage', 'communication'",
    ),
    "space": (
        lambda: searched(partition_search_space="mixd"),
        ml.OptionError,
        r"partition_search_space='mixd' is no space; did you mean 'mixed'\?; spaces: 'data', 'fully_sharded', 'tensor'",
    ),
    "without a search": (
        lambda: ml.compile(mlp(), ml.NumpyBackend(MESH), max_memory_per_device="1 GB"),
        ml.OptionError,
        r"max_memory_per_device='1 GB' has no effect without a search; give auto_partition=True, too",
    ),
    "no flag": (
        lambda: ml.compile(mlp(), ml.NumpyBackend(MESH), auto_partition="yes"),
        ml.OptionError,
        r"auto_partition='yes' is neither True nor False",
    ),
    "no mapping": (
        lambda: searched(partition_constraints="1 GB"),
        ml.OptionError,
        r"partition_constraints='1 GB' is no mapping; write \{\"max_memory_per_device\": \"16 GB\"\}",
    ),
    "no limit": (
        constrained(max_memory=3),
        ml.OptionError,
        r"partition_constraints has no entry 'max_memory'; did you mean 'max_memory_per_device'\?; entries:",
    ),
    "no bytes": (
        lambda: searched(max_memory_per_device=-1),
        ml.OptionError,
        r"max_memory_per_device=-1 is no number of bytes; give one, such as \"16 GB\"",
    ),
    "no finite number": (
        lambda: searched(max_memory_per_device=float("nan")),
        ml.OptionError,
        r"max_memory_per_device=nan is no number of bytes; give one, such as \"16 GB\"",
    ),
    "forbidden nothing": (
        constrained(forbid=[("left.*", "data")]),
        ml.OptionError,
        r"partition_constraints\['forbid'\] has \('left\.\*', 'data'\), and no parameter, input or value is called so",
    ),
    "no unit": (
        constrained(max_all_reduce_size="16"),
        ml.OptionError,
        r"partition_constraints\['max_all_reduce_size'\] is '16'; give a number of bytes, such as '80 GB'",
    ),
    "two limits": (
        lambda: searched(
            max_memory_per_device="1 GB", partition_constraints={"max_memory_per_device": "2 GB"}
        ),
        ml.OptionError,
        r"max_memory_per_device='1 GB' is given together with partition_constraints\['max_memory_per_device'\]='2 GB'; give one",
    ),
    "forbidden text": (
        constrained(forbid="all_reduce"),
        ml.OptionError,
        r"partition_constraints\['forbid'\]='all_reduce' is no list, but a str; give collectives, and pairs",
    ),
    "forbidden word": (
        constrained(forbid=["all_reduc"]),
        ml.OptionError,
        r"partition_constraints\['forbid'\] has entry 'all_reduc', which is neither a collective; did you mean 'all_reduce'\? nor a pair of a pattern of names and an axis",
    ),
    "forbidden axis": (
        constrained(forbid=[("up.*", "tensor")]),
        ml.MeshError,
        r"partition_constraints\['forbid'\]: mesh Mesh\(data=4, model=2\) has no axis 'tensor'",
    ),
    "no match": (
        constrained(shardings={"left.*": P()}),
        ml.ShardingError,
        r"pattern 'left.\*' of partition_constraints\['shardings'\] matches nothing",
    ),
    "against the model": (
        lambda: searched(
            mlp(**{"up.weight": P("model", None)}),
            partition_constraints={"shardings": {"up.weight": P("data", None)}},
        ),
        ml.OptionError,
        r"parameter 'up.weight' is to lie as P\('data', None\) of partition_constraints.*, and as "
        r"P\('model', None\).*; give one",
    ),
    "against in_shardings": (
        lambda: searched(
            in_shardings={"input": P("model")},
            partition_constraints={"shardings": {"input": P("data")}},
        ),
        ml.OptionError,
        r"input 'input' lies as P\('data'\) by partition_constraints\['shardings'\], and as "
        r"P\('model'\) by in_shardings; give one of them",
    ),
    "stages of a model": (
        lambda: ml.compile(staged(), ml.NumpyBackend(ml.Mesh(pipeline=2)), auto_partition=True),
        ml.OptionError,
        r"auto_partition=True is given for a model with stages or placed layers, which are not searched",
    ),
    "micro-batches": (
        lambda: searched(accumulate=2),
        ml.OptionError,
        r"auto_partition=True is given together with accumulate=2, whose micro-batches are not searched for",
    ),
    "too little memory": (
        lambda: searched(max_memory_per_device="4 kB"),
        ml.PlanError,
        r"auto_partition finds no plan within 3.91 KiB a device: the least is 17.8 KiB at the start of the backward, of which bent 8 KiB, input 6 KiB, ",
    ),
    "too little for a moment": (
        lambda: searched(
            max_memory_per_device=searched(partition_objective="memory_usage").plan.search.memory
            + 100
        ),
        ml.PlanError,
        r"a device: the least that it finds is .* KiB at .*, of which ",
    ),
    "no collectives": (
        lambda: searched(
            in_shardings={"input": P("data")},
            out_shardings={"output": P()},
            partition_constraints={
                "forbid": ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "permute"]
            },
        ),
        ml.PlanError,
        r"finds no plan without the collectives that partition_constraints refuse; allow some",
    ),
    "no config": (
        lambda: ml.NumpyBackend(MESH, auto_sharding_config=3),
        ml.OptionError,
        r"auto_sharding_config=3 is no mapping; write \{'force_data_parallel': True\}",
    ),
    "config without effect": (
        lambda: ml.NumpyBackend(MESH, auto_sharding=False, auto_sharding_config={}),
        ml.OptionError,
        r"auto_sharding_config has no effect with auto_sharding=False; leave one out",
    ),
    "entry of config": (
        lambda: ml.NumpyBackend(MESH, auto_sharding_config={"force": True}),
        ml.OptionError,
        r"auto_sharding_config has no entry 'force'.*; entries: 'force_data_parallel'",
    ),
    "a function": (
        lambda: ml.jit(lambda x: x, auto_partition=True),
        ml.OptionError,
        r"option 'auto_partition' makes no sense for .*; give it to ml.compile",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused(mistake: str) -> None:
    make, error, text = MISTAKES[mistake]
    with pytest.raises(error, match=text):
        make()
