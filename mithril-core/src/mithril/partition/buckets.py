"""Gather the all-reduces of gradients into buckets: one collective over a flat buffer each.

One collective per parameter costs its latency every time; PyTorch's DDP showed what works instead:
a small first bucket, so that communication starts early, then large ones, filled in the order in
which the backward computation finishes the gradients (last layer first). DDP's are of 25 MiB; with
smaller ones more is on its way before the last gradient is made (`benchmarks.torch_gpt --ranks`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mithril.cost import Hardware, collective_seconds, describe_emulation
from mithril.ir import Cause, Graph, Node, Phase, Value
from mithril.ir.rewrite import all_nodes
from mithril.ops.collective import AllReduce
from mithril.plan import Program

FIRST_BYTES = 1 << 20
OTHER_BYTES = 8 << 20


def bucket_gradients(
    program: Program,
    hardware: Hardware,
    first_bytes: int = FIRST_BYTES,
    other_bytes: int = OTHER_BYTES,
) -> Program:
    """Return the program with the all-reduces nobody waits for gathered into buckets.

    Args:
        program: a local program.
        hardware: the profile that prices a bucket.
        first_bytes: size at which the first bucket of a group is closed.
        other_bytes: size at which the others are.
    """
    graph = program.graph
    buckets = [b for b in _fill(_deferrable(graph), first_bytes, other_bytes) if len(b.nodes) > 1]
    last = {bucket.nodes[-1]: bucket for bucket in buckets}
    absorbed = {node for bucket in buckets for node in bucket.nodes}
    late = _dependents(graph, absorbed)
    nodes, tail = [], []
    for node in graph.nodes:
        if node in last:
            nodes.append(_join(last[node].nodes, program, hardware))
        elif node in late:
            tail.append(node)
        elif node not in absorbed:
            nodes.append(node)
    return replace(program, graph=Graph(graph.inputs, (*nodes, *tail), graph.outputs))


def _deferrable(graph: Graph) -> list[Node]:
    """Return the all-reduces on which no other collective waits: their results may come late."""
    awaited: set[Value] = set()
    found = []
    for node in reversed(graph.nodes):
        if isinstance(node.op, AllReduce) and not awaited.intersection(node.outputs):
            found.append(node)
        if node.phase == Phase.update:  # comes after all gradients anyway
            continue
        if _communicates(node) or awaited.intersection(node.outputs):
            awaited.update(node.inputs)
    return found[::-1]


def _communicates(node: Node) -> bool:
    return any(inner.op.is_collective for inner in all_nodes(node))


def _dependents(graph: Graph, sources: set[Node]) -> set[Node]:
    """Return the nodes that need a result of one of the sources."""
    late_values = {value for node in sources for value in node.outputs}
    dependents = set()
    for node in graph.nodes:
        if node not in sources and late_values.intersection(node.inputs):
            dependents.add(node)
            late_values.update(node.outputs)
    return dependents


@dataclass(slots=True)
class _Bucket:
    limit: int
    nodes: list[Node]
    bytes: int = 0


def _fill(free: list[Node], first_bytes: int, other_bytes: int) -> list[_Bucket]:
    """Fill buckets in program order; a bucket holds one op (axes, reduction), dtype and phase."""
    filled: list[_Bucket] = []
    current: dict[object, _Bucket] = {}
    for node in free:
        key = (node.op, node.phase, node.inputs[0].type.dtype)
        bucket = current.get(key)
        if bucket is None or bucket.bytes >= bucket.limit:
            limit = first_bytes if bucket is None else other_bytes
            bucket = current[key] = _Bucket(limit, [])
            filled.append(bucket)
        bucket.nodes.append(node)
        bucket.bytes += sum(value.type.nbytes for value in node.inputs)
    return filled


def _join(nodes: list[Node], program: Program, hardware: Hardware) -> Node:
    inputs = tuple(value for node in nodes for value in node.inputs)
    outputs: tuple[Value, ...] = tuple(value for node in nodes for value in node.outputs)
    op = nodes[0].op
    assert isinstance(op, AllReduce), "only all-reduces are bucketed"
    causes = [node.cause for node in nodes if node.cause]
    what = "gradient" if nodes[0].phase == Phase.backward else "value"
    issued = op.name, op.count_bytes([value.type for value in inputs]), op.axes, program.mesh
    cause = Cause(
        value=f"{len(causes)} {what}s",
        produced=causes[0].produced,
        required=causes[0].required,
        consumer=f"{what} bucket",
        seconds=collective_seconds(*issued, hardware),
        parts=tuple(cause.value for cause in causes),
        emulated=describe_emulation(*issued, hardware),
        instead=causes[0].instead if len({cause.instead for cause in causes}) == 1 else (),
    )
    return replace(nodes[-1], inputs=inputs, outputs=outputs, scope="", source=None, cause=cause)
