"""Gradients: against central differences in float64, their types, at ties, and where none flow."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.errors import GraphError
from mithril.ir import Builder
from mithril.testing.cases import CASES, Case, X, is_first_of_its_op, with_floats
from mithril.testing.evaluate import (
    assert_close,
    differentiable,
    evaluate,
    gradients,
    graph_of,
    inputs_of,
    seeds,
    type_of,
)
from mithril.transform import differentiate, gradient_of
from mithril.types import DType, TensorType

from tests.profiles import quick

STEP = 1e-3
# Gradient ops that are the end of the line: they refuse to be differentiated again.
LAST = {"max_pool_gradient"}


def is_last(case: Case) -> bool:
    return case.op.name in LAST


# A cast to float32 rounds small steps away; stop_gradient differs from differences on purpose.
FLOATING = [c for c in CASES if with_floats(c) and not is_last(c)]
SMOOTH = [c for c in FLOATING if c.op.name not in {"stop_gradient", "cast"}]


def graph_for(case: Case, dtype: str | None = None):
    return graph_of(case.op, [type_of(array) for array in arrays_for(case, dtype)])


def arrays_for(case: Case, dtype: str | None = None) -> tuple[np.ndarray, ...]:
    wanted = DType(dtype).numpy if dtype else None
    return tuple(a.astype(wanted) if wanted and a.dtype.kind == "f" else a for a in case.arrays)


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_gradient_equals_central_differences(case: Case) -> None:
    graph, values = graph_for(case), inputs_of(case.arrays)
    found = gradients(graph, values)
    assert found, "no float input"
    for name, gradient in found.items():
        assert_close(gradient, differences(graph, values, name))


def differences(graph, values, name: str) -> np.ndarray:
    """Return central differences of fourth order of the seeded results by one input."""
    given, x = seeds(graph), values[name]

    def at(index, step: float) -> float:
        moved = x.copy()
        moved[index] += step
        results = evaluate(graph, {**values, name: moved})
        return sum(float(np.sum(results[n] * seed)) for n, seed in given.items())

    slopes = np.empty(x.shape)
    for index in np.ndindex(x.shape):
        near = at(index, STEP) - at(index, -STEP)
        far = at(index, 2 * STEP) - at(index, -2 * STEP)
        slopes[index] = (8 * near - far) / (12 * STEP)
    return slopes


@quick(lambda case, dtype: dtype == "bfloat16" and is_first_of_its_op(case))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", FLOATING, ids=str)
def test_gradient_has_the_type_of_the_input(case: Case, dtype: str) -> None:
    graph = graph_for(case, dtype)
    outputs, inputs = differentiable(graph)
    joint = differentiate(graph, outputs, inputs)
    for name in inputs:
        assert joint.outputs[gradient_of(name)].type == graph.input(name).type


@pytest.mark.parametrize("case", [c for c in CASES if with_floats(c) and is_last(c)], ids=str)
def test_second_gradient_is_refused(case: Case) -> None:
    graph = graph_for(case)
    outputs, inputs = differentiable(graph)
    with pytest.raises(GraphError, match=r"second (gradient|derivative)"):
        differentiate(graph, outputs, inputs)


@pytest.mark.parametrize("case", [c for c in CASES if c.op.name == "stop_gradient"], ids=str)
def test_stop_gradient_stops(case: Case) -> None:
    assert not gradients(graph_for(case), inputs_of(case.arrays))["x0"].any()


@pytest.mark.parametrize(("source", "target"), [("float64", "float32"), ("float32", "float64")])
def test_cast_passes_the_gradient_on(source: str, target: str) -> None:
    graph = graph_of(ops.Cast(DType(target)), [TensorType((4, 6), DType(source))])
    found = gradients(graph, {"x0": X.astype(source)})["x0"]
    assert_close(found, seeds(graph)["y0"].astype(source))


def gradient_by(function, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of the sum of a function's result."""
    builder = Builder()
    inputs = [builder.input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    graph = builder.build({"y": function(*inputs).sum()})
    names = [f"x{i}" for i in range(len(arrays))]
    joint = differentiate(graph, ["y"], names)
    one = {"output_gradients.y": np.ones(())}
    found = evaluate(joint, {**inputs_of(arrays), **one})
    return [found[gradient_of(name)] for name in names]


@pytest.mark.parametrize("function", [ops.maximum, ops.minimum])
def test_gradient_of_equal_operands_is_halved(function) -> None:
    x, y = gradient_by(function, np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 4.0]))
    first = [0.5, 1.0, 0.0] if function is ops.maximum else [0.5, 0.0, 1.0]
    assert_close(x, np.array(first))
    assert_close(y, 1 - np.array(first))


