"""Models, layers, loops and trees nested in each other: deep ones run, deeper ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.ir import Tensor

ONE = ml.NumpyBackend()
LAST = ml.Linear(2, bias=False, initializer=ml.Ones())
X = np.arange(4, dtype=np.float32).reshape(2, 2)
TOO_DEEP = (
    r"^{what} holds models and layers nested 100 deep \(.*test_nesting\.py:\d+\), and 100 is the "
    r"most with the one around them; add layers to one model instead, or repeat one block more often"
)


@ml.layer
def Around(input: Tensor, *, inner: ml.Model | ml.Layer) -> Tensor:  # noqa: N802
    return inner(input)  # type: ignore[return-value]


@ml.layer
def Down(input: Tensor, *, times: int) -> Tensor:  # noqa: N802
    return Down(times=times - 1)(input) if times else LAST(input)  # type: ignore


@ml.layer
def Endless(input: Tensor) -> Tensor:  # noqa: N802
    if input.shape[0] % 2:
        raise ml.ShapeError("the number of rows is odd")
    return Endless()(input)  # type: ignore[return-value]


def hold(part: Any) -> ml.Model:
    model = ml.Model()
    model += part
    return model


WRAPS: dict[str, Callable[[Any], Any]] = {
    "model": hold,
    "Repeat": lambda part: ml.Repeat(part, 1),
    "Around": lambda part: Around(inner=part),
    "Pipeline": lambda part: ml.Pipeline([part]),
}


def nest(depth: int, *wraps: Callable[[Any], Any]) -> Any:
    """A Linear inside as many models and layers of these kinds, in turn."""
    part: Any = ml.Linear(2, bias=False, initializer=ml.Ones())
    for number in range(depth):
        part = wraps[number % len(wraps)](part)
    return part


def run(part: Any) -> np.ndarray:
    model = ml.Model()
    model |= part(input="x", output="y")
    compiled = ml.compile(model, ONE)
    params = compiled.randomize_params()
    outputs, _ = compiled.evaluate(params, {"x": X}, output_gradients={"y": X})
    return outputs["y"].numpy()


@pytest.mark.parametrize("what", WRAPS)
def test_what_is_nested_too_deep_is_refused_where_it_is_made(what: str) -> None:
    nest(100, WRAPS[what])
    with pytest.raises(ml.GraphError, match=TOO_DEEP.format(what=what)):
        nest(3000, WRAPS[what])
    wraps = list(WRAPS.values())
    with pytest.raises(ml.GraphError, match=r"holds models and layers nested 100 deep"):
        nest(3000, *wraps[wraps.index(WRAPS[what]) :], *wraps)


@pytest.mark.parametrize(
    ("depth", "kinds"),
    [(99, ["model"]), (99, ["Around"]), (99, ["model", "Around"]), (32, ["Repeat"]),
     (96, ["Repeat", "model", "Around"])],
)  # fmt: skip
def test_what_is_nested_as_deep_as_may_be_runs(depth: int, kinds: list[str]) -> None:
    made = run(nest(depth, *(WRAPS[kind] for kind in kinds)))
    np.testing.assert_array_equal(made, X @ np.ones((2, 2), np.float32))


def test_the_summary_of_a_deep_model_has_a_row_a_model() -> None:
    assert len(str(nest(100, hold)).splitlines()) == 102


def test_layers_that_call_themselves_run_if_they_end() -> None:
    made = run(Down(times=90))
    np.testing.assert_array_equal(made, X @ np.ones((2, 2), np.float32))


@pytest.mark.parametrize("part", [Endless, lambda: Down(times=2000)], ids=["endless", "long"])
def test_layers_that_call_themselves_without_end_are_refused(part: Any) -> None:
    with pytest.raises(
        ml.GraphError,
        match=r"^layers call each other 101 deep, and 100 is the most; end the calls of a layer that "
        r"calls itself, or call some in a loop \(in layer '\w+\..*\(.*test_nesting\.py:\d+\)",
    ):
        run(part())


AROUND = r"loops, gradients and checkpoints are nested 33 deep.*, and 32 is the most; make one of"


def nest_function(wrap: Callable[[Any], Any], depth: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return x * 1.0

    for _ in range(depth):
        function = wrap(function)
    return function


NESTS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda inner: lambda x: ml.scan(lambda c, _: (inner(c), None), x, length=1)[0],
    "checkpoint": ml.checkpoint,
}


@pytest.mark.parametrize("wrap", NESTS.values(), ids=NESTS)
def test_loops_and_checkpoints_of_functions_are_nested_32_deep_at_most(wrap: Any) -> None:
    made = ml.jit(nest_function(wrap, 32), backend=ONE)(X)
    np.testing.assert_array_equal(made.numpy(), X)
    with pytest.raises(ml.GraphError, match=AROUND):
        ml.jit(nest_function(wrap, 33), backend=ONE)(X)


def test_repeats_are_nested_32_deep_at_most() -> None:
    with pytest.raises(ml.GraphError, match=AROUND):
        run(nest(33, WRAPS["Repeat"]))


# ------------------------------------------------------------------ trees and dimensions


def grow(depth: int, kind: str) -> Any:
    tree: Any = ONE.ones(2)
    for _ in range(depth):
        tree = {"dict": {"a": tree}, "list": [tree], "tuple": (tree,)}[kind]
    return tree


USES: dict[str, Callable[[Any], object]] = {
    "argument": ml.jit(lambda p: ONE.ones(2), backend=ONE),
    "result": lambda tree: ml.jit(lambda x: tree, backend=ONE)(ONE.ones(2)),
    "gradient": ml.grad(lambda p: ONE.ones(()) * 1.0),
    "carry": lambda tree: ml.jit(lambda x: ml.scan(lambda c, _: (c, None), tree, length=2))(
        ONE.ones(2)
    ),
    "checkpoint": lambda tree: ml.save("unused", {"tree": tree}),
}
DEEP_TREE = (
    r"a tree holds containers nested more than 100 deep, or one that holds itself; give arrays in "
    r"fewer dicts, lists and tuples"
)


@pytest.mark.parametrize("kind", ["dict", "list", "tuple"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_trees_nested_too_deep_are_refused(use: Callable[[Any], object], kind: str) -> None:
    with pytest.raises(ml.GraphError, match=DEEP_TREE):
        use(grow(3000, kind))


def test_a_tree_that_holds_itself_is_refused_and_a_deep_one_is_not() -> None:
    around: dict[str, Any] = {}
    around["again"] = around
    with pytest.raises(ml.GraphError, match=DEEP_TREE):
        USES["argument"](around)
    assert ml.jit(lambda tree: tree, backend=ONE)(grow(99, "list")) is not None


def test_shardings_of_another_form_are_shown_without_what_is_deep_inside() -> None:
    spec: Any = ml.P(None)
    for _ in range(3000):
        spec = [spec]
    with pytest.raises(ml.GraphError, match=r"of argument 'x' are \[\[\[\[\[\[\[\.\.\.\]\]\]"):
        ml.jit(lambda x: x, backend=ONE, in_shardings=spec)(ONE.ones(2))


MAKES: dict[str, Callable[[Any], object]] = {
    "ones": lambda x: ONE.ones((1,) * 65),
    "reshape": lambda x: x.reshape((1,) * 65),
    "expand_dims": lambda x: ONE.expand_dims(x, 0),
    "broadcast_to": lambda x: ONE.broadcast_to(x, (1,) * 65),
    "stack": lambda x: ONE.stack([x]),
    "new axis": lambda x: x[None],
    "in a function": ml.jit(lambda x: x[None] + 1.0),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_tensors_have_64_dimensions_at_most(make: Callable[[Any], object]) -> None:
    x = ONE.ones((1,) * 64)
    assert (x + x * 2.0).sum().item() == 3.0  # NumPy broadcasts shapes of 32 dimensions alone
    with pytest.raises(
        ml.ShapeError,
        match=r"^a tensor of float32 would have 65 dimensions, and 64 is the most; merge some with "
        r"reshape",
    ):
        make(x)
