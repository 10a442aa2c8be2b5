"""Layers that multiply features by a weight."""

from __future__ import annotations

import string

from mithril.ir import Tensor
from mithril.models.definition import POSITIVE
from mithril.models.initializers import fan_in_uniform
from mithril.models.layer import layer
from mithril.models.layers.activation import ACTIVATION, Activation, read_activation
from mithril.models.shapes import require_features
from mithril.models.trace_context import parameter, section
from mithril.ops import einsum


def affine(input: Tensor, dimension: int, *, bias: bool = True) -> Tensor:
    """Return input @ weight.T + bias with new parameters `weight` and `bias`."""
    features = input.shape[-1]
    start = fan_in_uniform(features)
    weight = parameter("weight", (dimension, features), start)
    batch = string.ascii_lowercase[: input.ndim - 1]
    output: Tensor = einsum(f"{batch}y,zy->{batch}z", input, weight)
    return output + parameter("bias", (dimension,), start) if bias else output


@layer(
    parameters=lambda bias: ("weight", "bias") if bias else ("weight",),
    checks={"dimension": POSITIVE},
)
def Linear(input: Tensor, *, dimension: int, bias: bool = True) -> Tensor:  # noqa: N802
    """Multiply by a weight and add a bias: output = input @ weight.T + bias.

    Parameters are `weight` (dimension, features) and `bias` (dimension,), both starting uniform
    within 1 / sqrt(features).

    Args:
        input: [..., features], floats.
        dimension: size of the last dimension of the output.
        bias: whether to add a bias.

    Returns:
        [..., dimension].

    Raises:
        ShapeError: the input is a scalar or not of floats.

    >>> Linear(128)
    Linear(dimension=128)
    """
    require_features(input)
    return affine(input, dimension, bias=bias)


def _feed_forward(activation: Activation, gated: bool, bias: bool) -> tuple[str, ...]:
    is_gated = read_activation(activation, gated)[1]
    parts = ("up", "gate", "down") if is_gated else ("up", "down")
    kinds = ("weight", "bias") if bias else ("weight",)
    return tuple(f"{part}.{kind}" for part in parts for kind in kinds)


@layer(
    parameters=_feed_forward,
    weights=(("up.weight", "gate.weight"), ("down.weight",)),
    checks={"hidden_dim": POSITIVE, "activation": ACTIVATION},
)
def FeedForward(  # noqa: N802
    input: Tensor,
    *,
    hidden_dim: int,
    activation: Activation = "gelu",
    bias: bool = True,
    gated: bool = False,
) -> Tensor:
    """Widen the features, apply an activation, and return to their number.

    Parameters are `up.weight` (hidden_dim, features), `up.bias`, `down.weight` (features,
    hidden_dim) and `down.bias`. If gated (Shazeer, "GLU variants improve transformer", 2020),
    `gate.weight` and `gate.bias` are like those of `up`, and what comes down is
    activation(gate) * up. A `weight_shard_spec` list gives the spec of `up.weight` and
    `gate.weight`, then that of `down.weight`.

    Args:
        input: [..., features], floats.
        hidden_dim: number of features in between.
        activation: "elu", "gelu", "gelu_tanh", "hard_swish", "leaky_relu", "mish", "relu",
            "sigmoid", "silu", "softplus" or "tanh"; "geglu", "reglu" or "swiglu", which are gelu,
            relu and silu, gated; or a function from a tensor to one of its shape.
        bias: whether to add biases.
        gated: whether the activation is that of a gate.

    Returns:
        [..., features].

    Raises:
        ShapeError: the input is a scalar or not of floats.

    >>> FeedForward(hidden_dim=64, activation="gelu_tanh", gated=True).parameters[2:4]
    ('gate.weight', 'gate.bias')
    """
    require_features(input)
    activate, is_gated = read_activation(activation, gated)
    with section("up"):
        hidden = affine(input, hidden_dim, bias=bias)
    if is_gated:
        with section("gate"):
            hidden = activate(affine(input, hidden_dim, bias=bias)) * hidden
    else:
        with section("up"):
            hidden = activate(hidden)
    with section("down"):
        return affine(hidden, input.shape[-1], bias=bias)


__all__ = ["FeedForward", "Linear"]
