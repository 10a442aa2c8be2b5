"""What `shapes=` say of shardings holds for inputs that nobody has placed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

ROWS = {"x": (8, 6), "t": (8, 8)}
SPECS = {name: ml.TensorSpec(shape, sharding=P("data")) for name, shape in ROWS.items()}
GRID = ml.Mesh(data=2, tensor=2)


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.Linear(8, name="a")(input="x", output="y")
    made |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    return made


def batch(rows: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {n: rng.standard_normal((rows, w)).astype(np.float32) for n, (_, w) in ROWS.items()}


def lies(plan: Any) -> list[P]:
    return [port.sharding.spec for port in plan.inputs if port.name in ROWS]


def check(compiled: ml.CompiledModel, given: Mapping[str, Any], seeded: bool = True) -> None:
    """Evaluate, and compare with one device."""
    one = ml.compile(model(), ml.NumpyBackend())
    values = {n: x if isinstance(x, np.ndarray) else x.numpy() for n, x in given.items()}
    slope = ({"loss": 1.0},) if seeded else ()
    found = compiled.evaluate(compiled.randomize_params(0), given, *slope)
    wanted = one.evaluate(one.randomize_params(0), values, *slope)
    for some, others in zip(*((x if seeded else (x,)) for x in (found, wanted)), strict=True):
        for name, x in some.items():
            np.testing.assert_allclose(x.numpy(), others[name].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("form", ["NumPy", "unplaced", "placed so", "mixed"])
def test_one_plan_for_arrays_of_the_shapes(form: str, inference: bool) -> None:
    backend = ml.NumpyBackend(GRID)
    forms: dict[str, Callable[[np.ndarray], Any]] = {
        "NumPy": lambda x: x,
        "unplaced": backend.array,
        "placed so": lambda x: backend.array(x, sharding=P("data")),
        "mixed": lambda x: x if x.shape[1] == 6 else backend.array(x, sharding=P("data")),
    }
    compiled = ml.compile(model(), backend, shapes=SPECS, inference=inference)
    first = compiled.plan
    check(compiled, {name: forms[form](x) for name, x in batch().items()}, not inference)
    assert compiled.plan is first
    assert compiled.recompiles == 1
    assert lies(first) == [P("data"), P("data")]


@pytest.mark.parametrize("rows", [4, 5])
def test_batches_of_other_sizes_are_split_too(rows: int) -> None:
    compiled = ml.compile(model(), ml.NumpyBackend(GRID), shapes=SPECS)
    for _ in range(2):
        check(compiled, batch(rows))
    assert compiled.recompiles == 2
    assert lies(compiled.plan) == [P("data"), P("data")]
    assert lies(compiled.plan_for({"x": (2, 6), "t": (2, 8)})) == [P("data"), P("data")]


def test_an_array_that_is_placed_keeps_how_it_lies() -> None:
    backend = ml.NumpyBackend(GRID)
    compiled = ml.compile(model(), backend, shapes=SPECS)
    placed = {name: backend.array(x, sharding=P("tensor")) for name, x in batch().items()}
    check(compiled, placed)
    assert compiled.recompiles == 2
    assert lies(compiled.plan) == [P("tensor"), P("tensor")]
    check(compiled, batch())
    assert compiled.recompiles == 2


@pytest.mark.parametrize("how", [{"sharding": P("data")}, {"device_mesh": 2}])
def test_arrays_that_stand_for_shapes_say_it_too(how: dict[str, Any]) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    x = backend.array(batch()["x"], **how)
    compiled = ml.compile(model(), backend, shapes={"x": x, "t": batch()["t"]})
    check(compiled, batch())
    assert compiled.recompiles == 1
    (port,) = (port for port in compiled.plan.inputs if port.name == "x")
    assert port.sharding == x.sharding


def options_of(spec: P) -> dict[str, dict[str, Any]]:
    """Return the ways to say how input x lies besides `shapes=`."""
    strategy = ml.Strategy(
        mesh={"data": 2, "tensor": 2}, parameters={"a.weight": (8, 6), "a.bias": (8,)},
        inputs=ROWS, in_shardings={"x": spec},
    )  # fmt: skip
    limits = {"shardings": {"x": spec}}
    return {
        "in_shardings": {"in_shardings": {"x": spec}},
        "in_shardings of all": {"in_shardings": spec},
        "partition_strategy": {"partition_strategy": strategy},
        "partition_constraints": {"auto_partition": True, "partition_constraints": limits},
    }


def make(form: str, **options: Any) -> Any:
    if form == "compile":
        return ml.compile(model(), ml.NumpyBackend(GRID), shapes=SPECS, **options)
    return ml.train_step(model(), ml.NumpyBackend(GRID), ml.optim.sgd(0.1), shapes=SPECS, **options)


@pytest.mark.parametrize("form", ["compile", "train_step"])
@pytest.mark.parametrize("option", options_of(P()))
def test_what_another_option_contradicts_is_refused(option: str, form: str) -> None:
    name = option.removesuffix(" of all")
    text = rf"^input 'x' lies as P\('data'\) by shapes, and as P\('tensor'\) by .*{name}.*; give one of"
    with pytest.raises(ml.OptionError, match=text):
        make(form, **options_of(P("tensor"))[option])


@pytest.mark.parametrize("form", ["compile", "train_step"])
@pytest.mark.parametrize("option", options_of(P()))
def test_what_another_option_says_too_is_taken(option: str, form: str) -> None:
    assert lies(make(form, **options_of(P("data", None))[option]).plan) == [P("data"), P("data")]


def test_a_part_of_an_axis_knows_how_inputs_lie_that_are_not_split_over_it() -> None:
    specs = {"x": P(("pod", "data")), "t": P("data")}
    shapes = {n: ml.TensorSpec(shape, sharding=specs[n]) for n, shape in ROWS.items()}
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    by_shapes = ml.compile(model(), backend, shapes=shapes).settings.without_axis("pod")
    assert by_shapes.shape_shardings == {"t": P("data")}
    by_option = ml.compile(model(), backend, in_shardings=specs).settings.without_axis("pod")
    assert by_option.in_shardings == {"t": P("data")}


@pytest.mark.parametrize("lying", [P("data"), P(None, "data"), P(None, None, "tensor")])
def test_a_cache_lies_as_it_is_said_from_the_first_token_on(lying: P) -> None:
    @ml.layer(outputs=("y", "next_cache"), parameters=("weight",))
    def decode_token(x, cache, position):
        row = x @ ml.parameter("weight", (8, 8), ml.Normal(0.3))
        cache = mnp.dynamic_update_slice(cache, row, (0, position, 0))
        return {"y": mnp.einsum("bsf,btf->bst", row, cache), "next_cache": cache}

    def decode(backend: ml.Backend, **options: Any) -> tuple[list[np.ndarray], ml.CompiledModel]:
        compiled = ml.compile(decode_token(), backend, inference=True, **options)
        params = compiled.randomize_params(0)
        cache: Any = np.zeros((4, 6, 8), np.float32)
        made = []
        for position in range(6):
            x = np.random.default_rng(position).standard_normal((4, 1, 8)).astype(np.float32)
            inputs = {"x": x, "cache": cache, "position": np.int32(position)}
            outputs = compiled.evaluate(params, inputs, donate="cache" if position else ())
            cache = outputs["next_cache"]
            made.append(outputs["y"].numpy())
        return made, compiled

    shapes = {
        "x": (4, 1, 8),
        "cache": ml.TensorSpec((4, 6, 8), sharding=lying),
        "position": ml.TensorSpec((), "int32"),
    }
    found, compiled = decode(ml.NumpyBackend(GRID), shapes=shapes)
    expected, _ = decode(ml.NumpyBackend())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert compiled.recompiles == 1
    (cache,) = (port for port in compiled.plan.inputs if port.name == "cache")
    assert cache.sharding.spec == lying


# ------------------------------------------------------------------ train steps


def test_a_step_is_planned_once_for_batches_of_numpy() -> None:
    step = ml.train_step(model(), ml.NumpyBackend(GRID), ml.optim.sgd(0.1), shapes=SPECS)
    first = step.plan
    state, _ = step(step.init(), batch())
    assert step.plan is first
    step(state, batch(4))
    assert lies(step.plan) == [P("data"), P("data")]


def test_a_batch_that_is_placed_keeps_how_it_lies_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, rule = ml.NumpyBackend(GRID), ml.optim.adam(0.1)
    step = ml.train_step(model(), backend, rule, shapes=SPECS)
    one = ml.train_step(model(), ml.NumpyBackend(), rule, shapes=ROWS)
    state, wanted = step.init(), one.init()
    for spec in (P("tensor"), None, P("data"), P(), P("tensor"), None):
        given: dict[str, Any] = batch()
        if spec is not None:
            given = {name: backend.array(x, sharding=spec) for name, x in given.items()}
        with monkeypatch.context() as patch:
            patch.setattr(ml.Backend, "reshard", None)  # by plans alone
            state, found = step(state, given)
        wanted, expected = one(wanted, batch())
        assert lies(step.plan) == [P("data") if spec is None else spec] * 2
        for name, number in found.numbers().items():
            np.testing.assert_allclose(number, expected.numbers()[name], rtol=1e-5)
    for name, x in state.params.items():
        np.testing.assert_allclose(x.numpy(), wanted.params[name].numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", [P("data"), P("pod"), P()])
def test_parts_that_train_by_themselves_get_their_parts_of_batches_that_are_placed(spec: P) -> None:
    both = P(("pod", "data"))
    specs = {name: ml.TensorSpec(shape, sharding=both) for name, shape in ROWS.items()}
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    rule = ml.optim.diloco(ml.optim.sgd(0.1), every=2, axis="pod")
    step = ml.train_step(model(), backend, rule, shapes=specs)
    placed = {name: backend.array(x, sharding=spec) for name, x in batch().items()}
    (state, found), (wanted, expected) = step(step.init(), placed), step(step.init(), batch())
    assert lies(step.plan) == [both, both]
    assert found.numbers() == expected.numbers()
    for name, x in state.params.items():
        np.testing.assert_array_equal(x.numpy(), wanted.params[name].numpy())


def test_parts_that_train_by_themselves_split_batches_of_other_sizes() -> None:
    both = P(("pod", "data"))
    specs = {name: ml.TensorSpec(shape, sharding=both) for name, shape in ROWS.items()}
    rule = ml.optim.diloco(ml.optim.sgd(0.1), every=2, axis="pod")
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    step = ml.train_step(model(), backend, rule, shapes=specs)
    state, _ = step(step.init(), batch())
    assert lies(step.plan) == [both, both]
    sent = step.plan.bytes_by_axis()
    step(state, batch(4))
    assert lies(step.plan) == [both, both]
    assert step.plan.bytes_by_axis() == sent
