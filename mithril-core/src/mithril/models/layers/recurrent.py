"""Recurrent layers: a state that goes along a sequence.

What the inputs give to the gates is computed for the whole sequence at once; a loop of the plan
adds what the state gives to them, or both are one op (`mithril.ops.recurrent`). Sequences are
[batch, sequence, features] outside and [sequence, batch, features] in between, so that a step is a
slice of the first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mithril.errors import OptionError, ShapeError
from mithril.ir import Tensor
from mithril.models.definition import FRACTION, POSITIVE
from mithril.models.initializers import fan_in_uniform
from mithril.models.layer import layer
from mithril.models.shapes import require_features, require_rank
from mithril.models.trace_context import (
    is_inference,
    layer_path,
    layer_salt,
    parameter,
    section,
    seed,
)
from mithril.ops import (
    broadcast_to,
    cast,
    concatenate,
    dropout,
    einsum,
    repeat,
    sigmoid,
    stack,
    tanh,
)
from mithril.ops.recurrent import lstm
from mithril.types import promote

DIRECTIONS = ("", ".reverse")
WEIGHTS = (("layer_*.input.weight",), ("layer_*.hidden.weight",))
CHECKS = {"hidden_dim": POSITIVE, "num_layers": POSITIVE, "dropout": FRACTION}

Tensors = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class _Cell:
    """What the layers of one kind have in common.

    Args:
        gates: how many there are.
        go_along: takes the input, weights, states to start from, biases, and whether to begin at
            the end of the sequence; returns the last states, then h at every position.
    """

    gates: int
    go_along: Callable[[Tensor, Tensors, Tensors, Tensors, bool], Tensors]


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a recurrent layer."""

    hidden_dim: int
    num_layers: int
    bidirectional: bool
    dropout: float
    bias: bool

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions of each layer."""
        return DIRECTIONS[: 1 + self.bidirectional]


def _parameters(
    num_layers: int, bidirectional: bool, bias: bool, dropout: float
) -> tuple[str, ...]:
    """Return the names of the parameters of a recurrent layer.

    Raises:
        OptionError: dropout, which comes between layers, has no place.
    """
    if dropout and num_layers == 1:
        raise OptionError(
            f"recurrent layer has dropout={dropout}, which comes between layers, and num_layers=1; "
            f"use more layers, or a Dropout behind it"
        )
    return tuple(
        f"layer_{number}{direction}.{part}.{kind}"
        for number in range(num_layers)
        for direction in DIRECTIONS[: 1 + bidirectional]
        for part in ("input", "hidden")
        for kind in ("weight", "bias")[: 1 + bias]
    )


@layer(
    parameters=_parameters,
    outputs=("output", "last_hidden", "last_cell"),
    weights=WEIGHTS,
    checks=CHECKS,
)
def LSTM(  # noqa: N802
    input: Tensor,
    hidden: Tensor | None = None,
    cell: Tensor | None = None,
    *,
    hidden_dim: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    bias: bool = True,
) -> dict[str, Tensor]:
    """Carry a memory along a sequence, which gates write, keep and read: long short-term memory.

    Hochreiter and Schmidhuber, "Long short-term memory", 1997, with forget gates (Gers et al.,
    2000), in the equations of PyTorch; h and c are the state, x a position of the sequence:

        i, f, g, o = input.weight @ x + input.bias + hidden.weight @ h + hidden.bias
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(c')

    Parameters of layer n are `layer_n.input.weight` (4, hidden_dim, features), of the gates i, f,
    g, o in that order, `layer_n.input.bias` (4, hidden_dim), `layer_n.hidden.weight` (4,
    hidden_dim, hidden_dim) and `layer_n.hidden.bias`; of the other direction `layer_n.reverse.…`.
    All start uniform within 1 / sqrt(hidden_dim). PyTorch has the gates below one another:
    `weight_ih_l0` is `layer_0.input.weight` as (4 * hidden_dim, features). A `weight_shard_spec`
    list gives the spec of input weights, then that of hidden ones.

    Args:
        input: [batch, sequence, features], floats.
        hidden: h before the first position, [layers, batch, hidden_dim], where a direction counts
            as a layer (layer_0, layer_0.reverse, layer_1, …); zeros if it is not connected.
        cell: c likewise.
        hidden_dim: number of features of h and c.
        num_layers: number of layers, each of which goes along what the one before made.
        bidirectional: whether each layer also goes from the last position to the first, with
            parameters of its own; what both make stands side by side.
        dropout: share of the elements between two layers that are set to zero in training.
        bias: whether to add biases.

    Returns:
        `output`, h of the last layer at every position, [batch, sequence, hidden_dim], or twice as
        many features with two directions; `last_hidden` and `last_cell`, h and c of all layers
        behind the last position (the first one, for the other direction), [layers, batch,
        hidden_dim].

    Raises:
        OptionError: dropout is given, and there is one layer.
        ShapeError: the input has another rank or dtype, the sequence is empty, or a state has
            another shape or dtype.

    >>> LSTM(hidden_dim=32, num_layers=2).output_ports
    ('output', 'last_hidden', 'last_cell')
    """
    options = _Options(hidden_dim, num_layers, bidirectional, dropout, bias)
    output, (last_hidden, last_cell) = _run(
        input, {"hidden": hidden, "cell": cell}, options, _Cell(4, _go_along_lstm)
    )
    return {"output": output, "last_hidden": last_hidden, "last_cell": last_cell}


@layer(parameters=_parameters, outputs=("output", "last_hidden"), weights=WEIGHTS, checks=CHECKS)
def GRU(  # noqa: N802
    input: Tensor,
    hidden: Tensor | None = None,
    *,
    hidden_dim: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    bias: bool = True,
) -> dict[str, Tensor]:
    """Carry a state along a sequence, which gates reset and update: a gated recurrent unit.

    Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, in the equations
    of PyTorch; h is the state, x a position of the sequence:

        r, z, n = input.weight @ x + input.bias
        s, y, m = hidden.weight @ h + hidden.bias
        u = sigmoid(z + y)
        h' = (1 - u) * tanh(n + sigmoid(r + s) * m) + u * h

    Parameters of layer n are `layer_n.input.weight` (3, hidden_dim, features), of the gates r, z, n
    in that order, `layer_n.input.bias` (3, hidden_dim), `layer_n.hidden.weight` (3, hidden_dim,
    hidden_dim) and `layer_n.hidden.bias`; of the other direction `layer_n.reverse.…`. All start
    uniform within 1 / sqrt(hidden_dim). PyTorch has the gates below one another: `weight_ih_l0` is
    `layer_0.input.weight` as (3 * hidden_dim, features). A `weight_shard_spec` list gives the spec
    of input weights, then that of hidden ones.

    Args:
        input: [batch, sequence, features], floats.
        hidden: h before the first position, [layers, batch, hidden_dim], where a direction counts
            as a layer (layer_0, layer_0.reverse, layer_1, …); zeros if it is not connected.
        hidden_dim: number of features of h.
        num_layers: number of layers, each of which goes along what the one before made.
        bidirectional: whether each layer also goes from the last position to the first, with
            parameters of its own; what both make stands side by side.
        dropout: share of the elements between two layers that are set to zero in training.
        bias: whether to add biases.

    Returns:
        `output`, h of the last layer at every position, [batch, sequence, hidden_dim], or twice as
        many features with two directions; `last_hidden`, h of all layers behind the last position
        (the first one, for the other direction), [layers, batch, hidden_dim].

    Raises:
        OptionError: dropout is given, and there is one layer.
        ShapeError: the input has another rank or dtype, the sequence is empty, or a state has
            another shape or dtype.

    >>> GRU(32, bidirectional=True).parameters[4:6]
    ('layer_0.reverse.input.weight', 'layer_0.reverse.input.bias')
    """
    options = _Options(hidden_dim, num_layers, bidirectional, dropout, bias)
    output, (last,) = _run(input, {"hidden": hidden}, options, _Cell(3, _go_along_gru))
    return {"output": output, "last_hidden": last}


def _go_along_lstm(
    x: Tensor, weights: Tensors, start: Tensors, biases: Tensors, is_reverse: bool
) -> Tensors:
    outputs, hidden, cell = lstm(x, weights, start, biases, reverse=is_reverse)
    return hidden, cell, outputs


def _go_along_gru(
    x: Tensor, weights: Tensors, start: Tensors, biases: Tensors, is_reverse: bool
) -> Tensors:
    given = einsum("sbx,ghx->sbgh", x, weights[0])
    if biases:
        given = given + biases[0]

    def step(hidden: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
        fed_back = einsum("bx,ghx->bgh", hidden, weights[1])
        after = _gru_step(hidden, here, fed_back + biases[1] if biases else fed_back)
        return after, after

    ends: Tensors = repeat(step, start, stacked=(given,), reverse=is_reverse)
    return ends


def _gru_step(hidden: Tensor, given: Tensor, fed_back: Tensor) -> Tensor:
    reset = sigmoid(given[:, 0] + fed_back[:, 0])
    update = sigmoid(given[:, 1] + fed_back[:, 1])
    new = tanh(given[:, 2] + reset * fed_back[:, 2])
    return (1.0 - update) * new + update * hidden


def _run(
    input: Tensor, initial: dict[str, Tensor | None], options: _Options, cell: _Cell
) -> tuple[Tensor, list[Tensor]]:
    """Return what the last layer makes, and for each state those that all layers end in."""
    require_rank(input, ("batch", "sequence", "features"))
    require_features(input)
    if not input.shape[1]:
        raise ShapeError(
            f"layer '{layer_path()}' goes along a sequence, and that of {input.type} is empty; "
            f"give at least one position"
        )
    states = [_states(input, name, given, options) for name, given in initial.items()]
    x = input.transpose(1, 0, 2)
    last: list[list[Tensor]] = []
    for number in range(options.num_layers):
        made = []
        for direction in options.directions:
            start = [state[len(last)] for state in states]
            with section(f"layer_{number}{direction}"):
                *ends, outputs = _go_along(x, start, options, cell, is_reverse=bool(direction))
            made.append(outputs)
            last.append(ends)
        x = made[0] if len(made) == 1 else concatenate(made, -1)
        if options.dropout and number + 1 < options.num_layers and not is_inference():
            x = dropout(x, seed(), options.dropout, layer_salt(f"layer_{number}"))
    return x.transpose(1, 0, 2), [stack(ends) for ends in zip(*last, strict=True)]


def _go_along(
    x: Tensor, start: Sequence[Tensor], options: _Options, cell: _Cell, *, is_reverse: bool
) -> Sequence[Tensor]:
    """Return the states that one layer ends in one direction in, and h at every position."""
    weights, biases = [], []
    for part, features in (("input", x.shape[-1]), ("hidden", options.hidden_dim)):
        weights.append(_weight(part, cell, options, features))
        biases += [_bias(part, cell, options)] if options.bias else []
    dtype = promote(promote(x.dtype, weights[0].dtype), weights[1].dtype)
    same = ([cast(tensor, dtype) for tensor in some] for some in ([x], weights, start, biases))
    (x,), weights, start, biases = same
    return cell.go_along(x, weights, start, biases, is_reverse)


def _weight(part: str, cell: _Cell, options: _Options, features: int) -> Tensor:
    with section(part):
        size = options.hidden_dim
        return parameter("weight", (cell.gates, size, features), fan_in_uniform(size))


def _bias(part: str, cell: _Cell, options: _Options) -> Tensor:
    with section(part):
        size = options.hidden_dim
        return parameter("bias", (cell.gates, size), fan_in_uniform(size))


def _states(input: Tensor, name: str, given: Tensor | None, options: _Options) -> Tensor:
    """Return a state before the first position, of all layers."""
    layers = options.num_layers * len(options.directions)
    wanted = input.type.with_shape((layers, input.shape[0], options.hidden_dim))
    if given is None:
        zeros: Tensor = broadcast_to(input.builder.constant(0.0, input.dtype), wanted.shape)
        return zeros
    if given.type != wanted:
        raise ShapeError(
            f"layer '{layer_path()}' starts from '{name}' {wanted}, [layers, batch, hidden_dim], "
            f"not {given.type}; a direction counts as a layer"
        )
    return given


__all__ = ["GRU", "LSTM"]
