"""Kernels of long short-term memory: products over the whole sequence, and loops over the rest.

What the input gives to the gates is computed for all positions at once. The gradient has the states
that were made, and so the gates of all positions at once; backward in time go only the cotangents
of state and cell. 16-bit floats are computed in float32.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel

GATES = 4


@kernel(ops.Lstm)
def lstm(op: ops.Lstm, types: Types, xp: ModuleType) -> Run:
    """A product for all inputs, and one for the state of each position."""
    of = _Layer(types, xp, reverse=op.reverse)

    def run(*operands: Any) -> Any:
        x, input_weight, weight, hidden, cell, *biases = of.widen(operands)
        given = of.turn(of.add(x, input_weight, biases))
        made = xp.empty((*given.shape[:2], hidden.shape[1]), dtype=of.wide)
        for step, here in enumerate(given):
            write, keep, new, read = of.open_gates(here + hidden @ of.flatten(weight).T)
            cell = keep * cell + write * new
            hidden = made[step] = read * xp.tanh(cell)
        return of.narrow(of.turn(made), hidden, cell)

    return run


@kernel(ops.LstmGradient)
def lstm_gradient(op: ops.LstmGradient, types: Types, xp: ModuleType) -> Run:
    """The gates from the states that were made; then one product a position, backward."""
    of = _Layer(types, xp, reverse=op.reverse)

    def run(*operands: Any) -> Any:
        x, input_weight, weight, hidden, cell, y, g, last, end, *biases = of.widen(operands)
        x, y, g = of.turn(x), of.turn(y), of.turn(g)
        before = xp.concatenate([hidden[None], y[:-1]])
        gates = of.add(x, input_weight, biases) + before @ of.flatten(weight).T
        write, keep, new, read = of.open_gates(gates)
        held = xp.empty(y.shape, dtype=of.wide)
        for step in range(len(x)):
            held[step] = cell
            cell = keep[step] * cell + write[step] * new[step]
        reached = xp.tanh(keep * held + write * new)
        falls = read * (1 - reached * reached)
        slopes = xp.stack(
            [
                write * (1 - write) * new,
                keep * (1 - keep) * held,
                write * (1 - new * new),
                read * (1 - read) * reached,
            ],
            axis=2,
        )
        width = slopes.shape[2] * slopes.shape[3]  # a size of -1 is none of an empty batch
        for step in range(len(x))[::-1]:
            last = last + g[step]
            end = end + last * falls[step]
            slopes[step, :, :3] *= end[:, None]
            slopes[step, :, 3] *= last
            last = slopes[step].reshape(len(last), width) @ of.flatten(weight)
            end = end * keep[step]
        count = x.shape[0] * x.shape[1]
        rows = slopes.reshape(count, width)
        dx = (rows @ of.flatten(input_weight)).reshape(x.shape)
        found = [
            (rows.T @ given.reshape(count, given.shape[2])).reshape(of_weight.shape)
            for given, of_weight in ((x, input_weight), (before, weight))
        ]
        found += [last, end, *([slopes.sum((0, 1))] if biases else [])]
        return of.narrow(of.turn(dx), *found)

    return run


class _Layer:
    """What both kernels do.

    Args:
        types: of the operands.
        xp: the arrays' own namespace.
        reverse: whether the sequence is read from its end.
    """

    def __init__(self, types: Types, xp: ModuleType, *, reverse: bool) -> None:
        self._xp, self._dtype, self._reverse = xp, types[0].dtype.numpy, reverse
        self.wide = accumulator(types[0].dtype)

    def widen(self, operands: tuple[Any, ...]) -> list[Any]:
        """Return operands in what is computed in."""
        return [self._xp.asarray(operand, dtype=self.wide) for operand in operands]

    def narrow(self, *made: Any) -> tuple[Any, ...]:
        """Return results in the dtype of the operands."""
        return tuple(self._xp.asarray(one, dtype=self._dtype) for one in made)

    def turn(self, x: Any) -> Any:
        """Return positions in the order in which they are read, or back in their own."""
        return x[::-1] if self._reverse else x

    def flatten(self, weight: Any) -> Any:
        """Return a weight with the gates below one another."""
        return weight.reshape(weight.shape[0] * weight.shape[1], weight.shape[2])

    def add(self, x: Any, weight: Any, biases: list[Any]) -> Any:
        """Return what the input gives to the gates, and what all biases do."""
        given = x @ self.flatten(weight).T
        return given + sum(bias.reshape(-1) for bias in biases) if biases else given

    def open_gates(self, gates: Any) -> tuple[Any, ...]:
        """Return what writes, keeps, is new, and reads, of numbers for all four side by side."""
        write, keep, new, read = self._xp.split(gates, GATES, axis=-1)
        sigmoids = (0.5 + 0.5 * self._xp.tanh(0.5 * gate) for gate in (write, keep, read))
        write, keep, read = sigmoids
        return write, keep, self._xp.tanh(new), read
