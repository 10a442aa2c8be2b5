"""Ops that can be computed part by part along a dimension, as their sharding rules have it.

A factor that an op may be split by over devices may be split over time as well: the op runs on one
part of its operands after another. Where a result has the factor, the parts of the result lie side
by side; where a product sums over it, they are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mithril.ir import Builder, Node, Op, Tensor
from mithril.ir.rule import FactorDims, Rule


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """An op that is computed part by part.

    Args:
        node: the op.
        factor: along which it is cut.
        operands: for each operand the dimension that is the factor; None where none is.
        results: the same for results; all None where the op sums over the factor.
    """

    node: Node
    factor: str
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]

    @property
    def is_kept(self) -> bool:
        """Whether parts of results lie side by side; otherwise they are added up."""
        return None not in self.results

    def compute(
        self, builder: Builder, operands: Sequence[Tensor], size: int
    ) -> tuple[Tensor, ...]:
        """Append the op on a part of its operands.

        Args:
            builder: of the program.
            operands: cut along the dimensions of `operands`.
            size: of the part along the factor.
        """
        types = [
            value.type
            if at is None
            else value.type.with_shape(_with_size(value.type.shape, at, size))
            for value, at in zip(self.node.outputs, self.results, strict=True)
        ]
        return builder.apply(self.node.op.resize(types), *operands)


def _with_size(shape: Sequence[int], at: int, size: int) -> tuple[int, ...]:
    return (*shape[:at], size, *shape[at + 1 :])


def cut_by_operand(node: Node, position: int, dimension: int) -> Cut | None:
    """Return how an op is computed by parts of an operand; None where it cannot be.

    Args:
        node: the op.
        position: of the operand.
        dimension: of it.
    """
    rule = _find_rule(node)
    return None if rule is None else _cut(node, rule, rule.operands[position][dimension])


def cut_by_result(node: Node, dimension: int) -> Cut | None:
    """Return how an op is computed so that parts of its only result are made; None if it cannot be.

    Args:
        node: the op.
        dimension: of the result.
    """
    rule = _find_rule(node) if len(node.outputs) == 1 else None
    return None if rule is None else _cut(node, rule, rule.results[0][dimension])


def _find_rule(node: Node) -> Rule | None:
    """Return the rule of an op that runs on a part as it does on the whole; None for others."""
    op = node.op
    is_plain = type(op).localize is Op.localize and type(op).rule is not Op.rule
    if not is_plain or op.bodies or op.is_collective or not node.inputs:
        return None
    return op.rule([v.type for v in node.inputs], [v.type for v in node.outputs])


def _cut(node: Node, rule: Rule, dims: tuple[str, ...]) -> Cut | None:
    if len(dims) != 1 or rule.ignored:
        return None
    (factor,) = dims
    if factor in rule.whole or factor in rule.special or not rule.may_pad(factor):
        return None
    operands = tuple(_find_dimension(side, factor) for side in rule.operands)
    results = tuple(_find_dimension(side, factor) for side in rule.results)
    is_summed = set(results) == {None} and is_product(node) and rule.reduction(factor) == "sum"
    return Cut(node, factor, operands, results) if is_summed or None not in results else None


def _find_dimension(dims: FactorDims, factor: str) -> int | None:
    return next((at for at, factors in enumerate(dims) if factors == (factor,)), None)


def is_product(node: Node) -> bool:
    """Return whether a node is a product of tensors."""
    has_rule = type(node.op).rule is not Op.rule
    if node.op.bodies or node.op.is_collective or not has_rule:
        return False
    return node.op.contracts([v.type for v in node.inputs], [v.type for v in node.outputs])


__all__ = ["Cut", "cut_by_operand", "cut_by_result", "is_product"]
