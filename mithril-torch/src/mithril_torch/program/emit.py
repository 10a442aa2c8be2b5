"""Emits the lines of one function of a generated program, from one local graph.

One statement a node, `del` at the last use; collectives start where their operands are ready and
are waited for before the first use of their results. Comments name the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from mithril.spi import (
    NO_ARENA,
    Arena,
    Graph,
    Node,
    Segment,
    Value,
    find_begun,
    issue_node,
    ops,
    segment_of,
)
from mithril.spi.ops import Constant, FromHost, KeepFirst, Repeat, UserOp, Wait, find_on_host

from mithril_torch.kernels import EXPRESSIONS
from mithril_torch.kernels.expression import dtype
from mithril_torch.program.buffers import Buffer, plan_buffers, write_into
from mithril_torch.program.codegen_options import in_range
from mithril_torch.program.fusion_text import write_fusion
from mithril_torch.program.fusions import Fusion
from mithril_torch.program.image_layout import AsChannelsLast, ToChannelsLast, ToContiguous
from mithril_torch.program.module_scope import Line, ModuleScope
from mithril_torch.program.names import Names, cause_comment, comment, describe_node, layer_of

_MAY_RETURN_OPERAND = (KeepFirst, AsChannelsLast, ToChannelsLast, ToContiguous, UserOp)
"""Ops whose result may turn out to be the very tensor of an operand."""


@dataclass
class PendingCollective:
    """A collective on its way: where its work is, and what it makes."""

    work: str
    target: str | None  # the variables that get the results; None: they are in their buffer
    outputs: tuple[Value, ...]
    release: str  # the buffer's own name, if it is not a result
    step: int
    segment: Segment
    is_shared: bool = False  # whether several results lie in one buffer


class FunctionEmitter:
    """Writes the function of one graph.

    Args:
        module: the text it is a part of.
        graph: a local one.
        prefix: what the names of its variables have in them, besides a number.
        is_owner: whether inputs belong to the function, so that it may let go of them.
        arena: where in a block of memory results lie that are written there.
        base: where the arena begins in the block.
    """

    def __init__(
        self,
        module: ModuleScope,
        graph: Graph,
        prefix: str,
        *,
        is_owner: bool = False,
        arena: Arena = NO_ARENA,
        base: int = 0,
    ) -> None:
        self._module = module
        self._graph = graph
        self._prefix = prefix
        self._names: dict[Value, str] = {}
        self._same: dict[str, tuple[str, ...]] = {}  # variables, and of which tensors they may be
        self._last_uses = graph.last_uses()
        self._on_host = find_on_host(graph)
        buffers = {} if module.codegen.compiled else plan_buffers(graph, f"flat{prefix}_")
        self._buffers: dict[Node, Buffer] = buffers
        self._buffer_of = {v: b for b in buffers.values() for v in b.written_in_place}
        self._allocated: set[Node] = set()
        self._pending: dict[Value, PendingCollective] = {}
        self._variables = Names()
        self._is_top_level = not prefix
        self._segment = Segment("")
        self._borrowed = set() if is_owner else set(graph.inputs)
        self._arena, self._base = arena, base

    def name_input(self, value: Value) -> str:
        """Return, and remember, the variable of an input."""
        self._names[value] = name = self._variables.reserve(value.name or "x", len(self._names))
        return name

    def results(self) -> list[str]:
        """Return the variables of the outputs, once the lines are written."""
        return [self._names[value] for value in self._graph.outputs.values()]

    def distinct_results(self, given_up: Collection[Value]) -> Iterator[str]:
        """Yield the outputs: each is a tensor object that nobody else has, to be given up alone.

        Args:
            given_up: inputs that their caller has no longer.
        """
        constants = set(self._module.known.values())
        taken = {self._names[value] for value in self._graph.inputs if value not in given_up}
        for name in self.results():
            sources = self._trace(name)
            if sources & constants:
                yield f"{name}.clone()"
            else:
                yield f"{name}.view_as({name})" if sources & taken else name
            taken |= sources

    def _trace(self, name: str) -> set[str]:
        """Return a variable and those whose tensor it may be."""
        found, waiting = set[str](), [name]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._same.get(name, ())
        return found

    def lines(self) -> list[Line]:
        """Return the body of the function, up to where its results are there."""
        lines: list[Line] = []
        for _, together in groupby(self._graph.nodes, lambda node: (node.phase, node.scope)):
            nodes = list(together)
            self._segment = segment_of(nodes[0])
            marks = self._module.mark(self._segment)
            lines_of_layer, layer = list(self._emit_layer(nodes)), layer_of(nodes[0])
            lines_of_layer[:0] = map(Line, marks if lines_of_layer else ())
            if lines_of_layer and self._module.codegen.layer_ranges:
                lines += [Line(in_range(layer)), *indent(lines_of_layer)]
            elif lines_of_layer:
                lines += [Line(comment(layer)), *lines_of_layer]
        return [*lines, *self._emit_wait(list(self._graph.outputs.values()))]

    def _emit_layer(self, nodes: Iterable[Node]) -> Iterator[Line]:
        for node in nodes:
            number = len(self._module.steps)
            self._module.steps.append(describe_node(node, self._module.mesh))
            yield from self._emit_wait(node.inputs)
            yield from (Line(text, number) for text in self._emit_node(node, number))

    def _emit_node(self, node: Node, number: int) -> Iterator[str]:
        op = find_begun(node.op)
        if isinstance(node.op, Wait):  # what was pending is there now, under the same names
            pairs = zip(node.inputs, node.outputs, strict=True)
            self._names |= {made: self._names[pending] for pending, made in pairs}
        elif isinstance(node.op, Repeat):
            yield from self._emit_loop(node, node.op, number)
        elif isinstance(node.op, ops.AxisIndex):
            group = self._module.group(node.op.axes)
            self._names[node.outputs[0]] = self._module.once(
                "index_", f"axis_index({group}, device)"
            )
        elif isinstance(node.op, Constant):
            text = EXPRESSIONS[node.op.name](node.op, [])
            self._names[node.outputs[0]] = self._module.once("c", text)
        elif isinstance(op, ops.Collective) and self._module.codegen.compiled:
            call = self._format_call(f"{op.name}_now", op, self._operand_names(node))
            yield self._format_assignment(node, call)
        elif isinstance(op, ops.AllReduce):
            yield from self._emit_all_reduce(node, op, number)
        elif isinstance(op, ops.Collective):
            yield from self._emit_collective(node, op, number)
        elif isinstance(node.op, Fusion):
            yield self._format_fusion(node, node.op)
        elif isinstance(node.op, FromHost):
            yield from self._emit_fetch(node, number)
        elif isinstance(node.op, ToChannelsLast) and self._may_rename(node):
            yield from self._emit_layout(node)
            return
        else:
            yield from self._emit_local(node)
        dead = self._last_uses.get(node, ())
        if isinstance(node.op, Wait):
            dead = [value for value in dead if value in node.outputs]
        yield from self._emit_delete(dead)

    # ---------------------------------------------------------------- local ops

    def _emit_local(self, node: Node) -> Iterator[str]:
        expression = self._format_expression(node)
        buffer = self._buffer_of.get(node.outputs[0])
        if buffer is None and node.outputs[0] in self._arena.offsets:
            yield write_into(self._place_in_arena(node.outputs[0]), expression)
        elif buffer is None:
            yield self._format_assignment(node, expression)
            self._note_same(node, expression)
        else:
            yield from self._emit_buffer(buffer)
            yield write_into(self._names[node.outputs[0]], expression)

    def _format_fusion(self, node: Node, fusion: Fusion) -> str:
        """Return the call of a fusion, whose function those that compute alike share."""
        types = tuple(value.type for value in node.inputs)
        key = types, tuple(write_fusion("fusion", fusion))
        function = self._module.share("fusion_", key, partial(write_fusion, fusion=fusion))
        call = f"{function}({', '.join(self._operand_names(node))})"
        return f"{''.join(f'{self._name_output(value)}, ' for value in node.outputs)}= {call}"

    def _note_same(self, node: Node, expression: str) -> None:
        """Remember which results of a node may be the tensors of operands."""
        may_be_any = isinstance(node.op, _MAY_RETURN_OPERAND)
        for made in node.outputs:
            alike = [self._names[value] for value in node.inputs if value.type == made.type]
            same = tuple(name for name in alike if may_be_any or name == expression)
            if same:
                self._same[self._names[made]] = same

    def _format_expression(self, node: Node) -> str:
        types = [value.type for value in node.inputs]
        operands = [self._names[value] for value in node.inputs]
        if not isinstance(node.op, UserOp):
            return EXPRESSIONS[node.op.name](node.op, types).format(*operands)
        called = self._module.called
        name = f"user_{len(called)}"
        called[name] = self._module.users[node.op.name](node.op, types)
        return f"{name}({', '.join(operands)})"

    def _format_assignment(self, node: Node, expression: str) -> str:
        names = [self._name_output(value) for value in node.outputs]
        return f"{', '.join(names)} = {expression}"

    def _place_in_arena(self, value: Value) -> str:
        """Return, and remember, the name of a value's own part of the arena."""
        offset = self._base + self._arena.offsets[value]
        self._names[value] = name = self._module.name_part(offset, value.type)
        return name

    def _name_output(self, value: Value) -> str:
        number = len(self._names)
        wanted = value.name and self._variables.reserve(value.name, number)
        self._names[value] = name = wanted or f"v{self._prefix}_{number}"
        return name

    def _emit_delete(self, values: Sequence[Value]) -> Iterator[str]:
        """Write what frees values that nobody needs any more, unless they are the caller's."""
        yield from (line.text for line in self._emit_wait(values))
        shared = set(self._module.known.values())
        kept = {*self._buffer_of, *self._borrowed}
        dead = [self._names[v] for v in values if v not in kept]
        names = [name for name in dead if name not in shared]
        if names:
            yield f"del {', '.join(names)}"

    def _emit_fetch(self, node: Node, number: int) -> Iterator[str]:
        """Write what begins to bring a value back; it is waited for where it is first used."""
        work = f"work{self._prefix}_{number}"
        yield f"{work} = fetch({self._names[node.inputs[0]]}, device)"
        target = self._name_output(node.outputs[0])
        started = PendingCollective(work, target, node.outputs, "", number, segment_of(node))
        self._pending |= dict.fromkeys(node.outputs, started)

    def _may_rename(self, node: Node) -> bool:
        """Whether the operand of a node has a variable of this function alone, and no later use."""
        (value,) = node.inputs
        is_shared = self._names[value] in self._module.known.values()
        is_last = value in self._last_uses.get(node, ())
        return is_last and not is_shared and value not in self._buffer_of

    def _emit_layout(self, node: Node) -> Iterator[str]:
        """Write what lays an image out; nobody reads it as it was, so its name stays."""
        (value,), (laid,) = node.inputs, node.outputs
        self._names[laid] = name = self._names[value]
        yield f"{name} = {EXPRESSIONS[node.op.name](node.op, [value.type]).format(name)}"

    # ---------------------------------------------------------------- collectives

    def _operand_names(self, node: Node) -> list[str]:
        return [self._names[value] for value in node.inputs]

    def _format_call(self, function: str, op: ops.Collective, operands: Sequence[str]) -> str:
        """Return the call of a collective's function; the group stands for axes and count."""
        given = {k: v for k, v in op.attributes.items() if k not in ("axes", "count")}
        named = (f"{name}={value!r}" for name, value in given.items())
        return f"{function}({', '.join([self._module.group(op.axes), *operands, *named])})"

    def _emit_collective(self, node: Node, op: ops.Collective, number: int) -> Iterator[str]:
        work = f"work{self._prefix}_{number}"
        yield from cause_comment(node, self._module.mesh)
        call = self._format_call(op.name, op, self._operand_names(node))
        segment = segment_of(node, issue_node(node, self._module.mesh))
        yield from self._emit_communication(number, "", f"{work} = {call}", segment)
        target = ", ".join(self._name_output(value) for value in node.outputs)
        is_shared = op.reduces and len(node.outputs) > 1
        started = PendingCollective(work, target, node.outputs, "", number, segment, is_shared)
        self._pending |= dict.fromkeys(node.outputs, started)

    def _emit_all_reduce(self, node: Node, op: ops.AllReduce, number: int) -> Iterator[str]:
        buffer, work = self._buffers[node], f"work{self._prefix}_{number}"
        yield from self._emit_buffer(buffer)
        for value, output, view in zip(node.inputs, node.outputs, buffer.views(), strict=True):
            if value in buffer.written_in_place:
                self._names[output] = self._names[value]
                continue
            if buffer.is_single:
                self._names[output] = buffer.name
            else:
                yield f"{self._name_output(output)} = {view}"
            yield f"{self._names[output]}.copy_({self._names[value]})"
        yield from cause_comment(node, self._module.mesh)
        call = self._format_call(op.name, op, [buffer.name])
        segment = segment_of(node, issue_node(node, self._module.mesh))
        yield from self._emit_communication(number, "", f"{work} = {call}", segment)
        release = "" if buffer.is_single else buffer.name
        is_shared = not buffer.is_single
        pending = PendingCollective(work, None, node.outputs, release, number, segment, is_shared)
        self._pending |= dict.fromkeys(node.outputs, pending)

    def _emit_buffer(self, buffer: Buffer) -> Iterator[str]:
        """Write what makes a buffer and the parts of it that ops write into."""
        if buffer.node in self._allocated:
            return
        self._allocated.add(buffer.node)
        yield buffer.declaration()
        for value, view in zip(buffer.node.inputs, buffer.views(), strict=True):
            if value in buffer.written_in_place and buffer.is_single:
                self._names[value] = buffer.name
            elif value in buffer.written_in_place:
                yield f"{self._name_output(value)} = {view}"

    def _emit_wait(self, values: Sequence[Value]) -> Iterator[Line]:
        """Write the ends of what values come from, as lines of the steps that began it."""
        for value in values:
            started = self._pending.get(value)
            if started is None:
                continue
            for output in started.outputs:
                del self._pending[output]
            yield from (Line(text, started.step) for text in self._emit_end(started))

    def _emit_end(self, started: PendingCollective) -> Iterator[str]:
        assigned = f"{started.target} = " if started.target else ""
        yield from self._emit_communication(
            started.step, "end of ", f"{assigned}{started.work}.wait()", started.segment
        )
        if self._is_top_level and started.is_shared and not self._module.codegen.bucket_views:
            yield from (f"{self._names[v]} = {self._names[v]}.clone()" for v in started.outputs)
        yield f"del {', '.join(filter(None, [started.work, started.release]))}"

    def _emit_communication(
        self, number: int, which: str, statement: str, segment: Segment
    ) -> Iterator[str]:
        """Write a statement that exchanges data, or waits for it."""
        yield from self._module.mark(segment, is_wait=bool(which))
        if self._module.codegen.tracks_steps and not self._module.codegen.compiled:
            yield f"step[0] = {number}"
        if self._module.codegen.ranges:
            yield in_range(which + self._module.steps[number])
            statement = f"    {statement}"
        yield statement
        yield from self._module.mark(self._segment)

    # ---------------------------------------------------------------- loops

    def _emit_loop(self, node: Node, op: Repeat, number: int) -> Iterator[str]:
        """Write a loop: its body is a function of its own, stacks are filled slice by slice."""
        body = self._emit_body(node, op, number)
        operands = [self._names[value] for value in node.inputs]
        first = len(operands) - op.stacked
        placed = {value: self._place_in_arena(value) for value in self._find_placed(node)}
        results = [placed.get(value) or self._name_output(value) for value in node.outputs]
        state, stacks = results[: op.carried], results[op.carried :]
        made = [f"made_{number}_{i}" for i in range(len(stacks))]
        for name, operand in zip(state, operands, strict=False):
            yield f"{name} = {operand}"
        on_host = [value in self._on_host for value in node.outputs[op.carried :]]
        for name, value, lies in zip(stacks, node.outputs[op.carried :], on_host, strict=True):
            if lies:  # slices that lie on the host stay apart
                yield f"{name} = [None] * {op.count}"
                continue
            if value in placed:
                continue
            shape = list(value.type.shape)
            yield f"{name} = torch.empty({shape}, dtype={dtype(value.type)}, device=device)"
        counts = f"reversed(range({op.count}))" if op.reverse else f"range({op.count})"
        slices = [f"{operand}[i_{number}]" for operand in operands[first:]]
        arguments = ", ".join([*state, *operands[op.carried : first], *slices])
        yield f"for i_{number} in {counts}:"
        targets = "".join(f"{name}, " for name in [*state, *made])
        yield f"    ({targets}) = body_{number}({arguments})"
        yield from (f"    {line}" for line in self._module.mark(self._segment))
        yield from (f"    {s}[i_{number}] = {m}" for s, m in zip(stacks, made, strict=True))
        if made:
            yield f"del {', '.join(made)}"
        self._note_handed_on(op, body, state, operands)

    def _note_handed_on(
        self, op: Repeat, body: FunctionEmitter, state: Sequence[str], operands: Sequence[str]
    ) -> None:
        """Remember which carries may leave a loop as the tensors that came in."""
        results = zip(body.results(), body.distinct_results(()), strict=True)
        for name, (own, distinct) in zip(state, results, strict=False):
            if own != distinct or not op.count:
                self._same[name] = (*operands, *state, *body._trace(own))

    def _find_placed(self, node: Node) -> list[Value]:
        return [value for value in node.outputs if value in self._arena.offsets]

    def _emit_body(self, node: Node, op: Repeat, number: int) -> FunctionEmitter:
        """Write the function of a loop, and return what wrote it."""
        start, arena = self._arena.within(node)
        emitter = FunctionEmitter(
            self._module, op.body, f"_{number}", arena=arena, base=self._base + start
        )
        names = [emitter.name_input(value) for value in op.body.inputs]
        lines = emitter.lines()
        lines.append(Line(f"return ({''.join(f'{name}, ' for name in emitter.results())})"))
        head = Line(f"def body_{number}({', '.join(names)}):")
        self._module.add_function([head, *indent(lines)])
        return emitter


def indent(lines: Sequence[Line]) -> list[Line]:
    """Return lines as those of a block."""
    return [Line(line.text and f"    {line.text}", line.step) for line in lines]
