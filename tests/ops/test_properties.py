"""Properties over random shapes: reshape factors, broadcasting, indexing, contraction."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices, mutually_broadcastable_shapes
from mithril import ops
from mithril.errors import ShapeError
from mithril.ir import Builder
from mithril.ops.shape import reshape_factors
from mithril.testing.cases import floats, integers
from mithril.testing.evaluate import assert_close, evaluate, type_of
from mithril.transform import differentiate, gradient_of
from mithril.types import DType, promote

from tests.ops.sharded import check_rule

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12])
SHAPES = st.lists(SIZES, max_size=4).filter(lambda s: math.prod(s) <= 400).map(tuple)


@st.composite
def shape_pairs(draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two shapes with equally many elements."""
    old = draw(SHAPES)
    primes = draw(st.permutations([p for size in old for p in _primes(size)]))
    cuts = draw(st.lists(st.integers(0, len(primes)), max_size=3).map(sorted))
    bounds = itertools.pairwise([0, *cuts, len(primes)])
    return old, tuple(math.prod(primes[a:b]) for a, b in bounds)


def _primes(size: int) -> list[int]:
    for p in range(2, size + 1):
        if size % p == 0:
            return [p, *_primes(size // p)]
    return []


def call(function, *arrays: np.ndarray) -> np.ndarray:
    """Trace a function over arrays and run it."""
    builder = Builder()
    inputs = [builder.input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    graph = builder.build({"y": function(*inputs)})
    return evaluate(graph, {f"x{i}": array for i, array in enumerate(arrays)})["y"]


@given(shape_pairs())
def test_reshape_factors_multiply_to_both_shapes(shapes) -> None:
    old, new = shapes
    sizes, left, right, whole = reshape_factors(old, new)
    for shape, dims in ((old, left), (new, right)):
        assert shape == tuple(math.prod(sizes[f] for f in dim) for dim in dims)
    assert all(size > 1 for size in sizes.values())
    flat = [[f for dim in dims for f in dim if f not in whole] for dims in (left, right)]
    assert flat[0] == flat[1], "shared factors stand in one order"
    assert len(set(flat[0])) == len(flat[0])


@given(shape_pairs())
def test_reshape_factors_are_symmetric(shapes) -> None:
    there, back = reshape_factors(*shapes), reshape_factors(*reversed(shapes))
    shared = [
        [size for f, size in sizes.items() if f not in whole]
        for sizes, _, _, whole in (there, back)
    ]
    assert shared[0] == shared[1]
    assert [[len(d) for d in dims] for dims in there[1:3]] == [
        [len(d) for d in dims] for dims in back[2:0:-1]
    ]


@given(SHAPES)
def test_reshape_to_the_same_shape_keeps_dimensions_apart(shape) -> None:
    _, left, right, whole = reshape_factors(shape, shape)
    assert left == right
    assert not whole
    assert all(len(dim) == (size > 1) for dim, size in zip(left, shape, strict=True))


@given(shape_pairs())
def test_reshape_rule_holds_for_every_factor(shapes) -> None:
    old, new = shapes
    x = floats(*old)
    rule = ops.Reshape(new).rule([type_of(x)], [type_of(x.reshape(new))])
    for factor in rule.splittable:
        check_rule(ops.Reshape(new), [x], [factor])


@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4, min_side=0))
def test_broadcasting_is_numpys(shapes) -> None:
    x, y = (integers(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    assert_close(call(ops.add, x, y), x + y)
    assert_close(call(ops.where, x > y, x, y), np.where(x > y, x, y))
    wide = np.broadcast_to(x, shapes.result_shape)
    assert_close(call(lambda t: ops.broadcast_to(t, shapes.result_shape), x), wide)


@given(st.lists(SHAPES, min_size=2, max_size=2))
def test_shapes_numpy_cannot_broadcast_are_refused(shapes) -> None:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="cannot broadcast"):
            call(ops.add, *(floats(*shape) for shape in shapes))
    else:
        call(ops.add, *(floats(*shape) for shape in shapes))


@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4))
def test_gradient_of_broadcasting_counts_repetitions(shapes) -> None:
    builder = Builder()
    arrays = [floats(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes)]
    x, y = (builder.input(type_of(a), n) for a, n in zip(arrays, "xy", strict=True))
    joint = differentiate(builder.build({"z": x + y}), ["z"], ["x", "y"])
    ones = np.ones(shapes.result_shape)
    found = evaluate(joint, {"x": arrays[0], "y": arrays[1], "output_gradients.z": ones})
    for name, array in zip("xy", arrays, strict=True):
        repeated = math.prod(shapes.result_shape) / array.size
        assert_close(found[gradient_of(name)], np.full(array.shape, repeated))


