"""Reads the collectives of a compiled XLA program from its text, to compare them with a plan.

XLA may merge several all_reduces into one with several operands, and it says once what a loop does
in each trip; both are undone here, so that every operand of every trip is a row.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from mithril.spi import (
    Graph,
    Issued,
    IssuedRow,
    Mesh,
    Node,
    Phase,
    all_nodes,
    join_starts,
    ops,
    regions,
)

PERMUTE = "collective-permute"
KINDS = {kind.replace("_", "-"): kind for kind in ops.collectives()} | {PERMUTE: ops.Permute.name}
"""XLA's names of the collectives, and ours."""
UNNAMED = ("?",)
"""Stands for groups of devices that no axes of the mesh describe, as XLA's partitioner may form."""
Axes = tuple[str, ...]
FindNode = Callable[[str, str], Node | None]
"""Takes the kind of a collective and the `op_name` that XLA keeps of it."""
Groups = frozenset[frozenset[int]]

OUTSIDE = "~"
"""What the name of an op outside all layers begins with, where a layer's path would stand."""
_PHASES = frozenset(phase.value for phase in Phase)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*)$")
_COLLECTIVE = re.compile(r"^(.*?) (" + "|".join(KINDS) + r")(?:-start)?\((.*?)\)(.*)$")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_BITS = re.compile(r"\d+")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def collectives(text: str, mesh: Mesh, graph: Graph | None = None) -> list[Issued]:
    """Return every operand of every collective that a program runs, with the node it stands for.

    Bytes are counted as `mithril.spi.ops.Collective.count_bytes` counts them.

    Args:
        text: the optimised HLO, as `jitted.lower(…).compile().as_text()` gives it.
        mesh: the program's mesh; XLA numbers its devices row-major by the axes, in whichever order
            they lie on the network.
        graph: what was compiled. XLA knows of a permute only who sends to whom; where the graph has
            one of the same pairs, it runs over that one's axes, else over those that pairs cross.
    """
    computations, entry = _computations(text)
    mesh = Mesh.of_axes(mesh.axes)
    groups = {axes: _groups_over(mesh, axes) for axes in _subsets(mesh)}
    permutes = _permutes(graph, mesh) if graph is not None else {}

    def axes_of(kind: str, rest: str) -> Axes:
        if kind != PERMUTE:
            return _find_group_axes(_replica_groups(rest), groups)
        pairs = _parse_lists(rest)
        return permutes.get(frozenset(map(tuple, pairs))) or _find_permute_axes(pairs, mesh)

    return list(_rows(computations, entry, mesh, axes_of, make_node_finder(graph)))


def _rows(
    computations: Mapping[str, Sequence[str]],
    name: str,
    mesh: Mesh,
    axes_of: Callable[[str, str], Axes],
    find_node: FindNode,
) -> Iterator[Issued]:
    for line in computations[name]:
        match = _COLLECTIVE.match(line)
        if match:
            result, kind, _, rest = match.groups()
            axes = axes_of(kind, rest)
            named = mesh.join_axes(axes) if axes else UNNAMED
            operands = list(_operands(KINDS[kind], result, named, mesh.product(axes)))
            names = split_op_name(read_op_name(line))
            if len(names) != len(operands):
                names = names[:1] * len(operands)
            for row, op_name in zip(operands, names, strict=True):
                yield Issued(*row, find_node(KINDS[kind], op_name))
            continue
        trips = _TRIPS.search(line)
        for called in _list_called_computations(line):
            for _ in range(int(trips.group(1)) if trips else 1):
                yield from _rows(computations, called, mesh, axes_of, find_node)


def read_op_name(line: str) -> str:
    """Return the `op_name` that XLA keeps of an instruction; empty where it has none."""
    found = _OP_NAME.search(line)
    return _ESCAPED.sub(r"\1", found.group(1)) if found else ""


def split_op_name(op_name: str) -> list[str]:
    """Return the names of what XLA has merged, one for each operand, or the one that there is.

    >>> split_op_name("jit(f)/(forward/end/3/psum:backward/~all_reduce/7/psum)")
    ['forward/end/3/psum', 'backward/~all_reduce/7/psum']
    """
    _, opened, rest = op_name.rpartition("/(")
    return rest.removesuffix(")").split(":") if opened and ":" in rest else [op_name]


def read_scope(op_name: str) -> tuple[str, str]:
    """Return phase and layer of an `op_name`, the innermost if it stands in several.

    >>> read_scope("jit(local)/forward/up/dot_general"), read_scope("jit(f)/backward/~add/add")
    (('forward', 'up'), ('backward', ''))
    """
    phase, scope, _ = _read_place(op_name)
    return phase, scope


