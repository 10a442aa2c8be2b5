"""Run a program on all devices of a mesh in one process, all devices in step.

The program is turned into straight-line Python: one assignment per node and per device, `del` at
the last use. What provably does not differ between devices is computed once: a value *varies* over
the mesh axes that its inputs, or its device index, vary over, and an all_reduce or all_gather ends
that. Generic over the array namespace and the kernels, so that any single-process framework can use
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.arena import ArenaLayout, Place
from mithril.engine.checks import KernelChecks
from mithril.engine.collectives import EXCHANGES
from mithril.engine.float_errors import FLOAT_ERRORS, SILENCE
from mithril.engine.kernels import Kernel
from mithril.engine.marks import Marks
from mithril.engine.protocol import Observer
from mithril.engine.variables import Axes, Coordinate, Variables
from mithril.engine.written import WrittenRun
from mithril.ir import Graph, Node, Repeat, Value
from mithril.ir.start import join_starts
from mithril.mesh import Mesh, carry
from mithril.ops.collective import AllGather, AllReduce, AxisIndex
from mithril.ops.host import FromHost, ToHost, find_on_host, uses_host
from mithril.plan import Port, Program
from mithril.plan.issued import issue_node

STRETCH = 8
"""How many nodes of a lazy namespace are put together before their computation is started."""
WORTH_STARTING = 200_000
"""Operations and bytes of what is started: for less than some 20 us of work it is not worth it."""


class LockstepExecutable:
    """A program lowered for all devices of its mesh; inputs and outputs are lists by device.

    Args:
        program: what runs.
        kernels: kernel factories by op name.
        xp: the array namespace.
        marks: what takes the time between its segments, if it is measured.
        layout: where values lie in arenas, if they do.
        checks: whose kernels they are, for messages; `Engine.kernel_checks`.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        xp: ModuleType,
        marks: Marks | None = None,
        layout: ArenaLayout | None = None,
        checks: KernelChecks | None = None,
    ) -> None:
        graph = join_starts(program.graph) if layout is None else layout.graph
        writer = Writer(program.mesh, graph, kernels, xp, "run", marks, layout, checks)
        self.source = writer.write_program(program.inputs)
        self._run = writer.load(self.source, f"<lockstep {id(self)}>")
        self._layout, self._memory = layout, writer.memory

    def __call__(
        self, inputs: Sequence[Sequence[Any]], observe: Observer | None = None
    ) -> list[list[Any]]:
        """Run once; see `Executable`."""
        if self._layout is not None:
            return self._run_in_arena(self._layout, inputs, observe)
        # As on other frameworks, an overflow or a division by zero makes inf or nan in silence.
        token = FLOAT_ERRORS.set(SILENCE)
        try:
            made = self._run.run(inputs, observe)
        except Exception as error:
            self._run.fail(error)
        finally:
            FLOAT_ERRORS.reset(token)
        if self._run.is_new:
            self._run.settle()
        return made

    def _run_in_arena(
        self, layout: ArenaLayout, inputs: Sequence[Sequence[Any]], observe: Observer | None
    ) -> list[list[Any]]:
        """Run once, while no other program of the plan does."""
        with layout.arenas.lock, np.errstate(all="ignore"):
            if self._memory:  # all programs of the plan are lowered
                layout.arenas.assign(self._memory, self._run.names)
                self._memory = {}
            return self._run(inputs, observe)


