"""Counter-based random numbers inside a plan, and dropout.

The bits of an element depend on the seed, a salt and the element's *global* index, so they are the
same on every mesh, and the forward and backward computation of one seed agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import OptionError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import greater, greater_equal, where
from mithril.ops.elementwise import cast
from mithril.ops.functions import cos, log, sqrt
from mithril.ops.integer import remainder
from mithril.types import DType, Shape, TensorType

_OTHER = 0x5BD1E995
"""Turns a salt into one for a second draw."""
_STEP = 0x85EBCA6B
"""Distance of the seeds of two steps: odd, so that all seeds come, and no small number, so that
runs with the seeds 0 and 1 have no steps in common."""


@register
@dataclass(frozen=True)
class RandomBits(Op):
    """Uniform uint32 words of a uint32 seed, by Threefry-2x32 with 20 rounds.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). Operands (seed), and on a
    shard the offset of each dimension.

    Args:
        shape: shape of the result, local on a shard.
        global_shape: shape of the whole tensor.
        salt: second word of the key, after the seed.
        width: high bits that are kept, moved to the low end.
    """

    name: ClassVar[str] = "random_bits"
    is_pointwise: ClassVar[bool] = True
    shape: Shape
    global_shape: Shape
    salt: int
    width: int = 32

    def infer(self, inputs: Types) -> Types:
        if inputs[0] != TensorType((), DType.uint32):
            raise ShapeError(f"random bits need a uint32 scalar as seed, not {inputs[0]}; cast it")
        return [TensorType(self.shape, DType.uint32)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None] * len(inputs)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        names = tuple((f"d{i}",) for i in range(len(self.shape)))
        sizes = {f"d{i}": size for i, size in enumerate(self.shape)}
        return Rule(sizes, ((),), (names,))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(100 * outputs[0].size, outputs[0].nbytes)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        op = replace(self, shape=shard.outputs[0].shape)
        offsets = [shard.offset(f"d{i}") for i in range(len(self.shape))]
        if all(offset is None for offset in offsets):
            return shard.apply(op, *inputs)
        zero = inputs[0].builder.constant(0, DType.int32)
        return shard.apply(op, *inputs, *(zero if o is None else o for o in offsets))


def random_bits(seed: Any, shape: Shape, salt: int = 0, *, width: int = 32) -> Any:
    """Return uniform uint32 numbers below 2**width, by Threefry-2x32.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.

    Args:
        seed: a uint32 scalar; the same seed gives the same numbers on every mesh.
        shape: sizes of the result.
        salt: tells apart draws from one seed.
        width: random bits of a number, from 1 to 32.

    Returns:
        uint32 of that shape.

    Raises:
        OptionError: the width is out of range.
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> random_bits(seed, (3,), width=8).numpy()
    array([232,  58,  36], dtype=uint32)
    """
    if not 1 <= width <= 32:
        raise OptionError(f"random bits have width {width}; give a number from 1 to 32")
    return apply_one(RandomBits(tuple(shape), tuple(shape), salt, width), seed)


def split_seed(seed: Any, count: int, salt: int = 0) -> Any:
    """Return seeds for computations that shall draw independently of each other.

    They are words of a cipher, so that seeds which are split again, as in nested loops, have
    nothing in common either; multiples of a number, added to a seed, would meet.

    Args:
        seed: a uint32 scalar.
        count: number of seeds.
        salt: tells apart what splits the same seed.

    Returns:
        uint32, [count].

    Raises:
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> split_seed(seed, 2).numpy()
    array([3901892970,  984047233], dtype=uint32)
    """
    return random_bits(seed, (count,), salt)


def advance_seed(seed: Any) -> Any:
    """Return the seed of the next step.

    All 2**32 seeds come before one comes again, which repeated draws of `split_seed` would not
    give: they run into a cycle after some ten thousand steps.

    Args:
        seed: a uint32 scalar.

    Returns:
        Another uint32 scalar.

    >>> advance_seed(backend.array(7, dtype="uint32")).item()
    2246822514
    """
    return seed + _STEP


def uniform(seed: Any, shape: Shape, salt: int = 0) -> Any:
    """Return float32 numbers, uniform in [0, 1) in steps of 2**-24.

    Args:
        seed: a uint32 scalar; the same seed gives the same numbers on every mesh.
        shape: sizes of the result.
        salt: tells apart draws from one seed.

    Returns:
        float32 of that shape.

    Raises:
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> uniform(seed, (3,)).numpy().round(4)
    array([0.9085, 0.2291, 0.1428], dtype=float32)
    """
    bits = random_bits(seed, shape, salt, width=24)  # as many as float32 holds exactly
    return cast(bits, DType.float32) * 2.0**-24


def bernoulli(seed: Any, shape: Shape, probability: float, salt: int = 0) -> Any:
    """Return booleans that are true with a probability.

    Args:
        seed: a uint32 scalar; the same seed gives the same numbers on every mesh.
        shape: sizes of the result.
        probability: from 0 to 1.
        salt: tells apart draws from one seed.

    Returns:
        Booleans of that shape.

    Raises:
        OptionError: the probability is out of range.
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> bernoulli(seed, (4,), 0.5).numpy()
    array([ True, False, False, False])
    """
    if not 0.0 <= probability <= 1.0:
        raise OptionError(f"probability is {probability}; give a number in [0, 1]")
    bits = random_bits(seed, shape, salt)
    bound = round((1.0 - probability) * 2**32)
    # Nothing exceeds the largest uint32; every number is at least 0.
    return greater_equal(bits, bound) if bound < 2**32 else greater(bits, 2**32 - 1)


def normal(seed: Any, shape: Shape, salt: int = 0) -> Any:
    """Return float32 numbers of the standard normal distribution, by Box and Muller's method.

    Box and Muller, "A note on the generation of random normal deviates", 1958.

    Args:
        seed: a uint32 scalar; the same seed gives the same numbers on every mesh.
        shape: sizes of the result.
        salt: tells apart draws from one seed.

    Returns:
        float32 of that shape.

    Raises:
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> normal(seed, (3,)).numpy().round(3)
    array([ 1.363, -0.135, -0.193], dtype=float32)
    """
    positive = 1.0 - uniform(seed, shape, salt)  # never 0
    angle = uniform(seed, shape, salt ^ _OTHER) * (2.0 * math.pi)
    return sqrt(log(positive) * -2.0) * cos(angle)


def randint(seed: Any, shape: Shape, low: int, high: int, salt: int = 0) -> Any:
    """Return int32 numbers in [low, high); each as likely as the others up to one in 2**32 / range.

    Args:
        seed: a uint32 scalar; the same seed gives the same numbers on every mesh.
        shape: sizes of the result.
        low: the smallest number.
        high: one more than the largest number.
        salt: tells apart draws from one seed.

    Returns:
        int32 of that shape.

    Raises:
        OptionError: the range is empty, or no range of int32.
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> randint(seed, (5,), 0, 10).numpy()
    array([0, 3, 2, 2, 6], dtype=int32)
    """
    if not -(2**31) <= low < high <= 2**31 or high - low >= 2**31:
        raise OptionError(
            f"randint draws from [{low}, {high}); give the smaller int32 first, less than 2**31 "
            f"apart"
        )
    return cast(remainder(random_bits(seed, shape, salt), high - low), DType.int32) + low


def dropout(x: Any, seed: Any, rate: float, salt: int = 0) -> Any:
    """Return x with a share of its elements set to zero and the others scaled up to make up for it.

    Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014.

    Args:
        x: any float tensor.
        seed: a uint32 scalar; the same seed gives the same mask on every mesh.
        rate: share of elements to drop, in [0, 1).
        salt: tells apart layers of one seed.

    Returns:
        The shape and dtype of x; the elements that stay are divided by 1 - rate.

    Raises:
        OptionError: the rate is out of range.
        ShapeError: the seed is no uint32 scalar.

    >>> seed = backend.array(7, dtype="uint32")
    >>> dropout(backend.ones(6), seed, 0.5).numpy()
    array([2., 0., 0., 0., 2., 0.], dtype=float32)
    """
    if not 0.0 <= rate < 1.0:
        raise OptionError(f"dropout rate is {rate}; give a number in [0, 1)")
    if rate == 0.0:
        return x
    kept = bernoulli(seed, x.shape, 1.0 - rate, salt)
    return where(kept, x * (1.0 / (1.0 - rate)), 0.0)


__all__ = [
    "RandomBits",
    "advance_seed",
    "bernoulli",
    "dropout",
    "normal",
    "randint",
    "random_bits",
    "split_seed",
    "uniform",
]
