"""What layers ask of their inputs: ranks and dtypes, with messages that name the layer."""

from __future__ import annotations

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.trace_context import layer_path


def require_rank(input: Tensor, layout: tuple[str, ...]) -> None:
    """Raise unless a tensor has the dimensions of a layout.

    Raises:
        ShapeError: the rank differs.
    """
    if input.ndim != len(layout):
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [{', '.join(layout)}], not {input.type}; "
            f"reshape it to {len(layout)} dimensions"
        )


def require_features(input: Tensor) -> None:
    """Raise unless a tensor holds floats and has a last dimension to work along.

    Raises:
        ShapeError: it is a scalar, or of another dtype.
    """
    if not input.ndim:
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [..., features], not the scalar {input.type}; "
            f"reshape it to (1,)"
        )
    if not input.dtype.is_float:
        raise ShapeError(
            f"layer '{layer_path()}' needs an input of floats, not {input.type}; convert it with "
            f"astype, or look ids up with Embedding"
        )
