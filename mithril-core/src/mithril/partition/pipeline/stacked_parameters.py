"""Stacked parameters whose parts live on the stages of a pipeline.

Outside, a stack is one array, split over the stages along its leading dimension; inside, each stage
takes its part and makes the gradient of that. No device gives another anything for it, if the
stages lie along the mesh as the parts do along the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.ir import Builder, Cause, Phase, Tensor
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
        gradient = layouts.get(gradient_of(stack))
        if gradient is not None:  # of the stack it arrives, of its parts it leaves
            leaving = gradient.map(_without_stages)
            found |= dict.fromkeys(map(gradient_of, names), leaving)
            found[gradient_of(stack)] = Layout(gradient.leaves, decided_by=gradient.decided_by)
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
    return stack.map(_without_stages)


def _without_stages(stack: Sharding) -> Sharding:
    """Return how a part of a stack lies on the devices of its stage."""
    return Sharding(stack.mesh, ((), *stack.dims[1:]))


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
        self._before: list[Send] = []
        self._joins: list[Send | Run] = []
        self._added: list[Stage] = []
        self._taken: set[int] = set()

    def plan(self) -> Plan:
        """Return the plan."""
        stacks: dict[str, list[Slice]] = {}
        for part in self.slices:
            stacks.setdefault(part.stack, []).append(part)
        ports = {name: self._port(name, parts) for name, parts in stacks.items()}
        gradients: dict[int, dict[Port, list[Slice]]] = {}
        for name, parts in stacks.items():
            self._take(ports[name], parts)
            if gradient_of(parts[0].name) in self._outputs:
                port = self._inputs.get(gradient_of(name)) or ports[name]
                port = replace(port, name=gradient_of(name))
                gradients.setdefault(len(parts), {})[port] = parts
        for count, own in gradients.items():
            self._join(own, count)
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
            steps=(*self._before, *self._with_joins()),
            transfers=tuple(self._transfers),
        )
        return replace(
            self.whole,
            stages=(*self.whole.stages, *self._added),
            specs={**self.whole.specs, **specs},
            timetable=table,
        )

    def _with_joins(self) -> Iterator[Run | Send]:
        """Yield the steps, and what joins gradients before what takes them, or at the end."""
        waits = True
        for step in self.table.steps:
            if waits and not self._taken.isdisjoint(step.takes):
                yield from self._joins
                waits = False
            yield step
        if waits:
            yield from self._joins

    def _port(self, name: str, parts: Sequence[Slice]) -> Port:
        """Return how a stack lies: as it exists, or each part where it is computed with."""
        if name in self._inputs:  # an update takes it, too
            return self._inputs[name]
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
        slot = self._slots[stack.name] if stack.name in self._inputs else self._slot()
        for part in parts:
            port = self._inputs.pop(part.name)
            cause = _cause(stack, stack.sharding, port.sharding, part)
            transfer = Transfer(
                stack.type, stack.sharding, port.sharding, cause, goal=port.type, offset=part.start
            )
            self._before.append(Send(len(self._transfers), slot, self._slots[part.name]))
            self._transfers.append(transfer)
        self._inputs[stack.name], self._slots[stack.name] = stack, slot

    def _join(self, stacks: Mapping[Port, Sequence[Slice]], count: int) -> None:
        """Put what stages have made into stacks, one part of all of them after another.

        A device thus holds two stacks of its own at once, however many stages there are.
        """
        number = len(self.whole.stages) + len(self._added)
        results = {port: self._result(port) for port in stacks}
        totals: dict[Port, int] = {}
        for index in range(count):
            is_last = index == count - 1
            terms = {port: self._slot() for port in stacks} if count > 1 else results
            for port, parts in stacks.items():
                self._put(port, parts[index], terms[port])
            if index:
                sums = results if is_last else {port: self._slot() for port in stacks}
                slots = (*totals.values(), *terms.values())
                self._joins.append(Run(number, slots, tuple(sums.values())))
            totals = sums if index else terms
        if count > 1:
            self._added.append(_add(tuple(stacks)))

    def _result(self, gradient: Port) -> int:
        """Return the slot of the gradient of a stack: an update takes it, or it leaves."""
        if gradient.name in self._inputs:
            del self._inputs[gradient.name]
            self._taken.add(self._slots[gradient.name])
            return self._slots[gradient.name]
        self._outputs[gradient.name], self._made[gradient.name] = gradient, self._slot()
        return self._made[gradient.name]

    def _put(self, stack: Port, part: Slice, slot: int) -> None:
        """Fill a slot with a stack that holds a part, and zeros elsewhere."""
        name = gradient_of(part.name)
        port = self._outputs.pop(name)
        cause = _cause(stack, port.sharding, stack.sharding, part)
        transfer = Transfer(
            port.type, port.sharding, stack.sharding, cause, Phase.backward,
            goal=stack.type, offset=-part.start,
        )  # fmt: skip
        self._joins.append(Send(len(self._transfers), self._made[name], slot))
        self._transfers.append(transfer)


def _add(stacks: Sequence[Port]) -> Stage:
    """Return the program that adds two terms of each stack."""
    mesh = common([port.sharding.mesh for port in stacks])
    builder = Builder()
    ports: list[Port] = []
    sides: list[list[Tensor]] = []
    with builder.at(phase=Phase.backward):
        for side in ("total", "term"):
            sides.append([])
            for port in stacks:
                local = port.type.with_shape(
                    carry(port.sharding, mesh).local_shape(port.type.shape)
                )
                ports.append(replace(port, name=f"{port.name}.{side}"))
                sides[-1].append(builder.input(local, ports[-1].name))
        sums = {port.name: x + y for port, x, y in zip(stacks, *sides, strict=True)}
    program = Program(mesh, builder.build(sums), tuple(ports), tuple(stacks))
    return Stage("stacks of gradients", program, mesh.flat)


def _cause(stack: Port, held: Sharding, wanted: Sharding, part: Slice) -> Cause:
    return Cause(stack.name, held.describe(), wanted.describe(), f"part {part.part} of the stack")
