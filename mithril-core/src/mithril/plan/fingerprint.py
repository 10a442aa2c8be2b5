"""Fingerprints of plans: numbers that processes compare instead of the plans.

They are of texts that are equal wherever the same is planned: in every process and run of Python,
whatever the seed of its hashes, and wherever the user's files lie. No line of the user's, no scope
and no price is in them. Ops in which devices meet count in their order, others in any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from zlib import crc32

import numpy as np

from mithril.ir import Graph, Node
from mithril.plan.plan import Plan
from mithril.plan.program import Port

_AS_WRITTEN = frozenset({int, float, bool, str, bytes, complex, type(None)})


def fingerprint_ports(ports: Iterable[Port]) -> int:
    """Return a number of 31 bits for names, types and shardings of ports, in order.

    >>> fingerprint_ports([])
    0
    """
    return _number(map(describe_port, ports))


def fingerprint_work(plan: Plan) -> int:
    """Return a number of 31 bits for what a plan computes, where, and what comes out of it."""
    lines = [*map(describe_port, plan.outputs)]
    for stage in plan.stages:
        lines += (repr(stage.program.mesh), repr(stage.devices), *_graph_lines(stage.program.graph))
    if plan.only_stage is None:
        for transfer in plan.timetable.transfers:
            ends = (transfer.source, transfer.target)
            ways = [f"{lies.describe()} on {lies.mesh.devices}" for lies in ends]
            lines.append(f"{transfer.type} {ways} {transfer.goal} {transfer.offset}")
        lines += map(repr, plan.timetable.steps)
    return _number(lines)


def describe_port(port: Port) -> str:
    """Return name, type and sharding of a port as one short text."""
    lies, devices = port.sharding, port.sharding.mesh.devices
    split = "" if lies.is_replicated else f" {lies.describe()}"
    return f"{port.name} {port.type}{split}{f' on devices {devices}' if devices else ''}"


def _number(lines: Iterable[str]) -> int:
    return crc32("\n".join(lines).encode(errors="surrogatepass")) >> 1


def _graph_lines(graph: Graph) -> Iterator[str]:
    apart = []
    yield from (f"{value.name} {value.type}" for value in graph.inputs)
    for node in graph.nodes:
        if node.op.is_collective or node.op.bodies:
            yield _describe_node(node)
        else:
            apart.append(_describe_node(node))
    yield from sorted(apart)


def _describe_node(node: Node) -> str:
    return f"{_describe(node.op)} {' '.join(str(value.type) for value in node.outputs)}"


def _describe(value: object) -> str:
    """Return a text of an attribute; of what is known by its address alone, that of its class."""
    kind = type(value)
    if kind in _AS_WRITTEN:
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({','.join(map(_describe, value))})"
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Graph):
        return "\n".join(_graph_lines(value))
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_describe(k)}:{_describe(x)}' for k, x in value.items())}}}"
    if isinstance(value, set | frozenset):
        return f"{{{','.join(sorted(map(_describe, value)))}}}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.shape}{crc32(np.ascontiguousarray(value).tobytes())}"
    if is_dataclass(value):
        name = getattr(value, "name", kind.__name__)
        return f"{name}[{','.join(_describe(getattr(value, x.name)) for x in fields(value))}]"
    return kind.__name__


__all__ = ["describe_port", "fingerprint_ports", "fingerprint_work"]
