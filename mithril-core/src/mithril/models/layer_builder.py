"""The builder of a model's graph: it takes in arrays of values that layers use from around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mithril.ir import Operand, Tensor
from mithril.ir.capture import CapturingBuilder, Convert, Converted
from mithril.ops import cast
from mithril.options import Precision
from mithril.types import DType, TensorType, dtype_of_values


class LayerBuilder(CapturingBuilder):
    """Collects what layers compute.

    Args:
        convert: what makes arrays of values.
        precision: gives floats their dtype.
    """

    def __init__(self, convert: Convert, precision: Precision) -> None:
        super().__init__(convert, precision.activations)
        self._precision = precision

    def enter(self, hidden: Tensor) -> Tensor:
        """Return a captured array in the dtype that layers compute in."""
        return enter(hidden, self._precision)


def enter(tensor: Tensor, precision: Precision) -> Tensor:
    """Return what goes into a model in the dtype that layers compute in, if one is given."""
    is_cast = precision.is_given and tensor.dtype.is_float
    return cast(tensor, precision.activations) if is_cast else tensor


@dataclass(frozen=True, slots=True)
class _Described:
    type: TensorType


def describe_values(x: object, dtype: DType | None = None) -> Converted | None:
    """Return the type that values have as an array of some backend, None if they are none."""
    if isinstance(x, Operand):
        return Converted(x, is_free=False)
    if not isinstance(x, np.ndarray | np.generic):
        return None
    chosen = dtype or dtype_of_values(np.asarray(x), DType.float32)
    return Converted(_Described(TensorType(x.shape, chosen)), is_free=True)