def _read_place(op_name: str) -> tuple[str, str, str]:
    """Return phase, layer, and what follows: of a collective, its number."""
    parts = [*op_name.split("/"), ""]
    for at in range(len(parts) - 3, -1, -1):
        if parts[at] in _PHASES:
            scope = parts[at + 1]
            return parts[at], "" if scope.startswith(OUTSIDE) else scope, parts[at + 2]
    return "", "", ""


def make_node_finder(graph: Graph | None) -> FindNode:
    """Return what finds the collective of a kind that a plan has under an `op_name`."""
    known: dict[tuple[str, str, str, str], Node] = {}
    for region in regions(join_starts(graph)) if graph is not None else ():
        for number, node in enumerate(region.graph.nodes):
            if (op := ops.collective_of(node.op)) is not None:
                key = op.name, node.phase.value, node.scope, str(number)
                known.setdefault(key, node)
    return lambda kind, op_name: known.get((kind, *_read_place(op_name)))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the instructions of each computation, and the name of the one that is run."""
    found: dict[str, list[str]] = {}
    current, entry = "", ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            current = head.group(2)
            found[current] = []
            entry = current if head.group(1) else entry
        elif instruction := _INSTRUCTION.match(line):
            found[current].append(instruction.group(1))
    return found, entry


def _list_called_computations(line: str) -> list[str]:
    """Return the computations an instruction runs; those that only say how to add are empty."""
    branches = _BRANCHES.search(line)
    listed = branches.group(1).replace("%", "").split(", ") if branches else []
    return [*_CALLED.findall(line), *listed]


def _operands(kind: str, result: str, axes: Axes, devices: int) -> Iterator[IssuedRow]:
    shapes = _SHAPE.findall(result)
    times = devices if kind == ops.ReduceScatter.name else 1
    if kind == ops.AllToAll.name and len(shapes) > 1:  # one piece for each device of the group
        yield kind, axes, sum(_bytes(*shape) for shape in shapes)
        return
    for shape in shapes:
        yield kind, axes, times * _bytes(*shape)


def _bytes(dtype: str, sizes: str) -> int:
    bits = _BITS.search(dtype)
    width = int(bits.group()) // 8 if bits else 1  # pred
    return width * math.prod(int(size) for size in sizes.split(",") if size)


def _permutes(graph: Graph, mesh: Mesh) -> dict[frozenset[tuple[int, ...]], Axes]:
    """Return the axes of a graph's permutes, by which device sends to which."""
    found = {}
    for node in all_nodes(graph):
        op = ops.collective_of(node.op)
        if isinstance(op, ops.Permute):
            groups = mesh.groups(op.axes)
            pairs = (
                (group[source], group[target]) for group in groups for source, target in op.pairs
            )
            found[frozenset[tuple[int, ...]](pairs)] = op.axes
    return found


def _find_group_axes(replicas: Sequence[Sequence[int]], groups: Mapping[Axes, Groups]) -> Axes:
    found = frozenset(map(frozenset, replicas))
    for axes, members in groups.items():
        if members == found:
            return axes
    return ()


def _replica_groups(rest: str) -> list[list[int]]:
    iota = _IOTA.search(rest)
    if iota is None:
        return _parse_lists(rest)
    shape, of, order = (
        [int(n) for n in part.split(",")] if part else None for part in iota.groups()
    )
    assert shape is not None
    assert of is not None
    devices = np.arange(math.prod(of)).reshape(of)
    groups: list[list[int]] = devices.transpose(order).reshape(shape).tolist()
    return groups


def _parse_lists(rest: str) -> list[list[int]]:
    match = _LISTED.search(rest)
    groups = re.findall(r"\{([\d,]*)\}", match.group(1)) if match else []
    return [[int(n) for n in group.split(",") if n] for group in groups]


def _find_permute_axes(pairs: Sequence[Sequence[int]], mesh: Mesh) -> Axes:
    moved = set()
    for source, target in pairs:
        here, there = mesh.coordinates(source), mesh.coordinates(target)
        moved |= {name for name in mesh.names if here[name] != there[name]}
    return tuple(name for name in mesh.names if name in moved)


def _subsets(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(mesh.names) + 1):
        yield from itertools.combinations(mesh.names, count)


def _groups_over(mesh: Mesh, axes: tuple[str, ...]) -> Groups:
    """Return the sets of devices that differ along some axes only."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for device in range(mesh.size):
        where = mesh.coordinates(device)
        key = tuple(where[name] for name in mesh.names if name not in axes)
        groups.setdefault(key, set()).add(device)
    return frozenset(map(frozenset, groups.values()))
