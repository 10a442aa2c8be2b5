"""Long short-term memory along a sequence, and its gradient.

Of float32 on a CPU oneDNN runs a whole sequence, and its gradient is quick where the forward has
kept what it computed. Everything else is computed by PyTorch's own, and its gradient by products
over the whole sequence, from the states that were made, and one loop over its positions.
"""

from __future__ import annotations

from typing import Any

import torch

from mithril_torch.program.runtime_library.tracing import is_traced

aten = torch.ops.aten

LSTM_MODE = 2
"""The number of this kind of layer in oneDNN."""

LSTM_GATES = 4
"""What writes, what keeps, what is new, and what reads, below one another."""

LstmTensors = tuple[torch.Tensor, ...]


def lstm(reverse: bool, *operands: torch.Tensor) -> LstmTensors:
    """Return the hidden states at all positions, the last one, and the last cell.

    Operands are x, both weights, hidden state, cell, and biases or none.
    """
    x, input_weight, weight, hidden, cell, *biases = operands
    if _takes_onednn(x, hidden):
        return _run_onednn(reverse, operands, is_training=False)[:3]
    if not hidden.numel():
        return x.new_zeros(x.shape[0], *hidden.shape), hidden, cell
    if not x.shape[2]:  # which PyTorch refuses; a feature that is 0 says as little
        x, input_weight = x.new_zeros(*x.shape[:2], 1), weight.new_zeros(*weight.shape[:2], 1)
    weights = [input_weight.flatten(0, 1), weight.flatten(0, 1), *(b.flatten() for b in biases)]
    x = x.flip(0) if reverse else x
    y, last, end = torch.lstm(
        x, _stack(hidden, cell), weights, bool(biases), 1, 0.0, False, False, False
    )
    return y.flip(0) if reverse else y, last.squeeze(0), end.squeeze(0)


def lstm_keeping(reverse: bool, *operands: torch.Tensor) -> tuple[Any, ...]:
    """Return the same, and what oneDNN has kept for the gradient, if it is what computes."""
    if not _takes_onednn(operands[0], operands[3]):
        return *lstm(reverse, *operands), None
    with torch.enable_grad():  # without, PyTorch has oneDNN keep nothing
        return _run_onednn(reverse, operands, is_training=True)


def lstm_gradient(reverse: bool, *operands: torch.Tensor) -> LstmTensors:
    """Return the gradients of the operands of `lstm`, of both biases one.

    Operands are x, both weights, hidden state, cell, the states that were made, the gradients of
    these, of the last state and of the last cell, and biases or none.
    """
    if not _takes_onednn(operands[0], operands[3]):
        return _differentiate_lstm(reverse, *operands)
    made = lstm_keeping(reverse, *operands[:5], *operands[9:])
    return lstm_gradient_of_kept(reverse, *operands[:5], *made, *operands[6:])


def lstm_gradient_of_kept(reverse: bool, *operands: Any) -> LstmTensors:
    """Return the same; the last state, the last cell and what was kept follow the states."""
    x, input_weight, weight, hidden, cell, y, last, end, kept, *more = operands
    if kept is None:
        return _differentiate_lstm(reverse, *operands[:6], *more)
    dy, dhidden, dcell, *biases = more
    dx, *dweights, dbias, _, dhidden, dcell = aten.mkldnn_rnn_layer_backward(
        x.contiguous(), *_list_onednn(input_weight, weight, biases), *_stack(hidden, cell),
        y, *_stack(last, end), dy.contiguous(), *_stack(dhidden, dcell),
        reverse, LSTM_MODE, hidden.shape[1], 1, True, True, False, [], False, kept,
    )  # fmt: skip
    made = [w.view(of.shape) for w, of in zip(dweights, (input_weight, weight), strict=True)]
    dbiases = [dbias.view(LSTM_GATES, -1)] if biases else []
    return dx, *made, dhidden.view(hidden.shape), dcell.view(cell.shape), *dbiases


def _differentiate_lstm(reverse: bool, *operands: torch.Tensor) -> LstmTensors:
    """Return the gradients by products over the whole sequence, and a loop over its positions.

    Those of 16-bit floats are computed in float32: they are sums over all positions and samples.
    """
    dtype = operands[0].dtype
    if dtype.itemsize == 2:
        wide = _differentiate_lstm(reverse, *(operand.float() for operand in operands))
        return tuple(gradient.to(dtype) for gradient in wide)
    x, input_weight, weight, hidden, cell, y, dy, dhidden, dcell, *biases = operands
    if reverse:
        x, y, dy = x.flip(0), y.flip(0), dy.flip(0)
    (steps, batch, features), size = x.shape, hidden.shape[1]
    input_weight, weight = input_weight.flatten(0, 1), weight.flatten(0, 1)
    before = torch.cat([hidden.unsqueeze(0), y[:-1]])
    gates = x.flatten(0, 1) @ input_weight.T + before.flatten(0, 1) @ weight.T
    for bias in biases:
        gates = gates + bias.flatten()
    write, keep, new, read = gates.view(steps, batch, LSTM_GATES, size).unbind(2)
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
        made.append(torch.cat(parts, 1).view(batch, LSTM_GATES * size))
        dhidden, dcell = made[-1] @ weight, dcell * keep[step]
    dgates = torch.cat(made[::-1])
    dx = (dgates @ input_weight).view(x.shape)
    found = (dgates.T @ x.flatten(0, 1)).view(LSTM_GATES, size, features)
    dweight = (dgates.T @ before.flatten(0, 1)).view(LSTM_GATES, size, size)
    dbias = [dgates.sum(0).view(LSTM_GATES, size)] if biases else []
    return dx.flip(0) if reverse else dx, found, dweight, dhidden, dcell, *dbias


def _run_onednn(reverse: bool, operands: LstmTensors, *, is_training: bool) -> LstmTensors:
    x, input_weight, weight, hidden, cell, *biases = operands
    y, last, end, kept = aten.mkldnn_rnn_layer(
        x.contiguous(), *_list_onednn(input_weight, weight, biases), *_stack(hidden, cell),
        reverse, [], LSTM_MODE, hidden.shape[1], 1, True, False, False, is_training,
    )  # fmt: skip
    return y, last.squeeze(0), end.squeeze(0), kept


def _takes_onednn(x: torch.Tensor, hidden: torch.Tensor) -> bool:
    if is_traced():  # which looks into what it compiles, and not into oneDNN's
        return False
    is_float = x.device.type == "cpu" and x.dtype is torch.float32
    return is_float and bool(x.numel() and hidden.numel()) and torch.backends.mkldnn.is_available()


def _list_onednn(
    input_weight: torch.Tensor, weight: torch.Tensor, biases: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Return weights and biases as oneDNN takes them, which has biases in any case."""
    if biases:
        flat = [bias.flatten() for bias in biases]
    else:
        flat = [weight.new_zeros(LSTM_GATES * weight.shape[1])] * 2
    return [input_weight.flatten(0, 1), weight.flatten(0, 1), *flat]


def _stack(hidden: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states as those of the one layer there is."""
    return hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous()


__all__ = ["lstm", "lstm_gradient", "lstm_gradient_of_kept", "lstm_keeping"]
