"""From a program to the text of straight-line Python over PyTorch.

The text defines `run(inputs)`; it needs the names of `mithril_torch.program.runtime_library`,
`device`, and `step`, where it notes which step it has come to for whoever watches the process. The
text of a program on some of the devices needs `rank`, too: on the others `run` does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mithril.spi import Graph, Kernel, Mesh, Program, Value

from mithril_torch.program.codegen_options import DEFAULT_CODEGEN, CodegenOptions, wrap_function
from mithril_torch.program.dispatching import dispatch_by_expert
from mithril_torch.program.emit import FunctionEmitter, indent
from mithril_torch.program.flatten_batch_dims import flatten_batch_dims
from mithril_torch.program.fusing import accumulate_in_place, find_aliases, fuse, join_sums
from mithril_torch.program.fusions import form_fusions
from mithril_torch.program.gather_updates import gather_updates
from mithril_torch.program.image_layout import lay_out_images
from mithril_torch.program.in_place import join_relu_gradients, write_in_place
from mithril_torch.program.kept_states import keep_states
from mithril_torch.program.module_scope import Line, ModuleScope, TextSegment
from mithril_torch.program.names import comment, one_a_line, port_comment
from mithril_torch.program.onednn import use_onednn
from mithril_torch.program.peak_memory import split_at_peak
from mithril_torch.program.recompute import recompute_elementwise

Aliases = Mapping[int, int]


@dataclass(frozen=True)
class ProgramText:
    """A program as text.

    Args:
        text: the source of a module.
        steps: what each step is, in the user's words.
        lines: the step that each line belongs to, by line number from 1.
        users: functions that the text calls and that are not text: kernels of users' ops.
        segments: what `mark` is given the numbers of, where the text is timed.
    """

    text: str
    steps: tuple[str, ...]
    lines: Mapping[int, int]
    users: Mapping[str, Any]
    segments: tuple[TextSegment, ...] = ()


def write(
    program: Program,
    users: Mapping[str, Kernel] | None = None,
    codegen: CodegenOptions = DEFAULT_CODEGEN,
    donate: Collection[int] = (),
) -> ProgramText:
    """Write a program as text.

    Args:
        program: what runs.
        users: kernel factories of the ops that users defined, by op name.
        codegen: how it is written besides what it computes.
        donate: positions of inputs that are given up.
    """
    module = Module(users or {}, codegen)
    with module.on_devices(program.mesh):
        module.write_run(program, donate)
    if program.mesh.devices:
        idle = [Line("def run(inputs):"), Line(f"    return {[None] * len(program.outputs)}")]
        module.blocks.append([Line("else:"), *indent(idle)])
    return module.render()


@dataclass
class Module(ModuleScope):
    """The text of one module, as it is written.

    Args:
        blocks: what follows the groups, each apart from the others.
    """

    blocks: list[list[Line]] = field(default_factory=list)

    @contextmanager
    def on_devices(self, mesh: Mesh, title: str = "") -> Iterator[None]:
        """Return a context in which functions are written that run on the devices of a mesh.

        Args:
            mesh: the devices of the backend, or some of them: others pass the functions over.
            title: what they are.
        """
        self.mesh, self._header, self._functions, self._place = mesh, [], [], len(self.blocks)
        yield
        lines = list(self._header)
        for function in self._functions:
            lines += [Line(""), Line(""), *function] if lines else function
        heading = [Line(comment(title))] if title else []
        if not mesh.devices:
            self.blocks.append([*heading, *lines])
            return
        where = tuple(sorted(mesh.devices))
        head = f"if rank in {where}:" if len(where) > 1 else f"if rank == {where[0]}:"
        self.blocks.append([*heading, Line(head), *indent(_join_blank_lines(lines))])

    def write_run(self, program: Program, donate: Collection[int]) -> None:
        """Write the function of a program that is all that runs.

        Args:
            program: what it runs.
            donate: positions of inputs that are given up.
        """
        given_up = {program.graph.inputs[position] for position in donate}
        prepared = replace(program, graph=_prepare(program.graph, self.codegen, donated=given_up))
        arena = self.arrange(prepared.graph)
        emitter = FunctionEmitter(self, prepared.graph, "", arena=arena)
        self._write("run", prepared, emitter, (), given_up)

    def write_stage(self, name: str, program: Program, donated: Sequence[int]) -> Aliases:
        """Write the function of a program that others call, and that empties the list it is given.

        Args:
            name: of the function.
            program: what it runs.
            donated: positions of inputs whose memory it may write its outputs into.

        Returns:
            Positions of inputs, each with the output that is made in its memory.
        """
        free = {program.graph.inputs[position] for position in donated}
        prepared = replace(program, graph=_prepare(program.graph, self.codegen, free=free))
        arena = self.arrange(prepared.graph)
        emitter = FunctionEmitter(self, prepared.graph, "", is_owner=True, arena=arena)
        first = () if self.codegen.compiled else ("inputs.clear()",)
        self._write(name, prepared, emitter, first, free)
        outputs = list(prepared.graph.outputs.values())
        return {
            program.graph.inputs.index(x): outputs.index(made)
            for x, made in find_aliases(prepared.graph).items()
        }

    def _write(
        self,
        name: str,
        program: Program,
        emitter: FunctionEmitter,
        first: Sequence[str],
        given_up: Collection[Value],
    ) -> None:
        names = [emitter.name_input(value) for value in program.graph.inputs]
        title = [port_comment(port, self.mesh) for port in program.inputs]
        unpack = (
            one_a_line("(", list(zip(names, title, strict=True)), ") = inputs") if names else ()
        )
        body = [*map(Line, unpack), *map(Line, first if names else ()), *emitter.lines()]
        results = list(zip(emitter.distinct_results(given_up), program.outputs, strict=True))
        made = [(name, f"{port.name}: {port_comment(port, self.mesh)}") for name, port in results]
        body += map(Line, one_a_line("return [", made, "]") if made else ["return []"])
        self._functions.append([Line(f"def {name}(inputs):"), *indent(body)])
        again = wrap_function(name, self.codegen)
        if again:
            self._functions.append(list(map(Line, again)))

    def render(self) -> ProgramText:
        """Return the text."""
        lines = [Line(f"arena = make_arena({self.arenas}, rank, device)")] if self.arenas else []
        lines += self.groups
        for block in self.blocks:
            is_apart = lines and not block[0].text.startswith(("else", "elif"))
            lines += [Line(""), Line(""), *block] if is_apart else block
        text = "".join(f"{line.text}\n" for line in lines)
        at = {number: line.step for number, line in enumerate(lines, 1) if line.step is not None}
        return ProgramText(text, tuple(self.steps), at, self.called, tuple(self.segments))


def _prepare(
    graph: Graph,
    codegen: CodegenOptions,
    *,
    free: Collection[Value] = (),
    donated: Collection[Value] = (),
) -> Graph:
    """Return a graph that computes the same in the ops that are written.

    Args:
        graph: a local one.
        codegen: how it is written besides.
        free: inputs in whose memory sums may grow.
        donated: inputs whose places results take for the next call.
    """
    if codegen.channels_last:
        graph = lay_out_images(
            graph, contiguous_results=codegen.contiguous_results, donated=donated
        )
    graph = dispatch_by_expert(graph)
    if codegen.fusions:
        graph = form_fusions(recompute_elementwise(graph))
    found = gather_updates(flatten_batch_dims(fuse(graph)))
    if codegen.compiled:
        return found
    found = accumulate_in_place(join_relu_gradients(keep_states(found)), free)
    if codegen.arrange is None:
        found = write_in_place(split_at_peak(join_sums(found)))
    return use_onednn(found) if codegen.uses_onednn else found


def _join_blank_lines(lines: Sequence[Line]) -> list[Line]:
    """Return lines with one empty line where there are two, for a block."""
    pairs = zip([None, *lines], lines, strict=False)
    return [line for before, line in pairs if line.text or before is None or before.text]
