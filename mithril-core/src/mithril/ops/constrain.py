"""Constrain: the same values, with the user's word for how they lie on the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mithril.errors import ShardingError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ir.rule import Rule, elementwise_rule
from mithril.mesh.spec import PartitionSpec
from mithril.ops.elementwise import Cast


@register
@dataclass(frozen=True)
class Constrain(Op):
    """The operand, in a home of the user's choice; nothing is computed.

    Args:
        entries: for each dimension the mesh axes that split it, major first.
        cotangent: whether the gradient shall lie so, too.
        cuts: how axes are cut whose sub-axes are named.
    """

    name: ClassVar[str] = "constrain"
    has_kernel: ClassVar[bool] = False
    entries: tuple[tuple[str, ...], ...]
    cotangent: bool = True
    cuts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def spec(self) -> PartitionSpec:
        """The entries as a PartitionSpec."""
        spec = PartitionSpec(*(axes[0] if len(axes) == 1 else axes for axes in self.entries))
        spec.cuts = self.cuts
        return spec

    def infer(self, inputs: Types) -> Types:
        """Return the operand's type.

        Raises:
            ShardingError: there are more entries than dimensions.
        """
        if len(self.entries) > inputs[0].rank:
            raise ShardingError(
                f"cannot constrain {inputs[0]} to {self.spec!r}; it has {len(self.entries)} "
                f"entries; give at most one per dimension"
            )
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (given,) = cotangents
        return [apply_one(self, given) if self.cotangent and given is not None else given]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return elementwise_rule(inputs, outputs[0], ((0,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, 0)

    def plain(self, outputs: Types) -> Op:
        return Cast(outputs[0].dtype)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        return inputs


def apply_constraint(x: AnyOperand, spec: PartitionSpec, *, cotangent: bool = True) -> AnyOperand:
    """Return x, lying on the mesh as a spec says.

    Args:
        x: any tensor.
        spec: the mesh axes that split each dimension.
        cotangent: whether its gradient shall lie so, too.

    Returns:
        The elements, shape and dtype of x.

    Raises:
        ShardingError: the spec has more entries than x has dimensions.

    >>> import mithril as ml
    >>> x = ml.NumpyBackend(device_mesh=2).ones((4, 3))
    >>> apply_constraint(x, PartitionSpec("data")).sharding.spec
    P('data', None)
    """
    entries = tuple(spec.axes(dimension) for dimension in range(len(spec)))
    return apply_one(Constrain(entries, cotangent, spec.cuts), x)


__all__ = ["Constrain", "apply_constraint"]
