"""One layer of long short-term memory along a sequence: lstm and its gradient.

Engines with a kernel for the whole sequence run it; for others the op is expanded before gradients
are taken, into a product for what the input gives to the gates and one loop over the positions, so
that what the loop saves is what its gradient needs. Samples may be split; the rest is whole for the
fused ops, and may be split when they are expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ir.rule import Rule
from mithril.ops.arrange import stack
from mithril.ops.control import repeat
from mithril.ops.elementwise import cast
from mithril.ops.equations import einsum
from mithril.ops.functions import tanh
from mithril.ops.nn import require_float, widen
from mithril.ops.numbers import sigmoid
from mithril.ops.reduce import sum
from mithril.ops.shape import broadcast_to, concatenate, reshape

GATES = 4
"""What writes, what keeps, what is new, and what reads, in this order."""
POINTWISE = 30
"""So many operations the gates take for a feature of the state, and about as many backward."""
OPERANDS = ("s b f", "g h f", "g k h", "b h", "b h", "g h", "g h")
"""Those of `Lstm`."""
STATES = ("s b h", "b h", "b h")
"""Its results."""


@dataclass(frozen=True)
class _AlongSequence(Op):
    """Base: whether the sequence is read from its end."""

    reverse: bool

    def _rule(
        self,
        operands: Sequence[str],
        results: Sequence[str],
        types: tuple[Types, Types],
        linear: tuple[tuple[int, ...], ...] = (),
    ) -> Rule:
        text = f"{', '.join(operands)} -> {', '.join(results)}"
        return Rule.parse(text, *types, expandable=["s", "f", "g", "h", "k"], linear=linear)


@register
@dataclass(frozen=True)
class Lstm(_AlongSequence):
    """A layer of long short-term memory (Hochreiter, Schmidhuber, 1997), with forget gates.

    Operands (x [sequence, batch, features], input weight [4, hidden, features], hidden weight
    [4, hidden, hidden], hidden state [batch, hidden], cell [batch, hidden]), and biases of both
    weights [4, hidden], or none; results (hidden states [sequence, batch, hidden], the last one,
    the last cell).
    """

    name: ClassVar[str] = "lstm"

    def infer(self, inputs: Types) -> Types:
        x, weight, *rest = inputs
        require_float(x, "lstm")
        size = weight.shape[1] if weight.rank == len("ghf") else 0
        batch = x.shape[1] if x.rank == len("sbf") else 0
        shapes = [(GATES, size, *x.shape[2:]), (GATES, size, size), *[(batch, size)] * 2]
        shapes += [(GATES, size)] * 2 if len(rest) > 3 else []
        if x.rank != len("sbf") or [weight, *rest] != [x.with_shape(shape) for shape in shapes]:
            given = ", ".join(map(str, inputs[1:]))
            raise ShapeError(
                f"lstm of {x} is given {given}; give weights [4, hidden, features] and "
                f"[4, hidden, hidden], states [batch, hidden] and biases [4, hidden], in the dtype "
                f"of x [sequence, batch, features]"
            )
        if not x.shape[0]:
            raise ShapeError(f"lstm of {x} has no position to read; give at least one")
        state = x.with_shape((batch, size))
        return [x.with_shape((x.shape[0], batch, size)), state, state]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        given = [
            broadcast_to(x.builder.constant(0.0, x.dtype), x.shape) if g is None else g
            for x, g in zip(outputs, cotangents, strict=True)
        ]
        x, *rest = inputs
        made = apply(LstmGradient(self.reverse), x, *rest[:4], outputs[0], *given, *rest[4:])
        return [*made, made[-1]] if rest[4:] else list(made)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule(OPERANDS[: len(inputs)], STATES, (inputs, outputs))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(_count_flops(inputs), super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, input_weight, weight, *states = inputs
        biases, states = states[2:], states[:2]
        given: Any = einsum("sbx,ghx->sbgh", x, input_weight)
        if biases:
            given = given + biases[0]

        def step(hidden: Any, cell: Any, here: Any) -> tuple[Any, ...]:
            fed_back: Any = einsum("bx,ghx->bgh", hidden, weight)
            gates = here + (fed_back + biases[1] if biases else fed_back)
            write, keep, new, read = (gates[:, gate] for gate in range(GATES))
            cell = sigmoid(keep) * cell + sigmoid(write) * tanh(new)
            hidden = sigmoid(read) * tanh(cell)
            return hidden, cell, hidden

        last, cell, hidden = repeat(step, states, stacked=(given,), reverse=self.reverse)
        return [hidden, last, cell]


@register
@dataclass(frozen=True)
class LstmGradient(_AlongSequence):
    """The cotangents of lstm's operands, of both biases one.

    Operands (x, input weight, hidden weight, hidden state, cell, hidden states that were made,
    their cotangent, those of the last state and cell), and biases or none. It is differentiated
    as the loops that it consists of: `transform.differentiate` expands it.
    """

    name: ClassVar[str] = "lstm_gradient"

    def infer(self, inputs: Types) -> Types:
        return [*inputs[:5], *inputs[9:10]]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        operands = (*OPERANDS[:5], STATES[0], *STATES, *OPERANDS[5:])[: len(inputs)]
        results = OPERANDS[: len(outputs)]
        return self._rule(operands, results, (inputs, outputs), linear=((6, 7, 8),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(3 * _count_flops(inputs), super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, input_weight, weight, hidden, cell, y, g, last, end, *biases = widen(inputs)
        first: Any = reshape(hidden, (1, *hidden.shape))
        before: Any = concatenate([y[1:], first] if self.reverse else [first, y[:-1]])
        gates: Any = einsum("sbx,ghx->sbgh", x, input_weight)
        gates = gates + einsum("sbk,ghk->sbgh", before, weight)
        for bias in biases:
            gates = gates + bias
        write, keep, read = (sigmoid(gates[:, :, gate]) for gate in (0, 1, 3))
        new: Any = tanh(gates[:, :, 2])
        written = write * new
        held = self._hold(cell, keep, written)
        reached: Any = tanh(keep * held + written)
        falls = read * (1.0 - reached * reached)
        slopes = [
            written * (1.0 - write), held * keep * (1.0 - keep), write * (1.0 - new * new),
            reached * read * (1.0 - read),
        ]  # fmt: skip

        def step(hidden: Any, cell: Any, *here: Any) -> tuple[Any, ...]:
            g, falls, keep, *slopes = here
            hidden = hidden + g
            cell = cell + hidden * falls
            gates: Any = stack([*(slope * cell for slope in slopes[:3]), slopes[3] * hidden], 1)
            return einsum("bgh,ghk->bk", gates, weight), cell * keep, gates

        along = (g, falls, keep, *slopes)
        first, begin, turned = repeat(step, (last, end), stacked=along, reverse=not self.reverse)
        found: list[Any] = [
            einsum("sbgh,ghx->sbx", turned, input_weight), einsum("sbgh,sbx->ghx", turned, x),
            einsum("sbgh,sbk->ghk", turned, before), first, begin,
        ]  # fmt: skip
        found += [sum(turned, (0, 1))] if biases else []
        return [cast(one, inputs[0].dtype) for one in found]

    def _hold(self, cell: Any, keep: Any, written: Any) -> Any:
        """Return the cells before all positions."""

        def step(cell: Any, keep: Any, written: Any) -> tuple[Any, Any]:
            return keep * cell + written, cell

        return repeat(step, cell, stacked=(keep, written), reverse=self.reverse)[1]


def lstm(
    x: Any,
    weights: Sequence[Any],
    states: Sequence[Any],
    biases: Sequence[Any],
    *,
    reverse: bool = False,
) -> tuple[Any, Any, Any]:
    """Return the hidden states of a layer of long short-term memory, and its last state and cell.

    Args:
        x: [sequence, batch, features], of a float dtype, as all operands are.
        weights: of the input [4, hidden, features] and of the state [4, hidden, hidden].
        states: hidden state and cell to start from, [batch, hidden] each.
        biases: of both weights, [4, hidden] each, or nothing.
        reverse: read the sequence from its end.
    """
    made: tuple[Any, Any, Any] = apply(Lstm(reverse), x, *weights, *states, *biases)
    return made


def _count_flops(inputs: Types) -> int:
    (steps, batch, features), size = inputs[0].shape, inputs[2].shape[1]
    return steps * batch * size * (2 * GATES * (features + size) + POINTWISE)


__all__ = ["Lstm", "LstmGradient"]
