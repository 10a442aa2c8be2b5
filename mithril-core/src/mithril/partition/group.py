"""The devices that share a factor, for an op that exchanges its parts itself (`Op.localize`).

Everything such an op sends becomes a collective of the plan, with the op as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mithril.cost import describe_emulation
from mithril.ir import Alternative, Builder, Cause, Node, Tensor, Value
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, Collective, Permute
from mithril.ops.shape import reshape
from mithril.partition.naming import label
from mithril.partition.padding import stretch, trim
from mithril.sharding import Option, Resharder


@dataclass(frozen=True, slots=True)
class FactorGroup:
    """See `mithril.ir.Group`.

    Args:
        parts: how much of the factor each device has, without padding.
        index: the number of this device's part.
        node: the node of the op.
        option: how it runs.
        axes: the mesh axes that cut the factor.
        mesh: the devices.
        builder: of the local program.
        resharder: prices what is sent.
        name_of: what a value is called.
        instead: what else was possible for the node.
    """

    parts: Sequence[int]
    index: Tensor
    node: Node
    option: Option
    axes: tuple[str, ...]
    mesh: Mesh
    builder: Builder
    resharder: Resharder
    name_of: Callable[[Value], str]
    instead: Callable[[Node], tuple[Alternative, ...]]

    def permute(
        self,
        x: Tensor,
        pairs: tuple[tuple[int, int], ...],
        reason: str,
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Tensor:
        """Send x from one device to another for each pair (from, to)."""
        return self._exchange(Permute(self.axes, pairs), x, reason, operands, results)

    def gather(
        self, x: Tensor, reason: str, operands: Sequence[int] = (), results: Sequence[int] = ()
    ) -> Tensor:
        """Return the x of all devices, one after the other along a first dimension of their own."""
        op = AllGather(self.axes, 0, len(self.parts))
        row: Tensor = reshape(x, (1, *x.shape))
        return self._exchange(op, row, reason, operands, results)

    def reduce(
        self,
        x: Tensor,
        reduction: str,
        reason: str,
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Tensor:
        """Return the reduction of the x of all devices."""
        return self._exchange(AllReduce(self.axes, reduction), x, reason, operands, results)

    def _exchange(
        self,
        op: Collective,
        x: Tensor,
        reason: str,
        operands: Sequence[int],
        results: Sequence[int],
    ) -> Tensor:
        node, option = self.node, self.option
        values = [*(node.inputs[i] for i in operands), *(node.outputs[i] for i in results)]
        lies = [*(option.operands[i] for i in operands), *(option.results[i] for i in results)]
        names = tuple(dict.fromkeys(map(self.name_of, values)))
        cause = Cause(
            value=names[0] if len(names) == 1 else label(node),
            produced=lies[0].describe(),
            required=reason,
            consumer=label(node),
            parts=names if len(names) > 1 else (),
            instead=self.instead(node),
            is_asked=True,
        )
        cause = self._price(cause, op.name, op.count_bytes([x.type]))
        with self.builder.at(scope=node.scope, source=node.source, phase=node.phase, cause=cause):
            return self.builder.apply(op, x)[0]

    def _price(self, cause: Cause, kind: str, nbytes: int) -> Cause:
        seconds = self.resharder.collective_seconds(kind, nbytes, self.axes)
        instead = describe_emulation(kind, nbytes, self.axes, self.mesh, self.resharder.hardware)
        return replace(cause, seconds=seconds, emulated=instead)

    def stretch(self, x: Tensor, dimension: int) -> Tensor:
        """Return x, whole along the factor, with the padding that its parts have."""
        return stretch(x, dimension, [self.mesh.sizes[axis] for axis in self.axes])

    def trim(self, x: Tensor, dimension: int) -> Tensor:
        """Return x, whole along the factor, without the padding that its parts have."""
        return trim(x, dimension, sum(self.parts), [self.mesh.sizes[axis] for axis in self.axes])
