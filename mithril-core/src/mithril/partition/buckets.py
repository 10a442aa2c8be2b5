"""Put collectives of one kind together: one over a flat buffer in place of several small ones.

One collective a parameter costs its start-up every time. PyTorch's DDP showed what works instead
for gradients: a small first bucket, so that communication starts early, then large ones, filled in
the order in which the backward computation finishes the gradients (last layer first). DDP's are of
25 MiB; with smaller ones more is on its way before the last gradient is made
(`benchmarks.torch_gpt --ranks`).

What reduces is issued with the last of its bucket, for all of which the same collective waits, or
none; so is what gathers the parts of updated parameters. What is kept at rest is gathered with the
first of its bucket, since it is there all the time. All but an all_reduce, which works in place, is
copied into the buffer and out of it, and it lies in memory for longer than by itself. So such a
bucket is as large as makes its start-up a small part of its time, or a fourth of all that is moved
(`bucket_limits.py`), and takes nothing whose copies take longer than the start-up that they save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from mithril.cost import Hardware, collective_seconds, describe_emulation, find_bucket_bytes
from mithril.ir import Cause, Graph, Node, Phase, Value
from mithril.ir.rewrite import communicates, map_bodies
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, Collective, ReduceScatter
from mithril.ops.control import After
from mithril.partition.bucket_limits import count_moved, limit_bucket
from mithril.partition.sources import is_cheap, walk_back
from mithril.plan import Program

FIRST_BYTES = 1 << 20
OTHER_BYTES = 8 << 20


def bucket_collectives(
    program: Program,
    hardware: Hardware,
    first_bytes: int = FIRST_BYTES,
    other_bytes: int = OTHER_BYTES,
) -> Program:
    """Return the program with collectives that may travel together gathered into buckets.

    Args:
        program: a local program.
        hardware: the profile that prices a bucket.
        first_bytes: size at which the first bucket of all-reduces of a group is closed.
        other_bytes: size at which the others are.
    """
    moved = count_moved(program.graph)
    fill = _Filling(program.mesh, hardware, moved, first_bytes, other_bytes)
    return replace(program, graph=_bucket_graph(program.graph, fill))


def _bucket_graph(graph: Graph, fill: _Filling) -> Graph:
    nodes = tuple(map_bodies(node, lambda body: _bucket_graph(body, fill)) for node in graph.nodes)
    return _join_early(_join_late(Graph(graph.inputs, nodes, graph.outputs), fill), fill)


def group_scatters(
    nodes: Sequence[Node], mesh: Mesh, hardware: Hardware, moved: Mapping[str, int]
) -> list[list[Node]]:
    """Return the scatters of gradients in the buckets they come into if nobody waits for them.

    Args:
        nodes: of a backward, in order.
        mesh: the devices.
        hardware: the profile that prices a bucket.
        moved: by the whole program, as of `count_moved`.
    """
    fill, found = _Filling(mesh, hardware, moved, FIRST_BYTES, OTHER_BYTES), list[list[Node]]()
    current: dict[object, tuple[list[Node], int]] = {}
    for node in nodes:
        op = node.op
        if not isinstance(op, ReduceScatter) or not _may_come_late(node):
            continue
        size = _size(node)
        if not fill.is_worth_it(op, size):
            continue
        key = op, node.inputs[0].type.dtype
        bucket, filled = current.get(key, ([], 0))
        if not bucket or filled >= fill.find_limit(op, is_first=False):
            bucket, filled = [], 0
            found.append(bucket)
        bucket.append(node)
        current[key] = bucket, filled + size
    return found


@dataclass(slots=True)
class _Bucket:
    """Collectives that travel together.

    Args:
        limit: the bytes at which it is closed.
        start: the position of its first member.
        deadline: the position of the first collective that waits for one of them.
        nodes: its members.
        bytes: of all of them.
    """

    limit: int
    start: int
    deadline: int
    nodes: list[Node] = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Filling:
    """What may go into a bucket, and how much, by the prices of a profile.

    Args:
        mesh: the devices.
        hardware: the profile.
        moved: as of `count_moved`.
        first_bytes: as of `bucket_collectives`.
        other_bytes: likewise.
    """

    mesh: Mesh
    hardware: Hardware
    moved: Mapping[str, int]
    first_bytes: int
    other_bytes: int
    _limits: dict[Collective, int] = field(default_factory=dict)
    _worth: dict[tuple[Collective, int], bool] = field(default_factory=dict)

    def find_limit(self, op: Collective, is_first: bool) -> int:
        """Return the bytes at which a bucket is closed."""
        if isinstance(op, AllReduce):
            return self.first_bytes if is_first else self.other_bytes
        if op not in self._limits:
            found = find_bucket_bytes(op.name, op.axes, self.mesh, self.hardware)
            self._limits[op] = limit_bucket(op, found, self.moved)
        return self._limits[op]

    def is_worth_it(self, op: Collective, nbytes: int) -> bool:
        """Whether copies into a buffer, and out of it, take less time than what they save.

        An all_reduce works in place in a buffer. Along another dimension than the first the data of
        a collective is copied in any case, as it has to lie device by device.
        """
        if isinstance(op, AllReduce):
            return True
        if (op, nbytes) not in self._worth:
            self._worth[op, nbytes] = self._saves(op, nbytes)
        return self._worth[op, nbytes]

    def _saves(self, op: Collective, nbytes: int) -> bool:
        if isinstance(op, ReduceScatter) and op.reduction != "sum":
            return False  # libraries make these of other collectives
        saved = 2 * self._seconds(op, nbytes) - self._seconds(op, 2 * nbytes)
        moved = 2 * nbytes // self.mesh.product(op.axes)
        if _dimension(op) == 0:
            moved += 2 * nbytes
        copying = moved / self.hardware.bandwidth(moved) + 2 * self.hardware.kernel_seconds
        return nbytes > 0 and saved > copying

    def _seconds(self, op: Collective, nbytes: int) -> float:
        return collective_seconds(op.name, nbytes, op.axes, self.mesh, self.hardware)

    def join(self, nodes: Sequence[Node]) -> Node:
        """Return the collective of a bucket."""
        return join_collectives(nodes, self.mesh, self.hardware)


def _dimension(op: Collective) -> int:
    return op.dimension if isinstance(op, AllGather | ReduceScatter) else 0


def _size(node: Node) -> int:
    assert isinstance(node.op, Collective), "it is asked of collectives"
    return node.op.count_bytes([value.type for value in node.inputs])


def join_collectives(nodes: Sequence[Node], mesh: Mesh, hardware: Hardware) -> Node:
    """Return one collective over a flat buffer in the place of several.

    Args:
        nodes: collectives of one op, dtype and phase.
        mesh: the devices.
        hardware: the profile that prices it.
    """
    inputs = tuple(value for node in nodes for value in node.inputs)
    outputs: tuple[Value, ...] = tuple(value for node in nodes for value in node.outputs)
    op = nodes[0].op
    assert isinstance(op, Collective), "only collectives are put together"
    causes = [node.cause for node in nodes if node.cause]
    is_gradient = op.reduces and nodes[0].phase == Phase.backward
    what = "gradient" if is_gradient else "value"
    issued = op.name, op.count_bytes([value.type for value in inputs]), op.axes, mesh
    cause = Cause(
        value=f"{len(causes)} {what}s",
        produced=causes[0].produced,
        required=causes[0].required,
        consumer=f"{what} bucket",
        seconds=collective_seconds(*issued, hardware),
        parts=tuple(cause.value for cause in causes),
        emulated=describe_emulation(*issued, hardware),
        instead=causes[0].instead if len({cause.instead for cause in causes}) == 1 else (),
        is_asked=all(cause.is_asked for cause in causes),
    )
    return replace(nodes[0], inputs=inputs, outputs=outputs, scope="", source=None, cause=cause)


# ------------------------------------------------------------------ with the last of a bucket


def _join_late(graph: Graph, fill: _Filling) -> Graph:
    buckets = [b for b in _fill_late(graph, fill) if len(b.nodes) > 1]
    if not buckets:
        return graph
    last = {bucket.nodes[-1]: bucket for bucket in buckets}
    absorbed = {node for bucket in buckets for node in bucket.nodes}
    late = _dependents(graph, absorbed)
    nodes: list[Node] = []
    tail: list[Node] = []
    for node in graph.nodes:
        if node in absorbed and node not in last:
            continue
        if node in late and not communicates(node):
            tail.append(node)
            continue
        placed = fill.join(last[node].nodes) if node in last else node
        tail = _take_needed(tail, placed, nodes)
        nodes.append(placed)
    return Graph(graph.inputs, (*nodes, *tail), graph.outputs)


def _take_needed(tail: list[Node], node: Node, nodes: list[Node]) -> list[Node]:
    """Append the late nodes that a node needs, and return the others."""
    wanted, needed = set(node.inputs), set()
    for late in reversed(tail):
        if wanted.intersection(late.outputs):
            needed.add(late)
            wanted.update(late.inputs)
    nodes += [late for late in tail if late in needed]
    return [late for late in tail if late not in needed]


def _fill_late(graph: Graph, fill: _Filling) -> list[_Bucket]:
    """Fill buckets in program order; a bucket holds one op (axes, reduction), dtype and phase.

    The same collective waits for all of it, or none: what others wait for sooner is not held back.
    """
    waiting = _find_waiting(graph)
    filled: list[_Bucket] = []
    current: dict[object, _Bucket] = {}
    for position, node in enumerate(graph.nodes):
        op = node.op
        if not isinstance(op, Collective) or not _may_come_late(node):
            continue
        if not fill.is_worth_it(op, _size(node)):
            continue
        of_phase, of_any = waiting[node]
        key = (op, node.phase, node.inputs[0].type.dtype, of_phase)
        bucket = current.get(key)
        if bucket is None or bucket.bytes >= bucket.limit or position >= bucket.deadline:
            limit = fill.find_limit(op, is_first=bucket is None)
            bucket = current[key] = _Bucket(limit, position, len(graph.nodes))
            filled.append(bucket)
        bucket.nodes.append(node)
        bucket.bytes += _size(node)
        bucket.deadline = min(bucket.deadline, of_any)
    return filled


def _may_come_late(node: Node) -> bool:
    """Whether a collective reduces, or brings together what an update has made in parts.

    What is exchanged again is needed at once: activations are computed from it.
    """
    if node.cause is not None and node.cause.is_again:
        return False
    if isinstance(node.op, AllGather):
        return node.phase == Phase.update
    return isinstance(node.op, AllReduce | ReduceScatter)


def _find_waiting(graph: Graph) -> dict[Node, tuple[int, int]]:
    """Return for each node the positions of the first other collectives that wait for it.

    The first is among those of forward and backward, for a node of these: what updates comes after
    all gradients anyway. The second is among all.
    """
    never = len(graph.nodes)
    needed: dict[Value, tuple[int, int]] = {}
    found: dict[Node, tuple[int, int]] = {}
    for position, node in reversed(list(enumerate(graph.nodes))):
        after = [needed.get(value, (never, never)) for value in node.outputs]
        early, first = (min((pair[i] for pair in after), default=never) for i in (0, 1))
        found[node] = (first if node.phase == Phase.update else early, first)
        if communicates(node):
            early, first = (never if node.phase == Phase.update else position), position
        for value in node.inputs:
            before = needed.get(value, (never, never))
            needed[value] = (min(before[0], early), min(before[1], first))
    return found


def _dependents(graph: Graph, sources: set[Node]) -> set[Node]:
    """Return the nodes that need a result of one of the sources."""
    late_values = {value for node in sources for value in node.outputs}
    dependents = set()
    for node in graph.nodes:
        if node not in sources and late_values.intersection(node.inputs):
            dependents.add(node)
            late_values.update(node.outputs)
    return dependents


# ------------------------------------------------------------------ with the first of a bucket


def _join_early(graph: Graph, fill: _Filling) -> Graph:
    buckets = [b for b in _fill_early(graph, fill) if len(b.nodes) > 1]
    if not buckets:
        return graph
    first = {bucket.nodes[0]: bucket for bucket in buckets}
    absorbed = {node for bucket in buckets for node in bucket.nodes}
    finder = _Sources(graph)
    nodes: dict[Node, None] = {}
    for node in graph.nodes:
        if node in first:
            bucket = first[node]
            for member in bucket.nodes:
                nodes |= dict.fromkeys(finder.list_before(member, bucket.start) or ())
            nodes[fill.join(bucket.nodes)] = None
        elif node not in absorbed:
            nodes[node] = None
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _fill_early(graph: Graph, fill: _Filling) -> list[_Bucket]:
    """Fill buckets in program order with what could be gathered where their first one is."""
    sources = _Sources(graph)
    filled: list[_Bucket] = []
    current: dict[object, _Bucket] = {}
    for position, node in enumerate(graph.nodes):
        op = node.op
        if not isinstance(op, AllGather) or _may_come_late(node):
            continue
        if not fill.is_worth_it(op, _size(node)):
            continue
        size, limit = _size(node), fill.find_limit(op, is_first=False)
        if size > limit:
            continue
        key = (op, node.phase, node.inputs[0].type.dtype)
        bucket = current.get(key)
        if (
            bucket is None
            or bucket.bytes + size > limit
            or sources.list_before(node, bucket.start) is None
        ):
            bucket = current[key] = _Bucket(limit, position, len(graph.nodes))
            filled.append(bucket)
        bucket.nodes.append(node)
        bucket.bytes += size
    return filled


class _Sources:
    """Where the operands of gathers come from."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._positions = {node: position for position, node in enumerate(graph.nodes)}

    def list_before(self, node: Node, position: int) -> list[Node] | None:
        """Return what has to be computed so that a gather can be issued at an earlier position.

        That may be a cast or a view of what is there; None where it is more.
        """
        walked = walk_back(node.inputs[0], self._producers)
        found = list(takewhile(lambda maker: self._positions[maker] >= position, walked))
        if all(is_cheap(maker) or self._is_gate(maker, position) for maker in found):
            return found[::-1]
        return None

    def _is_gate(self, node: Node, position: int) -> bool:
        """Whether a node only says that its operand comes after something, which is there."""
        maker = self._producers.get(node.inputs[-1])
        is_there = maker is None or self._positions[maker] < position
        return isinstance(node.op, After) and is_there


__all__ = [
    "FIRST_BYTES", "OTHER_BYTES", "bucket_collectives", "group_scatters", "join_collectives",
]  # fmt: skip