@given(st.data())
def test_indexing_is_numpys(data) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple))
    index = data.draw(basic_indices(shape, allow_newaxis=True))
    items = index if isinstance(index, tuple) else (index,)
    assume(all(item.step is None or item.step > 0 for item in items if isinstance(item, slice)))
    x = integers(*shape, below=100)
    assert_close(call(lambda t: t[index], x), np.asarray(x[index]))


@given(st.data())
def test_gradient_of_indexing_marks_what_was_taken(data) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    starts = [data.draw(st.integers(-size, size - 1)) for size in shape]
    index = tuple(slice(s, None, data.draw(st.integers(1, 3))) for s in starts)
    builder = Builder()
    x = builder.input(type_of(floats(*shape)), "x")
    joint = differentiate(builder.build({"y": x[index].sum()}), ["y"], ["x"])
    found = evaluate(joint, {"x": floats(*shape), "output_gradients.y": np.ones(())})
    expected = np.zeros(shape)
    expected[index] = 1
    assert_close(found["gradients.x"], expected)


@given(st.data())
def test_transposing_is_numpys(data) -> None:
    shape = data.draw(SHAPES)
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    x = floats(*shape)
    assert_close(call(lambda t: t.transpose(order), x), x.transpose(order))


@given(st.data())
def test_reductions_are_numpys(data) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    axes = data.draw(st.sets(st.integers(-len(shape), -1), min_size=1).map(tuple))
    keep = data.draw(st.booleans())
    x = floats(*shape)
    for name in ("sum", "mean", "max", "min"):
        function = getattr(ops, name)
        found = call(partial(function, axis=axes, keepdims=keep), x)
        assert_close(found, np.asarray(getattr(np, name)(x, axes, keepdims=keep)))


@given(st.data())
def test_matmul_is_numpys(data) -> None:
    """All ranks from 1, with broadcast batches."""
    batch = data.draw(mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3))
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    left, right = batch.input_shapes
    x_shape = (k,) if not left and data.draw(st.booleans()) else (*left, m, k)
    y_shape = (k,) if not right and data.draw(st.booleans()) else (*right, k, n)
    x, y = floats(*x_shape), floats(*y_shape, seed=1)
    assert_close(call(lambda a, b: a @ b, x, y), np.asarray(x @ y))


@given(st.data())
def test_convolution_rule_holds(data) -> None:
    """Random strides, paddings, dilations and groups; every factor split without an exchange."""
    dims = data.draw(st.integers(1, 2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(dims))

    groups, window = data.draw(st.sampled_from([1, 2, 3])), each(1, 3)
    stride, dilation = each(1, 3), each(1, 2)
    padding = tuple(
        (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(dims)
    )
    size = tuple(
        d * (k - 1) + 1 + extra for d, k, extra in zip(dilation, window, each(0, 3), strict=True)
    )
    op = ops.Convolution(stride, padding, dilation, groups)
    x, w = floats(2, 2 * groups, *size), floats(2 * groups, 2, *window, seed=1)
    (y,) = op.infer([type_of(x), type_of(w)])
    dy = floats(*y.shape, seed=2)
    for case, arrays in (
        (op, (x, w)),
        (op.input_gradient(size), (dy, w)),
        (op.weight_gradient(window), (x, dy)),
    ):
        types = [type_of(array) for array in arrays]
        rule = case.rule(types, case.infer(types))
        for factor in rule.splittable:
            if factor in rule.special:
                continue  # parts are exchanged: tests/partition/test_halos.py
            check_rule(case, arrays, [factor])


NUMBERS = [d for d in DType if d != DType.bool_]


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_promotion_commutes_and_keeps_the_kind(left: DType, right: DType) -> None:
    try:
        met = promote(left, right)
    except ShapeError:
        assert left.is_float != right.is_float or DType.uint64 in (left, right)
        with pytest.raises(ShapeError, match="do not mix"):
            promote(right, left)
    else:
        assert promote(right, left) == met
        assert met.itemsize >= max(left.itemsize, right.itemsize)
        assert met.is_float == left.is_float == right.is_float
