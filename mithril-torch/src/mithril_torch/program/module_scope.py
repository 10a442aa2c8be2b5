"""What the functions of one generated text share: groups of devices, constants, steps, kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mithril.spi import NO_ARENA, Arena, Graph, Kernel, Mesh, Segment, TensorType, Writing

from mithril_torch.kernels.expression import dtype
from mithril_torch.program.arena import is_anew, list_written
from mithril_torch.program.codegen_options import CodegenOptions


@dataclass
class Line:
    """A line, and the step it belongs to."""

    text: str
    step: int | None = None


@dataclass(frozen=True)
class TextSegment:
    """A segment of a text.

    Args:
        segment: what it is; without a name, nothing that is told.
        devices: flat indices of those that take part.
        is_wait: whether it goes on with an exchange that was started before.
    """

    segment: Segment
    devices: tuple[int, ...]
    is_wait: bool = False


@dataclass
class ModuleScope:
    """What the functions of one text share.

    Args:
        users: kernel factories of the ops that users defined, by op name.
        codegen: how it is written besides what it computes.
        groups: lines that make groups of devices: every device runs them, in one order.
        steps: what each step is.
        called: functions that the text calls and that are not text.
        known: what is made once: expressions, where they stand, and their names.
        segments: what `mark` is given the numbers of.
        arenas: devices, all if none are named, and how many bytes they need in the block of memory
            that functions share.
    """

    users: Mapping[str, Kernel]
    codegen: CodegenOptions
    groups: list[Line] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    called: dict[str, Any] = field(default_factory=dict)
    known: dict[tuple[str, int], str] = field(default_factory=dict)
    segments: list[TextSegment] = field(default_factory=list)
    arenas: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    mesh: Mesh = field(default_factory=Mesh)
    _header: list[Line] = field(default_factory=list)
    _functions: list[list[Line]] = field(default_factory=list)
    _shared: dict[Hashable, str] = field(default_factory=dict)
    _place: int = 0

    def mark(
        self, segment: Segment, *, is_wait: bool = False, devices: Sequence[int] = ()
    ) -> list[str]:
        """Return the line that takes the time as a segment begins, if the text is timed.

        Args:
            segment: what begins.
            is_wait: whether it goes on with an exchange that was started before.
            devices: those that take part; by default those of the function.
        """
        if not self.codegen.timed:
            return []
        found = TextSegment(segment, tuple(devices) or self.mesh.flat, is_wait)
        if found not in self.segments:
            self.segments.append(found)
        return [f"mark({self.segments.index(found)})"]

    def add_function(self, lines: list[Line]) -> None:
        """Add a function that others here call."""
        self._functions.append(lines)

    def share(self, kind: str, key: Hashable, write: Callable[[str], list[str]]) -> str:
        """Return the name of a function that is written once for all that compute alike.

        Args:
            kind: what its name begins with.
            key: what these have in common.
            write: returns its lines, given its name.
        """
        here = self._place, key
        if here not in self._shared:
            self._shared[here] = name = f"{kind}{len(self._shared)}"
            self.add_function([*map(Line, write(name))])
        return self._shared[here]

    def once(self, kind: str, expression: str) -> str:
        """Return the name of what is made once, when the text is loaded."""
        return self._once(kind, expression, self._place, self._header)

    def group(self, axes: tuple[str, ...]) -> str:
        """Return the name of the group of devices along some axes."""
        members = [[self.mesh.in_whole(i) for i in ranks] for ranks in self.mesh.groups(axes)]
        label = ",".join(self.mesh.join_axes(axes))
        how = "" if self.codegen.cross_memory else ", cross_memory=False"
        return self._once("group_", f"make_group({label!r}, {members}{how})", -1, self.groups)

    def arrange(self, graph: Graph) -> Arena:
        """Return where the results of a graph lie in the block of memory that functions share."""
        if self.codegen.arrange is None:
            return NO_ARENA
        arena = self.codegen.arrange(graph, Writing(list_written, is_anew))
        if arena.size:
            self.arenas.append((self.mesh.devices, arena.size))
        return arena

    def name_part(self, offset: int, type: TensorType) -> str:
        """Return the name of a part of that block, which is cut out once."""
        return self.once("held_", f"cut(arena, {offset}, {list(type.shape)}, {dtype(type)})")

    def _once(self, kind: str, expression: str, place: int, lines: list[Line]) -> str:
        key = expression, place
        if key not in self.known:
            self.known[key] = name = f"{kind}{len(self.known)}"
            lines.append(Line(f"{name} = {expression}"))
        return self.known[key]
