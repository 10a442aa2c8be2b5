"""Rotary position embedding: pairs of a head's elements turned by an angle that grows along s.

The sequence is an ordinary factor. On a shard that holds only a part of it the op gets the position
of its first element as a further int32 operand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import Operand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.elementwise import cast
from mithril.ops.functions import cos, exp, sin
from mithril.ops.index import iota
from mithril.ops.numbers import clip
from mithril.ops.reduce import accumulator
from mithril.ops.rope_scaling import Scaling, ramp, read_scaling, stretch
from mithril.ops.shape import concatenate, reshape
from mithril.types import DType


@register
@dataclass(frozen=True)
class Rope(Op):
    """Rotary position embedding (Su et al., "RoFormer", 2021); operands (x[, positions]).

    x is [b, s, h, d]. At position p the pair number i of a head is turned by p / base**(2 i / d),
    slower as `scaling` says (`ops.rope_scaling`), backwards when `inverse`. A pair is (i, i + d/2),
    or (2 i, 2 i + 1) when `interleaved`.
    Positions are `offset` + 0, 1, … along s, counted from the operand `positions` if that is a
    scalar, or they are that operand: [s] or [b, s].
    """

    name: ClassVar[str] = "rope"
    base: float
    offset: int
    interleaved: bool
    inverse: bool
    scaling: Scaling = ()

    def infer(self, inputs: Types) -> Types:
        x, *positions = inputs
        if x.rank != 4 or not x.dtype.is_float or x.shape[3] % 2:
            raise ShapeError(
                f"rope gets {x}; it needs [batch, sequence, heads, head_dim] of a float dtype, "
                f"with an even head_dim"
            )
        if not self.base > 0:
            raise ShapeError(f"rope has base {self.base}; choose a positive one, such as 10000.0")
        for t in positions:
            if not t.dtype.is_integer or t.shape not in ((), x.shape[1:2], x.shape[:2]):
                raise ShapeError(
                    f"rope of {x} has positions {t}; give integers of shape {x.shape[1:2]}, "
                    f"{x.shape[:2]}, or a scalar to count from"
                )
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        _, *positions = inputs
        back = replace(self, inverse=not self.inverse)
        g: Any = cotangents[0]
        return [apply_one(back, g, *positions), *(None for _ in positions)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        positions = ["", "s", "b s"][inputs[1].rank] if len(inputs) > 1 else None
        left = "b s h d" if positions is None else f"b s h d, {positions}"
        return Rule.parse(f"{left} -> b s h d", inputs, outputs, whole="d", linear=((0,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(3 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        start, (x, *positions) = shard.offset("s"), inputs
        if start is not None and not (positions and positions[0].ndim):
            positions = [start + cast(first, start.dtype) for first in positions] or [start]
        return shard.apply(self, x, *positions)

    def expand(self, inputs: Tensors) -> Tensors:
        x: Any = cast(inputs[0], accumulator(inputs[0].dtype))
        half = x.shape[3] // 2
        angle = self._angles(x, inputs[1:])
        turn, tilt = cos(angle), sin(angle)
        tilt = -tilt if self.inverse else tilt
        if self.interleaved:
            pairs = reshape(x, (*x.shape[:3], half, 2))
            first, second = (reshape(pairs[..., i], (*x.shape[:3], half)) for i in (0, 1))
        else:
            first, second = x[..., :half], x[..., half:]
        # Whole rows of cosines and sines are made once for all heads; compilers make halves of them
        # anew for each (XLA on CPUs takes ten times as long).
        turned = x * self._join(turn, turn) + self._join(second, first) * self._join(-tilt, tilt)
        return [cast(turned, inputs[0].dtype)]

    def _join(self, first: Any, second: Any) -> Any:
        """Return rows from the first and the second elements of their pairs."""
        if not self.interleaved:
            return concatenate([first, second], -1)
        parts = [reshape(part, (*part.shape, 1)) for part in (first, second)]
        return reshape(concatenate(parts, -1), (*first.shape[:-1], 2 * first.shape[-1]))

    def _angles(self, x: Any, positions: Tensors) -> Any:
        """Return the angles, [s, 1, d/2] or [b, s, 1, d/2]."""
        s, d = x.shape[1], x.shape[3]
        at: Any = positions[0] if positions else None
        if at is None or not at.ndim:
            counted = iota(x, (s,))
            at = counted if at is None else counted + cast(at, DType.int32)
        at = cast(at + self.offset if self.offset else at, x.dtype)
        return reshape(at, (*at.shape, 1, 1)) * self._speeds(x, d)

    def _speeds(self, x: Any, d: int) -> Any:
        """Return the angles a position turns by, [d/2]; the numbers are those of `speeds`."""
        pair: Any = iota(x, (d // 2,), dtype=x.dtype)
        speed: Any = exp(pair * (-2.0 * math.log(self.base) / d))
        if not self.scaling:
            return speed
        slope, start, of_speed = ramp(self.base, self.scaling, d)
        share = clip((speed if of_speed else pair) * slope + start, 0.0, 1.0)
        return speed * (share + (1.0 - share) / self.scaling[1])


def rope(
    x: Any,
    positions: Any = None,
    *,
    base: float = 10000.0,
    offset: int = 0,
    interleaved: bool = False,
    scaling: Mapping[str, Any] | None = None,
) -> Any:
    """Return queries or keys with their position rotated into them.

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. The product of
    two rotated vectors depends on how far apart they are. Angles are computed in at least float32.

    Args:
        x: [batch, sequence, heads, head_dim], of a float dtype; head_dim is even.
        positions: integers [sequence] or [batch, sequence]; by default 0, 1, …. A scalar is the
            position of the first element.
        base: pair i turns by 1 / base**(2 i / head_dim) radians per position.
        offset: added to all positions.
        interleaved: pairs are neighbours (2 i, 2 i + 1), as in the paper, instead of
            (i, i + head_dim / 2), as in GPT-NeoX and Llama.
        scaling: how longer sequences are reached, as in the configurations of transformers:
            {"rope_type": "linear", "factor": …}; "llama3" with "factor", "low_freq_factor",
            "high_freq_factor" and "original_max_position_embeddings"; "yarn" with "factor",
            "original_max_position_embeddings", and "beta_fast" (32), "beta_slow" (1) and
            "attention_factor", by which vectors become longer (0.1 ln(factor) + 1).

    Returns:
        The same shape and dtype as x.

    Raises:
        OptionError: there is no such scaling, or a number of it is missing or cannot be.
        ShapeError: shapes or dtypes do not fit.

    >>> x = backend.ones((1, 2, 1, 2))
    >>> rope(x).numpy()[0, :, 0].round(4)
    array([[ 1.    ,  1.    ],
           [-0.3012,  1.3818]], dtype=float32)
    """
    chosen = read_scaling(scaling)
    op = Rope(float(base), int(offset), bool(interleaved), inverse=False, scaling=chosen)
    turned = apply_one(op, x) if positions is None else apply_one(op, x, _whole(positions))
    longer = stretch(chosen)
    return turned if longer == 1.0 else turned * longer


def _whole(positions: Any) -> Any:
    if isinstance(positions, Operand):
        return positions
    raise ShapeError(
        f"rope has positions of type {type(positions).__name__}; pass a tensor of integers, or a "
        f"number as offset="
    )


__all__ = ["Rope", "rope"]