class Writer:
    """Writes the source of one graph as a function, and collects what it calls, and for whom.

    Args:
        mesh: the devices.
        graph: a local graph.
        kernels: kernel factories by op name.
        xp: the array namespace; a lazy one may have a function `start`, which is given values to
            be computed while the rest of the graph is gone through, and has a function `settle`,
            which computes values now, for marks; `compute` does that where values go to the host.
        name: of the function; what belongs to it starts with it.
        marks: what takes the time between its segments, if it is measured.
        layout: where values lie in arenas, if they do.
        checks: whose kernels they are.
    """

    def __init__(
        self,
        mesh: Mesh,
        graph: Graph,
        kernels: Mapping[str, Kernel],
        xp: ModuleType,
        name: str,
        marks: Marks | None = None,
        layout: ArenaLayout | None = None,
        checks: KernelChecks | None = None,
    ) -> None:
        self.constants: dict[str, Any] = {}
        self.functions: list[str] = []
        self.nodes: dict[str, Node] = {}
        self.memory: dict[str, Place] = {}
        self._mesh = mesh
        self._graph = graph
        self._kernels = kernels
        self._checks = checks or KernelChecks()
        self._xp = xp
        self._name = name
        self._variables = Variables(mesh)
        self._last = graph.last_uses()
        self._on_host = find_on_host(graph)
        self._live: dict[Value, None] = {}
        self._computes = hasattr(xp, "compute") and uses_host(graph)
        self._marks = marks
        self._layout = layout
        for own in ("start", "settle", "compute"):
            if hasattr(xp, own):
                self.constants[own] = getattr(xp, own)

    def write_program(self, ports: Sequence[Port]) -> str:
        """Return the source of `run(inputs, observe)`, inputs and results being lists by device."""
        lines = []
        for position, (port, value) in enumerate(zip(ports, self._graph.inputs, strict=True)):
            sharding = carry(port.sharding, self._mesh)
            pending = tuple(axis for axis, _ in sharding.partial)
            self._variables.declare(value, (*sharding.split_axes, *pending))
            for at, name in self._variables.of(value):
                device = self._variables.find_device(value, at)
                lines.append(f"{name} = inputs[{position}][{device}]")
        for value in self._graph.inputs if self._marks else ():
            lines += self._hold(value)
        lines += self._nodes()
        outputs = (self._variables.by_device(value) for value in self._graph.outputs.values())
        results = (f"[{', '.join(names)}]" for names in outputs)
        lines.append(f"return [{', '.join(results)}]")
        return self._function("inputs, observe", lines)

    def load(self, source: str, file: str) -> WrittenRun:
        """Return what runs the source of the program."""
        return WrittenRun(source, file, self.constants, self.nodes, self._checks)

    def write_body(self, varies: Sequence[Axes], carried: int) -> tuple[str, list[Axes]]:
        """Return the source of an iteration, and over what its results vary.

        Args:
            varies: over what each input varies.
            carried: how many inputs are carries; they come out as they went in.
        """
        for value, axes in zip(self._graph.inputs, varies, strict=True):
            self._variables.declare(value, axes)
        parameters = self._variables.of_all(self._graph.inputs)
        lines = list(self._nodes())
        outputs = list(self._graph.outputs.values())
        found = [self._variables.axes[value] for value in outputs]
        leaving = [*varies[:carried], *found[carried:]]
        if all(set(a) <= set(b) for a, b in zip(found, leaving, strict=True)):
            names = [
                name
                for value, axes in zip(outputs, leaving, strict=True)
                for name in self._variables.along(value, axes)
            ]
            lines.append(f"return [{', '.join(names)}]")
        return self._function(", ".join([*parameters, "observe"]), lines), found

    def _function(self, parameters: str, lines: Sequence[str]) -> str:
        body = "".join(f"    {line}\n" for line in lines)
        return "\n".join([*self.functions, f"def {self._name}({parameters}):\n{body}"])

    def _nodes(self) -> Iterator[str]:
        prefix, work = "" if self._name == "run" else f"{self._name}_", 0
        for number, node in enumerate(self._graph.nodes):
            if self._marks is not None:
                yield from self._marks.enter(node, self._mesh)
            if self._computes and isinstance(node.op, ToHost | FromHost):
                yield self._compute()
            yield from self._node(node, f"{prefix}f{number}")
            if self._marks is not None:
                yield from self._note(self._marks, node)
            over = self._last.get(node, ())
            dead = self._variables.of_all(over)
            self._live.update((v, None) for v in node.outputs if v not in self._on_host)
            for value in over:
                self._live.pop(value, None)
            if dead:
                yield f"del {', '.join(dead)}"
                if self._marks is not None:
                    self._marks.forget(dead)
            if "start" in self.constants:
                work += _count_work(node)
                made = self._variables.of_all(v for v in node.outputs if v not in over)
                if made and number % STRETCH == STRETCH - 1 and work >= WORTH_STARTING:
                    work = 0
                    yield f"start([{', '.join(made)}])"
        if self._marks is not None:
            yield from self._marks.leave()
            self.constants |= self._marks.constants

    def _compute(self) -> str:
        """Return the line that has a lazy namespace compute all that is there."""
        return f"compute([{', '.join(self._variables.of_all(self._live))}])"

    def _note(self, marks: Marks, node: Node) -> Iterator[str]:
        """Tell the marks what a node has made, and how many kernels it takes for all devices."""
        first = self._variables.axes[node.outputs[0]]
        axes: Axes = getattr(node.op, "axes", ()) if node.op.is_collective else ()
        kernels = self._mesh.product(axis for axis in first if axis not in axes)
        marks.note(kernels, self._variables.of_all(node.outputs))
        for value in node.outputs:
            yield from self._hold(value)

    def _hold(self, value: Value) -> Iterator[str]:
        """Write what counts the memory of a value on each device that has it itself."""
        counts = self._marks is not None and self._marks.counts_memory
        if self._marks is not None and counts and value not in self._on_host:
            axes = self._variables.axes[value]
            for at, name in self._variables.of(value):
                where = dict(zip(axes, at, strict=True))
                yield self._marks.hold(self._mesh, where, name)

    def _node(self, node: Node, function: str) -> Iterator[str]:
        op = node.op
        if isinstance(op, AxisIndex):
            yield from self._axis_index(node, op)
            return
        if isinstance(op, Repeat):
            yield from self._loop(node, op, function)
            return
        inherited = tuple(axis for value in node.inputs for axis in self._variables.axes[value])
        if op.is_collective:
            yield from self._collective(node, function, inherited)
            return
        for value in node.outputs:
            self._variables.declare(value, inherited)
        axes = self._variables.axes[node.outputs[0]]
        node = self._keep_shared(node, axes)
        layout = self._layout if self._layout and self._layout.holds(node.outputs[0]) else None
        kernel = (
            self._checks.make(node, self._kernels) if layout is None else layout.make_writer(node)
        )
        self.constants[function] = self._checks.guard(node, kernel)
        self.nodes[function] = node
        for at in self._variables.coordinates(axes):
            results = ", ".join(self._variables.at(value, axes, at) for value in node.outputs)
            operands = [self._variables.at(value, axes, at) for value in node.inputs]
            if layout is not None:
                operands.append(self._place(layout, node.outputs[0], function, at))
            yield f"{results} = {function}({', '.join(operands)})"

    def _keep_shared(self, node: Node, axes: Axes) -> Node:
        """Return a node that writes into no operand which is one variable for several devices.

        The call for the first device would write over what those for others read.
        """
        over = (self._variables.axes[node.inputs[operand]] for operand, _ in node.op.overwrites)
        is_shared = any(set(own) != set(axes) for own in over)
        return replace(node, op=node.op.reuse(())) if is_shared else node

    def _loop(self, node: Node, op: Repeat, function: str) -> Iterator[str]:
        """Write a loop: the body as a function of its own, its results unpacked or collected."""
        source, varies, found = self._body(node, op, function)
        self.functions.append(source)
        kept = [*varies[: op.carried], *found[op.carried :]]
        for value, axes in zip(node.outputs, kept, strict=True):
            self._variables.declare(value, axes)
        stacked = len(node.inputs) - op.stacked
        arguments: list[str] = []
        state: list[str] = []
        for position, (value, axes) in enumerate(zip(node.inputs, varies, strict=True)):
            names = self._variables.along(value, axes)
            if position < op.carried:
                mine = [f"{function}_c{len(state) + i}" for i in range(len(names))]
                yield from (f"{own} = {name}" for own, name in zip(mine, names, strict=True))
                state += mine
                arguments += mine
            else:
                is_list = value in self._on_host  # slices that lie on the host stay apart
                at = f"[{function}_i]" if is_list else f"[{function}_i, ...]"
                index = at if position >= stacked else ""
                arguments += [f"{name}{index}" for name in names]
        results = self._variables.of_all(node.outputs)
        stacks = results[len(state) :]
        yield from self._begin_stacks(node, op, function)
        order = f"reversed(range({op.count}))" if op.reverse else f"range({op.count})"
        yield f"for {function}_i in {order}:"
        made = [f"{function}_m{i}" for i in range(len(stacks))]
        call = f"{function}({', '.join([*arguments, 'observe'])})"
        yield f"    [{', '.join([*state, *made])}] = {call}"
        if self._marks is not None:
            yield f"    {self._marks.resume()}"
        yield from (f"    {s}[{function}_i] = {m}" for s, m in zip(stacks, made, strict=True))
        lists = self._list_on_host(node, op.carried)  # slices that lie on the host stay apart
        if self._computes and uses_host(op.body):
            lazy = [m for s, m in zip(stacks, made, strict=True) if s not in lists]
            yield f"    compute([{', '.join([*state, *lazy])}])"
        yield from (f"{a} = {b}" for a, b in zip(results, state, strict=False))
        if self._layout is None:
            self.constants["stack"] = self._xp.stack
            yield from (f"{name} = stack({name})" for name in stacks if name not in lists)
        yield f"del {', '.join([*state, *made])}"

    def _begin_stacks(self, node: Node, op: Repeat, function: str) -> Iterator[str]:
        """Write what makes the stacks of a loop: lists, or memory that its iterations write to."""
        layout = self._layout
        for value in node.outputs[op.carried :]:
            for at, name in self._variables.of(value):
                if layout is None or value in self._on_host:
                    yield f"{name} = [None] * {op.count}"
                elif layout.holds(value):
                    yield f"{name} = {self._place(layout, value, function, at)}"
                else:
                    dtype = f"{function}_{self._variables.names[value]}_dtype"
                    self.constants |= {"empty": self._xp.empty, dtype: value.type.dtype.numpy}
                    yield f"{name} = empty({value.type.shape}, {dtype})"

    def _place(self, layout: ArenaLayout, value: Value, function: str, at: Coordinate) -> str:
        """Return the name of the memory of a value on a device."""
        device = self._variables.find_device(value, at)
        name = f"{function}_{self._variables.names[value]}_{device}"
        self.memory[name] = layout.place(value, self._mesh.in_whole(device))
        return name

    def _list_on_host(self, node: Node, carried: int) -> set[str]:
        """Return the variables of a loop's stacks that lie in the host arena."""
        stacks = (value for value in node.outputs[carried:] if value in self._on_host)
        return set(self._variables.of_all(stacks))

    def _body(self, node: Node, op: Repeat, function: str) -> tuple[str, list[Axes], list[Axes]]:
        """Return source, input and result axes of a body; a carry varies as it comes to."""
        varies = [self._variables.axes[value] for value in node.inputs]
        while True:
            writer = self._within(node, op.body, function)
            source, found = writer.write_body(varies, op.carried)
            wider = [
                self._variables.in_mesh_order((*a, *b))
                for a, b in zip(varies[: op.carried], found, strict=False)
            ]
            if wider == varies[: op.carried]:
                self.constants |= writer.constants
                self.nodes |= writer.nodes
                self.memory |= writer.memory
                return source, varies, found
            varies[: op.carried] = wider

    def _within(self, node: Node, body: Graph, name: str) -> Writer:
        """Return what writes the body of a loop."""
        marks = None if self._marks is None else self._marks.within(name)
        layout = None if self._layout is None else self._layout.within(node)
        return Writer(self._mesh, body, self._kernels, self._xp, name, marks, layout, self._checks)

    def _axis_index(self, node: Node, op: AxisIndex) -> Iterator[str]:
        (value,) = node.outputs
        self._variables.declare(value, op.axes)
        for at, name in self._variables.of(value):
            index = self._mesh.index_over(self._variables.find_device(value, at), op.axes)
            self.constants[f"i{index}"] = self._xp.asarray(np.asarray(index, np.int32))
            yield f"{name} = i{index}"

    def _collective(self, node: Node, function: str, inherited: Axes) -> Iterator[str]:
        op = node.op
        types = [value.type for value in node.inputs]
        self.constants[function] = EXCHANGES[type(op)](op, types, self._xp)
        axes: Axes = op.axes  # type: ignore[attr-defined]
        same_for_all = isinstance(op, AllReduce | AllGather)
        kept = tuple(axis for axis in inherited if axis not in axes)
        for value in node.outputs:
            self._variables.declare(value, kept if same_for_all else (*kept, *axes))
        outer = self._variables.in_mesh_order(kept)
        yield self._observation(node, function)
        for at in self._variables.coordinates(outer):
            members = list(self._variables.members(outer, at, axes))
            groups = []
            for value in node.inputs:
                names = (self._variables.at(value, *member) for member in members)
                groups.append(f"[{', '.join(names)}]")
            targets = []
            for value in node.outputs:
                if same_for_all:
                    targets.append(self._variables.at(value, outer, at))
                else:
                    names = (self._variables.at(value, *member) for member in members)
                    targets.append(f"[{', '.join(names)}]")
            yield f"{', '.join(targets)} = {function}({', '.join(groups)})"

    def _observation(self, node: Node, function: str) -> str:
        """Return the line that tells an observer of a collective."""
        self.constants[f"{function}_issued"] = issue_node(node, self._mesh)
        return f"if observe: observe({function}_issued)"


def _count_work(node: Node) -> int:
    """Return the operations of a node, and the bytes that it moves."""
    cost = node.op.cost([x.type for x in node.inputs], [x.type for x in node.outputs])
    return cost.flops + cost.bytes
