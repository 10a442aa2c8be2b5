"""Layers that join or rearrange tensors."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.definition import POSITIVE, Check
from mithril.models.layer import layer
from mithril.models.trace_context import layer_path
from mithril.ops import concatenate, mean
from mithril.ops.shape import normalize_axis


def _are_integers(value: Any, least: int | None = None) -> bool:
    return isinstance(value, tuple | list) and all(
        isinstance(n, int) and not isinstance(n, bool) and (least is None or n >= least)
        for n in value
    )


_SHAPE = Check("a tuple of sizes, one of them -1 at most", lambda v: _are_integers(v, -1))
_ORDER = Check("a tuple of dimensions, or None", lambda v: v is None or _are_integers(v))
_AXES = Check(
    "a dimension, a tuple of them, or None",
    lambda v: v is None or _are_integers(v) or _are_integers((v,)),
)


@layer()
def Add(*inputs: Tensor) -> Tensor:  # noqa: N802
    """Add tensors: `Add()(inputs=["a", "b"], output="sum")`.

    Args:
        inputs: two or more tensors whose shapes broadcast.

    Returns:
        Their sum.

    Raises:
        ShapeError: fewer than two tensors, or the shapes do not broadcast.

    >>> Add()
    Add()
    """
    return functools.reduce(operator.add, _several("adds", inputs))


@layer
def Multiply(*inputs: Tensor) -> Tensor:  # noqa: N802
    """Multiply tensors element by element: `Multiply()(inputs=["a", "b"], output="product")`.

    Args:
        inputs: two or more tensors whose shapes broadcast.

    Returns:
        Their product.

    Raises:
        ShapeError: fewer than two tensors, or the shapes do not broadcast.

    >>> Multiply()
    Multiply()
    """
    return functools.reduce(operator.mul, _several("multiplies", inputs))


@layer
def Subtract(left: Tensor, right: Tensor) -> Tensor:  # noqa: N802
    """Subtract one tensor from another: output = left - right.

    Args:
        left: any numbers.
        right: a shape that broadcasts with it.

    Returns:
        The difference.

    Raises:
        ShapeError: the shapes do not broadcast.

    >>> Subtract()
    Subtract()
    """
    return left - right


@layer
def Divide(left: Tensor, right: Tensor) -> Tensor:  # noqa: N802
    """Divide one tensor by another: output = left / right.

    Args:
        left: any numbers; integers are divided as float32.
        right: a shape that broadcasts with it.

    Returns:
        The quotient.

    Raises:
        ShapeError: the shapes do not broadcast.

    >>> Divide()
    Divide()
    """
    return left / right


@layer
def MatMul(left: Tensor, right: Tensor) -> Tensor:  # noqa: N802
    """Multiply matrices: output = left @ right, as in NumPy.

    Args:
        left: [..., n, k], or a vector [k].
        right: [..., k, m], or a vector [k].

    Returns:
        [..., n, m].

    Raises:
        ShapeError: the inner sizes differ, or the leading ones do not broadcast.

    >>> MatMul()
    MatMul()
    """
    return left @ right


@layer
def Concat(*inputs: Tensor, axis: int = -1) -> Tensor:  # noqa: N802
    """Put tensors one after another: `Concat()(inputs=["a", "b"], output="both")`.

    Args:
        inputs: one or more tensors, equal in all sizes but one.
        axis: the dimension along which they follow one another; the last by default.

    Returns:
        The joined tensor.

    Raises:
        ShapeError: other sizes differ.

    >>> Concat(axis=1)
    Concat(axis=1)
    """
    return concatenate(inputs, axis)


@layer(
    outputs=lambda sections: [f"output_{i}" for i in range(sections)],
    checks={"sections": POSITIVE},
)
def Split(input: Tensor, *, sections: int, axis: int = -1) -> dict[str, Tensor]:  # noqa: N802
    """Cut a tensor into equal parts: `Split(2)(input="x", output_0="a", output_1="b")`.

    Args:
        input: any shape but a scalar.
        sections: number of parts, and of outputs: `output_0`, `output_1`, ….
        axis: the dimension that is cut; the last by default.

    Returns:
        The parts.

    Raises:
        ShapeError: the dimension does not divide into so many parts.

    >>> Split(3).output_ports
    ('output_0', 'output_1', 'output_2')
    """
    at = normalize_axis(axis, input.ndim, "split")
    size = input.shape[at]
    if size % sections:
        raise ShapeError(
            f"layer '{layer_path()}' cannot cut dimension {axis} ({size}) into {sections} equal "
            f"parts; choose a divisor of {size}"
        )
    step, before = size // sections, (slice(None),) * at
    return {
        f"output_{i}": input[(*before, slice(i * step, (i + 1) * step))] for i in range(sections)
    }


@layer(checks={"shape": _SHAPE})
def Reshape(input: Tensor, *, shape: tuple[int, ...]) -> Tensor:  # noqa: N802
    """Give each sample another shape; the first dimension, the batch, stays.

    Args:
        input: [batch, ...].
        shape: sizes of the other dimensions; one may be -1.

    Returns:
        [batch, *shape].

    Raises:
        ShapeError: the input is a scalar, or the number of elements differs.

    >>> Reshape((4, -1))
    Reshape(shape=(4, -1))
    """
    if not input.ndim:
        raise ShapeError(
            f"layer '{layer_path()}' cannot reshape the scalar {input.type}; give [batch, ...]"
        )
    return input.reshape(input.shape[0], *shape)


@layer(checks={"order": _ORDER})
def Transpose(input: Tensor, *, order: tuple[int, ...] | None = None) -> Tensor:  # noqa: N802
    """Put the dimensions in another order.

    Args:
        input: any shape.
        order: for each dimension of the output, which one of the input it is; the last two are
            swapped by default.

    Returns:
        The rearranged tensor.

    Raises:
        ShapeError: the order does not name every dimension once.

    >>> Transpose((0, 2, 1))
    Transpose(order=(0, 2, 1))
    """
    return input.T if order is None else input.transpose(tuple(order))


@layer(checks={"axis": _AXES})
def Mean(  # noqa: N802
    input: Tensor, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """Average over some dimensions, all by default.

    Args:
        input: any shape.
        axis: the dimensions.
        keepdims: whether they stay, with size 1.

    Returns:
        The means; of integers in float32.

    Raises:
        ShapeError: there is nothing to average, or no such dimension.

    >>> Mean(axis=-1)
    Mean(axis=-1)
    """
    return mean(input, axis, keepdims=keepdims)


@layer()
def Flatten(input: Tensor) -> Tensor:  # noqa: N802
    """Join all dimensions after the first into one.

    Args:
        input: [batch, ...].

    Returns:
        [batch, features].

    Raises:
        ShapeError: the input is a scalar.

    >>> Flatten()
    Flatten()
    """
    if not input.ndim:
        raise ShapeError(
            f"layer '{layer_path()}' cannot flatten the scalar {input.type}; give [batch, ...]"
        )
    return input.reshape(input.shape[0], math.prod(input.shape[1:]))


def _several(does: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(inputs) < 2:
        raise ShapeError(
            f"layer '{layer_path()}' {does} {len(inputs)} tensor; give at least two, such as "
            f'inputs=["a", "b"]'
        )
    return inputs


__all__ = [
    "Add", "Concat", "Divide", "Flatten", "MatMul", "Mean", "Multiply", "Reshape",
    "Split", "Subtract", "Transpose",
]  # fmt: skip
