"""Loss scale: gradients of float16 are computed of a multiple of the loss, and divided again.

Micikevicius et al., "Mixed Precision Training" (2018): small gradients would be zero in float16. A
dynamic scale is halved where a gradient overflows, and doubled after many steps without; a step
that overflows changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mithril.errors import OptionError
from mithril.ir import Tensor
from mithril.ops import cast, maximum, where
from mithril.option_checks import is_number
from mithril.types import DType, TensorType, promote, to_python

SCALE, GOOD, SKIPPED = "loss_scale.scale", "loss_scale.good_steps", "loss_scale.skipped_steps"
TYPES = {
    SCALE: TensorType((), DType.float32),
    GOOD: TensorType((), DType.int32),
    SKIPPED: TensorType((), DType.int32),
}
FIRST, FACTOR, INTERVAL, LEAST = 2.0**15, 2.0, 2000, 1.0
"""A dynamic scale at first, what it is changed by, after so many good steps, and its least."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """How the loss is scaled.

    Args:
        first: the scale at first.
        is_dynamic: whether it follows what overflows.
    """

    first: float
    is_dynamic: bool

    def make_start(self) -> dict[str, float]:
        """Return what is kept at first, by name."""
        return {SCALE: self.first, GOOD: 0, SKIPPED: 0}

    def advance(self, kept: Mapping[str, Tensor], is_finite: Tensor) -> dict[str, Tensor]:
        """Return what is kept next.

        Args:
            kept: now, by name.
            is_finite: whether all gradients of the step are.
        """
        scale, good = kept[SCALE], kept[GOOD]
        counted = cast(is_finite, DType.int32)
        skipped = kept[SKIPPED] + (1 - counted)
        if not self.is_dynamic:
            return {SCALE: scale, GOOD: (good + 1) * counted, SKIPPED: skipped}
        is_due = good + 1 >= INTERVAL
        grown = where(is_due, scale * FACTOR, scale)
        shrunk = maximum(scale / FACTOR, LEAST)
        after = where(is_due, 0, good + 1) * counted
        return {SCALE: where(is_finite, grown, shrunk), GOOD: after, SKIPPED: skipped}


def read_loss_scale(given: Any) -> LossScale | None:
    """Return what `loss_scale=` means.

    Raises:
        OptionError: it is neither `dynamic` nor a positive number.
    """
    given = to_python(given)
    if given is None:
        return None
    if given == "dynamic":
        return LossScale(FIRST, is_dynamic=True)
    if is_number(given) and math.isfinite(given) and given > 0:
        return LossScale(float(given), is_dynamic=False)
    raise OptionError(f"loss_scale={given!r} is neither 'dynamic' nor a positive number")


def unscale(gradients: Mapping[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    """Return gradients of the loss itself, in float32, or wider where they are."""
    return {n: cast(x, promote(x.dtype, DType.float32)) / scale for n, x in gradients.items()}


def choose(is_finite: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return what a step has made of something, or what it was where gradients overflowed."""
    chosen: Tensor = where(is_finite, new, old)
    return chosen


__all__ = ["SCALE", "TYPES", "LossScale", "choose", "read_loss_scale", "unscale"]