@pytest.mark.parametrize(("function", "sign"), [(ops.max, 1.0), (ops.min, -1.0)])
def test_gradient_of_equal_extremes_is_shared(function, sign: float) -> None:
    x = sign * np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    (found,) = gradient_by(lambda t: function(t, 1), x)
    assert_close(found, np.array([[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]))


def test_gradient_of_a_max_pool_goes_to_the_first_maximum() -> None:
    x = np.array([[[1.0, 5.0, 5.0, 2.0, 2.0, 2.0]]])
    (found,) = gradient_by(lambda t: ops.max_pool(t, 3, stride=1), x)
    assert_close(found, np.array([[[0.0, 2.0, 1.0, 1.0, 0.0, 0.0]]]))


@pytest.mark.parametrize("function", [ops.relu, ops.abs, ops.sign])
def test_gradient_at_a_kink_is_zero(function) -> None:
    (found,) = gradient_by(function, np.zeros(3))
    assert_close(found, np.zeros(3))


def test_gradient_of_a_power_at_zero_is_finite() -> None:
    x, y = gradient_by(ops.power, np.array([0.0, 2.0]), np.array([2.0, 3.0]))
    assert_close(x, np.array([0.0, 12.0]))
    assert_close(y, np.array([0.0, 8.0 * np.log(2.0)]))


def test_gradient_of_a_power_whose_exponent_is_zero() -> None:
    x, _ = gradient_by(ops.power, np.array([np.inf, 0.0, 0.5, -2.0]), np.zeros(4))
    assert_close(x, np.zeros(4))


def test_gradient_of_a_power_looks_at_no_element_for_a_constant_exponent() -> None:
    builder = Builder()
    graph = builder.build({"y": builder.input(TensorType((4,), DType.float64), "x") ** 3})
    joint = differentiate(graph, ["y"], ["x"])
    assert {node.op.name for node in joint.nodes} == {"constant", "power", "multiply"}


def test_gradient_of_a_remainder_has_the_quotient_of_the_remainder() -> None:
    x, y = np.array([1.0, 5.5, -5.5]), np.array([0.1, 2.0, 2.0])
    _, found = gradient_by(ops.remainder, x, y)
    assert_close(found, -np.array([9.0, 2.0, -3.0]))  # x / y rounds to 10; nine times 0.1 fit


def test_gradients_of_products_are_those_without_division() -> None:
    tiny = np.array([1e-200, 1e-200])  # their product is 0
    (found,) = gradient_by(ops.prod, tiny)
    np.testing.assert_allclose(found, tiny, rtol=1e-12)
    (found,) = gradient_by(lambda x: ops.cumprod(x)[1], tiny)
    np.testing.assert_allclose(found, tiny, rtol=1e-12)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (3, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_products_of_few_or_none(shape: tuple[int, int], axis: int) -> None:
    for function in (ops.prod, ops.cumprod):
        (found,) = gradient_by(lambda x, of=function: of(x, axis), np.full(shape, 2.0))
        count = np.arange(shape[axis])
        slopes = 2.0 ** (shape[axis] - 1) if function is ops.prod else _slopes_of_twos(count)
        expected = np.broadcast_to(slopes, (shape[1 - axis], shape[axis]))
        assert_close(found, expected if axis else expected.T)


def _slopes_of_twos(count: np.ndarray) -> np.ndarray:
    """Return the gradient of the sum of running products of twos."""
    return np.array([sum(2.0**last for last in count[i:]) for i in range(len(count))])


def test_gradient_of_repeated_ids_adds_up() -> None:
    ids = np.array([1, 1, 0], np.int32)
    builder = Builder()
    table, at = (builder.input(type_of(a), n) for a, n in ((np.ones((3, 2)), "t"), (ids, "i")))
    joint = differentiate(builder.build({"y": ops.take(table, at)}), ["y"], ["t"])
    given = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = evaluate(joint, {"t": np.ones((3, 2)), "i": ids, "output_gradients.y": given})
    assert_close(found["gradients.t"], np.array([[5.0, 6.0], [4.0, 6.0], [0.0, 0.0]]))
