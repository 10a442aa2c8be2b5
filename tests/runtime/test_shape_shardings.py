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


def test_arrays_that_stand_for_shapes_say_it_too() -> None:
    backend = ml.NumpyBackend(GRID)
    given = {"x": backend.array(batch()["x"], sharding=P("data")), "t": batch()["t"]}
    compiled = ml.compile(model(), backend, shapes=given)
    check(compiled, batch())
    assert compiled.recompiles == 1
    assert lies(compiled.plan)[0] == P("data")


def test_what_in_shardings_contradict_is_refused() -> None:
    text = r"^shapes have input 'x' as P\('data'\), and in_shardings as P\('tensor'\); give one$"
    with pytest.raises(ml.OptionError, match=text):
        ml.compile(model(), ml.NumpyBackend(GRID), shapes=SPECS, in_shardings={"x": P("tensor")})


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
