"""Long short-term memory along a sequence, and its gradient.

Of float32 on a CPU oneDNN runs a whole sequence, and its gradient is quick where the forward has
kept what it computed. Everything else is computed by PyTorch's own, and its gradient by products
over the whole sequence, from the states that were made, and one loop over its positions.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

LSTM_MODE = 2
"""The number of this kind of layer in oneDNN."""

Made = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def lstm(
    x: torch.Tensor,
    input_weight: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    *biases: torch.Tensor,
) -> Made:
    """Return the hidden states at all positions, the last one, and the last cell."""
    if _takes_onednn(x, hidden):
        return _run_onednn(x, input_weight, weight, hidden, cell, reverse, biases, False)[:3]
    if not hidden.numel():
        return x.new_zeros(x.shape[0], *hidden.shape), hidden, cell
    if not x.shape[2]:  # which PyTorch refuses; a feature that is 0 says as little
        x, input_weight = x.new_zeros(*x.shape[:2], 1), weight.new_zeros(*weight.shape[:2], 1)
    weights = [_flatten(input_weight), _flatten(weight), *(bias.flatten() for bias in biases)]
    states = (hidden.unsqueeze(0), cell.unsqueeze(0))
    x = x.flip(0) if reverse else x
    y, last, end = torch.lstm(x, states, weights, bool(biases), 1, 0.0, False, False, False)
    return y.flip(0) if reverse else y, last.squeeze(0), end.squeeze(0)


def lstm_keeping(
    x: torch.Tensor,
    input_weight: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    *biases: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the same, and what oneDNN has kept for the gradient, if it is what computes."""
    if not _takes_onednn(x, hidden):
        return *lstm(x, input_weight, weight, hidden, cell, reverse, *biases), None
    with torch.enable_grad():  # without, PyTorch has oneDNN keep nothing
        return _run_onednn(x, input_weight, weight, hidden, cell, reverse, biases, True)


def lstm_gradient(
    x: torch.Tensor,
    input_weight: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    y: torch.Tensor,
    dy: torch.Tensor,
    dhidden: torch.Tensor,
    dcell: torch.Tensor,
    reverse: bool,
    *biases: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the operands of `lstm`, of both biases one."""
    if _takes_onednn(x, hidden):
        forward = (x, input_weight, weight, hidden, cell)
        y, last, end, kept = lstm_keeping(*forward, reverse, *biases)
        return lstm_gradient_of_kept(
            *forward, y, last, end, kept, dy, dhidden, dcell, reverse, *biases
        )
    if reverse:
        x, y, dy = x.flip(0), y.flip(0), dy.flip(0)
    (steps, batch, features), size = x.shape, hidden.shape[1]
    input_weight, weight = _flatten(input_weight), _flatten(weight)
    before = torch.cat([hidden.unsqueeze(0), y[:-1]])
    gates = x.flatten(0, 1) @ input_weight.T + before.flatten(0, 1) @ weight.T
    for bias in biases:
        gates = gates + bias.flatten()
    write, keep, new, read = gates.view(steps, batch, 4, size).unbind(2)
    write, keep, new, read = write.sigmoid(), keep.sigmoid(), new.tanh(), read.sigmoid()
    cells = [cell]
    for kept_part, written in zip(keep, write * new, strict=True):
        cells.append(kept_part * cells[-1] + written)
    held, after = torch.stack(cells[:-1]), torch.stack(cells[1:]).tanh()
    falls = read * (1 - after * after)
    of_cell = torch.stack(
        [new * write * (1 - write), held * keep * (1 - keep), write * (1 - new * new)], 2
    )
    of_hidden = (after * read * (1 - read)).unsqueeze(2)
    made = []
    for step in range(steps - 1, -1, -1):
        dhidden = dhidden + dy[step]
        dcell = dcell + dhidden * falls[step]
        parts = [of_cell[step] * dcell.unsqueeze(1), of_hidden[step] * dhidden.unsqueeze(1)]
        made.append(torch.cat(parts, 1).view(batch, 4 * size))
        dhidden, dcell = made[-1] @ weight, dcell * keep[step]
    dgates = torch.cat(made[::-1])
    dx = (dgates @ input_weight).view(x.shape)
    found = (dgates.T @ x.flatten(0, 1)).view(4, size, features)
    dweight = (dgates.T @ before.flatten(0, 1)).view(4, size, size)
    dbias = [dgates.sum(0).view(4, size)] if biases else []
    return dx.flip(0) if reverse else dx, found, dweight, dhidden, dcell, *dbias


def lstm_gradient_of_kept(
    x: torch.Tensor,
    input_weight: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    y: torch.Tensor,
    last: torch.Tensor,
    end: torch.Tensor,
    kept: torch.Tensor | None,
    dy: torch.Tensor,
    dhidden: torch.Tensor,
    dcell: torch.Tensor,
    reverse: bool,
    *biases: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the same from what the forward has made, and what oneDNN has kept, if it has."""
    forward = (x, input_weight, weight, hidden, cell)
    if kept is None:
        return lstm_gradient(*forward, y, dy, dhidden, dcell, reverse, *biases)
    weights = _list_onednn(input_weight, weight, biases)
    states, ends = _stack(hidden, cell), _stack(last, end)
    dx, *dweights, dbias, _, dhidden, dcell = aten.mkldnn_rnn_layer_backward(
        x.contiguous(), *weights, *states, y, *ends, dy.contiguous(), *_stack(dhidden, dcell),
        reverse, LSTM_MODE, hidden.shape[1], 1, True, True, False, [], False, kept,
    )  # fmt: skip
    made = [w.view(of.shape) for w, of in zip(dweights, (input_weight, weight), strict=True)]
    dbiases = [dbias.view(4, -1)] if biases else []
    return dx, *made, dhidden.view(hidden.shape), dcell.view(cell.shape), *dbiases


def _run_onednn(
    x: torch.Tensor,
    input_weight: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    reverse: bool,
    biases: tuple[torch.Tensor, ...],
    is_training: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    y, last, end, kept = aten.mkldnn_rnn_layer(
        x.contiguous(), *_list_onednn(input_weight, weight, biases), *_stack(hidden, cell),
        reverse, [], LSTM_MODE, hidden.shape[1], 1, True, False, False, is_training,
    )  # fmt: skip
    return y, last.squeeze(0), end.squeeze(0), kept


def _takes_onednn(x: torch.Tensor, hidden: torch.Tensor) -> bool:
    if torch.compiler.is_compiling():  # which looks into what it compiles, and not into oneDNN's
        return False
    is_float = x.device.type == "cpu" and x.dtype is torch.float32
    return is_float and bool(x.numel() and hidden.numel()) and torch.backends.mkldnn.is_available()


def _flatten(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight with the gates below one another."""
    return weight.flatten(0, 1)


def _list_onednn(
    input_weight: torch.Tensor, weight: torch.Tensor, biases: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    """Return weights and biases as oneDNN takes them, which has biases in any case."""
    if biases:
        flat = [bias.flatten() for bias in biases]
    else:
        flat = [weight.new_zeros(4 * weight.shape[1])] * 2
    return [_flatten(input_weight), _flatten(weight), *flat]


def _stack(hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states as those of the one layer there is."""
    return hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous()


__all__ = ["lstm", "lstm_gradient", "lstm_gradient_of_kept", "lstm_keeping"]
