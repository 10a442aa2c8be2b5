"""Stacked parameters whose parts live on the stages of a pipeline.

Outside, a stack is one array, split over the stages along its leading dimension; inside, each stage
takes its part and makes the gradient of that. No device gives another anything for it, if the
stages lie along the mesh as the parts do along the stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.ir import Builder, Cause, Phase
from mithril.mesh import Sharding, carry, coarse, common, onto
from mithril.plan import Plan, Port, Program, Stage, TensorReport
from mithril.plan.timetable import Run, Send, Timetable, Transfer
from mithril.sharding import Layout
from mithril.transform import gradient_of
from mithril.transform.stack import Slice


def cut_names(names: Sequence[str], slices: Sequence[Slice]) -> tuple[str, ...]:
    """Return names of parameters, with those of the parts in place of those of stacks.

    >>> cut_names(["bias", "stack"], [Slice("stack.0", "stack", 0, 2, 0)])
    ('bias', 'stack.0')
    """
    parts = _parts_of(slices)
    return tuple(part for name in names for part in parts.get(name, [name]))


def cut_layouts(layouts: Mapping[str, Layout], slices: Sequence[Slice]) -> dict[str, Layout]:
    """Return what is said of tensors, said of the parts of stacks, too.

    Args:
        layouts: what is said, by name.
        slices: the parts.
    """
    found = dict(layouts)
    for stack, names in _parts_of(slices).items():
        if stack in layouts:
            found |= dict.fromkeys(names, _layout_of_part(layouts[stack]))
    return found


def _parts_of(slices: Sequence[Slice]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for part in slices:
        parts.setdefault(part.stack, []).append(part.name)
    return parts


def _layout_of_part(stack: Layout) -> Layout:
    """Return the layout of a part of a stack: the stack may exist, its parts do not."""
    lies = stack.existing
    if lies is not None:
        stack = replace(stack, arrives=None)
        if stack.computed is None and stack.rests is None:
            stack = replace(stack, computed=lies, binds=False)
    return stack.map(lambda whole: Sharding(whole.mesh, ((), *whole.dims[1:])))


def with_stacks(
    plan: Plan, slices: Sequence[Slice], axis: str, arriving: Mapping[str, Sharding]
) -> Plan:
    """Return the plan that takes and makes whole stacks instead of their parts.

    Args:
        plan: one that takes the parts.
        slices: the parts.
        axis: the mesh axis the stages go along.
        arriving: how stacks lie that exist already, by name.
    """
    walk = _Stacks(plan, plan.timetable, slices, axis, arriving)
    return walk.plan()


@dataclass(eq=False)
class _Stacks:
    whole: Plan
    table: Timetable
    slices: Sequence[Slice]
    axis: str
    arriving: Mapping[str, Sharding]

    def __post_init__(self) -> None:
        self._inputs = {p.name: p for p in self.table.inputs}
        self._slots = dict(zip(self._inputs, self.table.given, strict=True))
        self._outputs = {p.name: p for p in self.table.outputs}
        self._made = dict(zip(self._outputs, self.table.made, strict=True))
        used = (slot for step in self.table.steps for slot in step.slots)
        self._next = 1 + max((*used, *self.table.given, *self.table.made), default=0)
        self._transfers = list(self.table.transfers)
        self._before: list[Send | Run] = []
        self._after: list[Send | Run] = []

    def plan(self) -> Plan:
        """Return the plan."""
        stacks: dict[str, list[Slice]] = {}
        for part in self.slices:
            stacks.setdefault(part.stack, []).append(part)
        ports = {name: self._port(name, parts) for name, parts in stacks.items()}
        terms = {}
        for name, parts in stacks.items():
            self._take(ports[name], parts)
            if gradient_of(parts[0].name) in self._outputs:
                port = replace(ports[name], name=gradient_of(name))
                terms[port] = [self._put(port, part) for part in parts]
        stages = self.whole.stages
        if terms:
            stages = (*stages, self._join(terms))
        specs = {
            name: TensorReport(
                ports[name].type,
                ports[name].sharding,
                self.whole.specs[parts[0].name].decided_by,
            )
            for name, parts in stacks.items()
        }
        table = replace(
            self.table,
            inputs=tuple(self._inputs.values()),
            given=tuple(self._slots[name] for name in self._inputs),
            outputs=tuple(self._outputs.values()),
            made=tuple(self._made[name] for name in self._outputs),
            steps=(*self._before, *self.table.steps, *self._after),
            transfers=tuple(self._transfers),
        )
        return replace(
            self.whole, stages=stages, specs={**self.whole.specs, **specs}, timetable=table
        )

    def _port(self, name: str, parts: Sequence[Slice]) -> Port:
        """Return how a stack lies: as it exists, or each part where it is computed with."""
        held = [self._inputs[part.name] for part in parts]
        type = held[0].type.with_shape((parts[-1].stop, *held[0].type.shape[1:]))
        if name in self.arriving:
            return Port(name, type, self.arriving[name])
        mesh = self.whole.mesh
        lies = onto(held[0].sharding, mesh)
        meshes = [coarse(port.sharding.mesh) for port in held]
        along = [mesh.part({self.axis: index}) for index in range(mesh.sizes[self.axis])]
        first = (self.axis,) if meshes == along else ()
        return Port(name, type, Sharding(lies.mesh, (first, *lies.dims[1:])))

    def _slot(self) -> int:
        self._next += 1
        return self._next - 1

    def _take(self, stack: Port, parts: Sequence[Slice]) -> None:
        """Take a stack, and give each stage its part."""
        slot = self._slot()
        for part in parts:
            port = self._inputs.pop(part.name)
            cause = _cause(stack, stack.sharding, port.sharding, part)
            transfer = Transfer(
                stack.type, stack.sharding, port.sharding, cause, goal=port.type, offset=part.start
            )
            self._before.append(Send(len(self._transfers), slot, self._slots[part.name]))
            self._transfers.append(transfer)
        self._inputs[stack.name], self._slots[stack.name] = stack, slot

    def _put(self, stack: Port, part: Slice) -> int:
        """Return the slot of a stack that holds a part, and zeros elsewhere."""
        name = gradient_of(part.name)
        port, slot = self._outputs.pop(name), self._slot()
        cause = _cause(stack, port.sharding, stack.sharding, part)
        transfer = Transfer(
            port.type, port.sharding, stack.sharding, cause, Phase.backward,
            goal=stack.type, offset=-part.start,
        )  # fmt: skip
        self._after.append(Send(len(self._transfers), self._made[name], slot))
        self._transfers.append(transfer)
        return slot

    def _join(self, terms: Mapping[Port, Sequence[int]]) -> Stage:
        """Return the program that adds what the stages have put into stacks."""
        mesh = common([port.sharding.mesh for port in terms])
        builder = Builder()
        inputs: list[Port] = []
        sums = {}
        with builder.at(phase=Phase.backward):
            for port, slots in terms.items():
                lies = carry(port.sharding, mesh)
                local = port.type.with_shape(lies.local_shape(port.type.shape))
                parts = [builder.input(local, f"{port.name}.{i}") for i in range(len(slots))]
                inputs += [replace(port, name=part.value.name) for part in parts]
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                sums[port.name] = total
        made = []
        for port in terms:
            self._outputs[port.name], self._made[port.name] = port, self._slot()
            made.append(self._made[port.name])
        number = len(self.whole.stages)
        slots = tuple(slot for own in terms.values() for slot in own)
        self._after.append(Run(number, slots, tuple(made)))
        program = Program(mesh, builder.build(sums), tuple(inputs), tuple(terms))
        return Stage("stacks of gradients", program, mesh.flat)


def _cause(stack: Port, held: Sharding, wanted: Sharding, part: Slice) -> Cause:
    return Cause(stack.name, held.describe(), wanted.describe(), f"part {part.part} of the stack")
