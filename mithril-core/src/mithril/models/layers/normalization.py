"""Layers that bring features to a common scale."""

from __future__ import annotations

from mithril.ir import Tensor
from mithril.models.definition import POSITIVE_NUMBER
from mithril.models.initializers import Constant
from mithril.models.layer import layer
from mithril.models.shapes import require_features
from mithril.models.tracing import parameter
from mithril.ops import layer_norm


@layer(parameters=("weight", "bias"), checks={"epsilon": POSITIVE_NUMBER})
def LayerNorm(input: Tensor, *, epsilon: float = 1e-5) -> Tensor:  # noqa: N802
    """Bring the features of each position to mean 0 and variance 1, then scale and shift them.

    Parameters are `weight` (features,), starting at 1, and `bias` (features,), starting at 0.

    Args:
        input: [..., features], floats.
        epsilon: added to the variance.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is a scalar or not of floats.

    >>> LayerNorm()
    LayerNorm()
    """
    require_features(input)
    features = input.shape[-1:]
    gain = parameter("weight", features, Constant(1.0))
    bias = parameter("bias", features, Constant(0.0))
    output: Tensor = layer_norm(input, gain, bias, epsilon)
    return output
