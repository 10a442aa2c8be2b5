"""Second gradients, and gradients through saved statistics and masks, by differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mithril import ops
from mithril.ir import Builder, Graph
from mithril.ops.expansion import gradient_by_expansion
from mithril.testing.arrays import booleans, floats, integers
from mithril.testing.evaluate import assert_close, evaluate, type_of
from mithril.transform import cotangent_name, differentiate, gradient_of

from tests.tolerances import DIFFERENCES

STEP = 1e-3
SLOPE = dict(zip(("rtol", "atol"), DIFFERENCES, strict=True))
TARGETS = integers(4, below=6)
MASK = floats(1, 1, 4, 4, seed=4)
SEEN = booleans(2, 1, 4, 4, seed=2)
SEEN[:, :, 0] = False

Function = Callable[..., object]
FUNCTIONS: dict[str, tuple[Function, tuple[np.ndarray, ...]]] = {
    "softmax": (ops.softmax, (floats(4, 6),)),
    "log_softmax": (ops.log_softmax, (floats(4, 6),)),
    "gelu": (ops.gelu, (floats(4, 6),)),
    "gelu of tanh": (lambda x: ops.gelu(x, approximate=True), (floats(4, 6),)),
    "silu": (ops.silu, (floats(4, 6),)),
    "layer_norm": (ops.layer_norm, (floats(4, 6), floats(6, seed=1), floats(6, seed=2))),
    "rms_norm": (ops.rms_norm, (floats(4, 6), floats(6, seed=1))),
    "cross_entropy": (
        lambda x: ops.cross_entropy(x, ops.cast(ops.iota(x, (4,)), "int32")),
        (floats(4, 6),),
    ),
    "rope": (lambda x: ops.tanh(ops.rope(x)), (floats(2, 4, 1, 6),)),
    "attention": (
        lambda q, k, v: ops.attention(q, k, v, causal=True),
        tuple(floats(2, 4, heads, 2, seed=heads) for heads in (4, 2, 2)),
    ),
    "attention of one tensor": (lambda x: ops.attention(x, x, x), (floats(1, 4, 2, 2),)),
    "attention with a mask": (
        lambda q, mask: ops.attention(q, q, q, mask=mask),
        (floats(1, 4, 2, 2), MASK),
    ),
}


# Where formulas with a case of their own for zeros or ties are easily wrong.
SPECIAL: dict[str, tuple[Function, object]] = {
    "softplus at 0": (ops.softplus, [0.0, -0.0, 1.5, -2.0]),
    "mish at 0": (ops.mish, [0.0, 1.5, -2.0]),
    "logaddexp of equals": (lambda x: ops.logaddexp(x[0], x[1]), [[0.0, 3.0, 1.0], [0.0, 3.0, 2.0]]),
    "hypot of equals": (lambda x: ops.hypot(x[0], x[1]), [[1.0, -2.0, 1.5], [1.0, 2.0, -0.5]]),
    "hypot on an axis": (lambda x: ops.hypot(x[0], x[1]), [[0.0, 3.0, -0.0], [1.0, 0.0, -1.5]]),
    "prod of one zero": (ops.prod, [0.0, 2.0, 3.0, -1.5]),
    "prod of two zeros": (ops.prod, [0.0, 0.0, 1.5]),
    "prod of no zero": (ops.prod, [0.5, 2.0, 1.5, -1.0, 3.0]),
    "prod over dimensions apart": (lambda x: ops.prod(x, (0, 2)), [[[0.0, 2.0], [0.0, 1.5]], [[1.5, 3.0], [0.0, -1.0]]]),
    "cumprod of zeros": (ops.cumprod, [[2.0, 0.0, 3.0, 0.0, 1.5], [0.0, 0.0, 1.5, 2.0, -1.0]]),
    "cumprod from the end": (lambda x: ops.cumprod(x, 0, reverse=True), [2.0, 0.0, 3.0, 0.0, 0.0, 1.5]),
    "power 0": (lambda x: ops.power(x[0], x[1]), [[0.5, 2.0, 1.5], [0.0, 0.0, 1.0]]),
}  # fmt: skip


def steep(function: Function, arrays: tuple[np.ndarray, ...]) -> tuple[Graph, list[str]]:
    """Return the graph of the sum of the squared gradients of a function, and its inputs."""
    names = [f"x{i}" for i in range(len(arrays))]
    builder = Builder()
    inputs = [builder.input(type_of(a), n) for a, n in zip(arrays, names, strict=True)]
    y = function(*inputs)
    joint = differentiate(builder.build({"y": ops.sum(y * y)}), ["y"], names)
    extended = Builder.extending(joint)
    total = None
    for name in names:
        slope = type(y)(extended, joint.outputs[gradient_of(name)])
        square = ops.sum(slope * slope)
        total = square if total is None else total + square
    return extended.build({"z": total}), names


def differences(value: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    """Return central differences of fourth order."""
    slopes = np.empty(x.shape)
    for index in np.ndindex(x.shape):

        def at(step: float, index: tuple[int, ...] = index) -> float:
            moved = x.copy()
            moved[index] += step
            return value(moved)

        near, far = at(STEP) - at(-STEP), at(2 * STEP) - at(-2 * STEP)
        slopes[index] = (8 * near - far) / (12 * STEP)
    return slopes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_of_a_gradient_equals_central_differences(name: str) -> None:
    function, arrays = FUNCTIONS[name]
    graph, names = steep(function, arrays)
    one = {cotangent_name("y"): np.ones(())}
    values = dict(zip(names, arrays, strict=True))
    joint = differentiate(graph, ["z"], names)
    found = evaluate(joint, {**values, **one, cotangent_name("z"): np.ones(())})
    for which in names:

        def value(x: np.ndarray, which: str = which) -> float:
            return float(evaluate(graph, {**values, **one, which: x})["z"])

        # Differences of differences lose digits: their own error is what is compared here.
        expected = differences(value, values[which])
        np.testing.assert_allclose(found[gradient_of(which)], expected, **SLOPE)


@pytest.mark.parametrize("name", SPECIAL)
def test_second_derivatives_equal_central_differences(name: str) -> None:
    function, values = SPECIAL[name]
    x = np.array(values)
    builder = Builder()
    graph = builder.build({"y": ops.sum(function(builder.input(type_of(x), "x")))})
    slope = differentiate(graph, ["y"], ["x"])
    slope = replace(slope, outputs={"slope": slope.outputs[gradient_of("x")]})
    joint = differentiate(slope, ["slope"], ["x"])
    given = {cotangent_name("y"): np.ones(())}
    for index in np.ndindex(x.shape):
        seed = np.zeros(x.shape)
        seed[index] = 1
        found = evaluate(joint, {**given, "x": x, cotangent_name("slope"): seed})

        def value(x: np.ndarray, index: tuple[int, ...] = index) -> float:
            return float(evaluate(slope, {**given, "x": x})["slope"][index])

        np.testing.assert_allclose(found[gradient_of("x")], differences(value, x), **SLOPE)


def test_a_float_mask_has_a_gradient_of_its_own_shape() -> None:
    q, mask = floats(2, 4, 2, 2), floats(1, 2, 1, 4, seed=3)
    builder = Builder()
    x, m = builder.input(type_of(q), "x"), builder.input(type_of(mask), "m")
    graph = builder.build({"y": ops.sum(ops.attention(x, x, x, mask=m) ** 2)})
    values = {"x": q, "m": mask, cotangent_name("y"): np.ones(())}
    found = evaluate(differentiate(graph, ["y"], ["m"]), values)[gradient_of("m")]

    def value(m: np.ndarray) -> float:
        return float(evaluate(graph, {"x": q, "m": m})["y"])

    assert_close(found, differences(value, mask))


def test_the_gradient_of_a_mask_costs_nothing_unless_asked_for() -> None:
    q, mask = floats(2, 4, 2, 2), floats(1, 2, 1, 4, seed=3)
    builder = Builder()
    x, m = builder.input(type_of(q), "x"), builder.input(type_of(mask), "m")
    graph = builder.build({"y": ops.attention(x, x, x, mask=m)})
    joint = differentiate(graph, ["y"], ["x"])
    assert [node.op.name for node in joint.nodes].count("exp") == 0
    assert len(joint.nodes) <= 4


def test_rows_that_see_nothing_have_gradients_of_zero() -> None:
    q = floats(2, 4, 2, 2)
    builder = Builder()
    x, seen = builder.input(type_of(q), "x"), builder.input(type_of(SEEN), "seen")
    y = ops.attention(x, ops.stop_gradient(x), ops.stop_gradient(x), mask=seen)
    joint = differentiate(builder.build({"y": y}), ["y"], ["x"])
    given = {"x": q, "seen": SEEN, cotangent_name("y"): np.ones((2, 4, 2, 2))}
    found = evaluate(joint, given)[gradient_of("x")]
    assert np.isfinite(found).all()
    assert not found[:, 0].any()
    assert found[:, 1:].any()


def test_a_tensor_passed_twice_gets_each_share_once() -> None:
    x = floats(1, 4, 2, 2)
    builder = Builder()
    tensor = builder.input(type_of(x), "x")
    op = ops.Attention(False, 0.5)
    out, _ = builder.apply(op, tensor, tensor, tensor)
    shares = gradient_by_expansion(op, [tensor] * 3, [out, None])
    graph = builder.build({f"d{i}": share for i, share in enumerate(shares)})
    found = evaluate(graph, {"x": x})
    fused = ops.AttentionGradient(False, 0.5)
    both = Builder()
    tensor = both.input(type_of(x), "x")
    out, total = both.apply(op, tensor, tensor, tensor)
    results = both.apply(fused, tensor, tensor, tensor, out, total, out)
    expected = evaluate(both.build({f"d{i}": y for i, y in enumerate(results)}), {"x": x})
    for name, value in expected.items():
        assert_close(found[name], value)


def test_operands_no_gradient_reaches_have_none() -> None:
    builder = Builder()
    logits = builder.input(type_of(floats(4, 6)), "x")
    targets = builder.input(type_of(TARGETS), "t")
    op = ops.CrossEntropy()
    loss, total = builder.apply(op, logits, targets)
    through_loss = op.gradient([logits, targets], [loss, total], [loss, None])
    assert through_loss[0] is not None
    assert through_loss[1] is None
    assert op.gradient([logits, targets], [loss, total], [None, total])[1] is None
