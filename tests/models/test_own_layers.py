"""Layers of users: as classes, with inputs that need not be connected, and what cannot be one."""

from __future__ import annotations

from dataclasses import dataclass

import mithril as ml
import numpy as np
import pytest
from mithril.errors import GraphError, OptionError
from mithril.ir import Tensor
from mithril.models.trace import input_names

from tests.models.evaluate import random, run
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
X = random(4, 6, 8)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ a layer as a class


@ml.layer(parameters=("scale",), checks={"start": ml.Check("a number", lambda v: v != "x")})
class Scale:
    """Multiply every feature by a learned number."""

    start: float = 1.0
    power: int

    def apply(self, input: Tensor) -> Tensor:
        scale = ml.parameter("scale", input.shape[-1:], ml.Constant(self.start))
        return input * scale**self.power


def test_a_layer_is_also_a_class_with_one_method() -> None:
    layer = Scale(2.0, power=3)
    assert repr(layer) == "Scale(start=2.0, power=3)"
    assert layer.input_ports == ("input",)
    assert Scale.__doc__ == "Multiply every feature by a learned number."
    outputs, p = run(layer, input=X)
    close(outputs["output"], X * p["scale"] ** 3)
    compiled = ml.compile(layer, ml.NumpyBackend(), shapes={"input": X.shape})
    np.testing.assert_array_equal(compiled.randomize_params()["scale"], np.full(8, 2.0))


def test_options_of_a_class_are_checked() -> None:
    with pytest.raises(OptionError, match="Scale needs option 'power'"):
        Scale()
    with pytest.raises(OptionError, match="Scale option 'start' is 'x'; it must be a number"):
        Scale("x", power=1)
    with pytest.raises(OptionError, match="Scale has no option 'strat'"):
        Scale(power=1, strat=2)


def test_classes_that_are_no_layer() -> None:
    with pytest.raises(GraphError, match="class Empty has no method 'apply'; write def apply"):

        @ml.layer
        class Empty:
            pass

    with pytest.raises(
        GraphError,
        match=r"option 'sizes' of class Shared is \[\] by default, .*use a tuple or None",
    ):

        @ml.layer
        class Shared:
            sizes: list[int] = []  # noqa: RUF012

            def apply(self, input: object) -> object:
                return input

    with pytest.raises(GraphError, match="class Twice has an option and an input 'rate'; rename"):

        @ml.layer
        class Twice:
            rate: float

            def apply(self, rate: object) -> object:
                return rate

    with pytest.raises(GraphError, match="method 'apply' of class Wrong takes options; make them"):

        @ml.layer
        class Wrong:
            def apply(self, input: object, *, rate: float) -> object:
                return input


def test_a_class_with_an_init_is_told_what_options_are() -> None:
    class Base:
        def __init__(self, width: int = 8) -> None:
            self.width = width

    class Given(Base):
        def apply(self, input: object) -> object:
            return input

    class Own(Given):
        def __init__(self) -> None:
            super().__init__(4)

        def apply(self, input: object) -> object:
            return input

    for cls in (Given, Own):
        text = (
            f"class {cls.__name__} has a method '__init__', which a layer does without; its "
            "options are annotated attributes of the class, such as width: int = 8"
        )
        with pytest.raises(GraphError) as error:
            ml.layer(cls)
        assert str(error.value) == text


def test_options_may_be_those_of_a_class_that_it_derives_from() -> None:
    @dataclass(frozen=True)
    class Sized:
        width: int = 3

    @ml.layer
    class Widen(Sized):
        times: int = 2

        def apply(self, input: Tensor) -> Tensor:
            return input * self.width * self.times

    close(run(Widen(4), input=X)[0]["output"], X * 8)


@pytest.mark.parametrize("option", ["name", "sharding", "at_rest", "device_id"])
def test_options_of_every_layer_are_taken(option: str) -> None:
    body = f"def Mine(input, *, {option}=None): return input"
    made: dict = {}
    exec(body, made)
    with pytest.raises(GraphError, match=f"layer Mine has an option '{option}', which every layer"):
        ml.layer(made["Mine"])


# ------------------------------------------------------------------ inputs that may be absent


@ml.layer
def Shifted(input: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:  # noqa: N802
    """Shift, then scale, as far as connected."""
    moved = input if shift is None else input + shift
    return moved if scale is None else moved * scale


@ml.layer
class Moved:
    """Add what is connected."""

    def apply(self, input: Tensor, shift: Tensor | None = None) -> Tensor:
        return input if shift is None else input + shift


def fed(layer: ml.Layer, **connections: str) -> ml.Model:
    model = ml.Model()
    model |= layer(output="y", **connections)
    return model


A, B = random(8, seed=1), random(6, 1, seed=2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, X),
        ({"shift": A}, X + A),
        ({"scale": B}, X * B),
        ({"scale": B, "shift": A}, (X + A) * B),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_an_input_that_is_none_by_default_need_not_be_connected(given, expected) -> None:
    model = fed(Shifted(), input="x", **{name: name for name in given})
    assert input_names(model) == ("x", *(n for n in ("shift", "scale") if n in given))
    close(run(model, x=X, **given)[0]["y"], expected)
    close(run(fed(Moved(), input="x", shift="a"), x=X, a=A)[0]["y"], X + A)
    close(run(Shifted(), input=X)[0]["output"], X)


def test_an_absent_input_is_not_fed_by_itself() -> None:
    model = ml.Model()
    model += ml.Linear(8)(input="x", output="h")
    model += Shifted()(input="x", output="y")
    assert input_names(model) == ("x",)
    assert set(model.snapshot().output_ports) == {"h", "y"}


def test_an_optional_input_is_named_among_the_others() -> None:
    assert Shifted().input_ports == ("input",)
    with pytest.raises(
        GraphError, match="no input or output 'shfit'; inputs: 'input', 'shift', 's"
    ):
        Shifted()(shfit="x")


def test_an_optional_input_is_none_by_default() -> None:
    with pytest.raises(
        GraphError, match=r"gives its input 'shift' the default 3; .* options come after a \*"
    ):

        @ml.layer
        def Wrong(input: Tensor, shift: int = 3) -> Tensor:  # noqa: N802
            return input + shift


# ------------------------------------------------------------------ how layers are written


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (ml.Relu(), "Relu()"),
        (ml.Dropout(), "Dropout()"),
        (ml.Linear(4, name="up"), "Linear(dimension=4, name='up')"),
        (
            ml.Linear(4, weight_shard_spec=(0, None), device_mesh=(2, 2)),
            "Linear(dimension=4, weight_shard_spec=(0, None), device_mesh=(2, 2))",
        ),
        (
            ml.LayerNorm(sharding={"weight": ml.P("data")}, at_rest=ml.P("data")),
            "LayerNorm(sharding={'weight': P('data')}, at_rest=P('data'))",
        ),
        (
            ml.Repeat(ml.Linear(4, name="up"), 2, at_rest=ml.P("data")),
            "Repeat(Linear 'up', 2, at_rest=P('data'))",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_layer_shows_its_options_and_how_it_is_split(layer: ml.Layer, text: str) -> None:
    assert repr(layer) == text
    assert layer.definition.name in layer.label
    assert "P(" not in layer.label, "messages call a layer by what it is"


def test_what_is_no_layer_function_is_refused() -> None:
    with pytest.raises(
        GraphError, match=r"layer\(\) takes a function over tensors, not 3; write @ml"
    ):
        ml.layer(3)
    with pytest.raises(
        OptionError, match=r"layer\(\) has no option 'params'; did you mean 'parame"
    ):
        ml.layer(params=("scale",))
