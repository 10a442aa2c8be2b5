"""Measures what collectives cost on each mesh axis, with all devices taking part."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from mithril.cost.calibrate.fit import Line, fit_line
from mithril.cost.calibrate.timing import Step, Timer, make_type
from mithril.cost.levels import Level, Link
from mithril.engine import Engine
from mithril.ir import Tensor
from mithril.ir.operand import apply_one
from mithril.mesh import Mesh
from mithril.ops.arithmetic import Add, Multiply
from mithril.ops.collective import (
    SEND,
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    class_of,
)
from mithril.ops.linalg import Einsum
from mithril.ops.reduce import Max
from mithril.ops.slicing import Slice

SIZES = (1 << 8, 1 << 12, 1 << 15, 1 << 18, 1 << 20)
"""Elements that a collective is measured with, before they are cut into parts of a group."""
WORK = 256
"""Rows and columns of a product between collectives: devices compute between them, too, and wait
for the last one where they share the cores of a machine."""
NOTHING = 1e-30
"""What is multiplied by it changes nothing to which it is added."""
LEAST_LATENCY, LEAST_SECONDS_PER_BYTE = 1e-9, 1e-12
"""What counts where the fit leaves nothing."""


def list_kinds(engine: Engine) -> tuple[str, ...]:
    """Return the kinds of collectives that an engine runs, and does not make of others."""
    kinds = (AllReduce, AllGather, ReduceScatter, AllToAll, Permute)
    has, transport = engine.capabilities, engine.transport
    return tuple(
        kind.name
        for kind in kinds
        if kind.name in has and (transport is None or transport.has(kind.name))
    )


def list_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of several devices, the innermost first."""
    return tuple(name for name in reversed(mesh.names) if mesh.product([name]) > 1)


def measure_levels(
    timer: Timer, advance: Callable[[str], None]
) -> tuple[tuple[Level, ...], dict[str, float]]:
    """Return a level of links for each mesh axis, the innermost first, and the errors of the fits.

    Args:
        timer: of the engine.
        advance: told of each measurement before it begins.
    """
    mesh, levels, errors = timer.engine.mesh, [], {}
    devices = 1
    for axis in list_axes(mesh):
        devices *= mesh.product([axis])
        lines = {}
        for kind in list_kinds(timer.engine):
            advance(f"{kind} over {axis}")
            lines[kind] = measure_kind(timer, kind, axis)
            errors[f"{kind} over {axis}"] = lines[kind].error
        links = {kind: _to_link(line) for kind, line in lines.items()}
        # A permutation is one message, as what is sent between stages is.
        single = links.get(Permute.name) or next(iter(links.values()))
        links[SEND] = single
        whole = None if devices == mesh.size else devices
        carried = timer.engine.execution.devices_per_processor > 1
        levels.append(
            Level(
                axis, whole, single.latency, single.bandwidth, collectives=links,
                by_processor=carried,
            )
        )  # fmt: skip
    return tuple(levels), errors


STARTED = 0.5
"""So much of what the smallest collective takes is its start, at least."""


def _to_link(line: Line) -> Link:
    bandwidth = 1 / max(line.second, LEAST_SECONDS_PER_BYTE)
    return Link(max(line.first, LEAST_LATENCY), bandwidth)


def measure_kind(timer: Timer, kind: str, axis: str) -> Line:
    """Return what a kind of collective costs a device for each message and each byte it sends.

    That devices wait for each other is a part of it, so that what is usual counts, not the least.
    """
    timer = timer.typically()
    group = timer.engine.mesh.product([axis])
    points, scales = [], []
    for size in SIZES:
        held = make_type(max(size // group, 1) * group)
        part = make_type(held.size // group)
        operand = part if kind == AllGather.name else held
        # What keeps the chain going costs time, too: it is measured without the collective.
        steps = (_make_step(kind, axis, group, runs) for runs in (True, False))
        types = [operand, make_type(WORK, WORK)]
        with_it, without = (timer.quickly(0.5).measure(s, types, False) for s in steps)
        share = timer.engine.mesh.size if timer.engine.execution.in_turn else 1
        seconds = (with_it - without) / share
        traffic = class_of(kind).traffic(held.nbytes, group)
        points.append((float(traffic.messages), traffic.bytes, seconds))
        scales.append(with_it / share)
    return _start_up(points, fit_line(points, scales))


def _start_up(points: Sequence[tuple[float, float, float]], line: Line) -> Line:
    """Return a line whose first factor is what the smallest collective takes, if the fit lost it.

    Noise of large ones can leave nothing of what it takes to start, and then thousands of small
    ones would cost nothing.
    """
    messages, nbytes, seconds = points[0]
    if line.first * messages >= STARTED * (seconds - line.second * nbytes):
        return line
    first = seconds / messages
    rest = [max(t - first * a, 0.0) / b for a, b, t in points[1:]]
    return Line(first, statistics.median(rest), line.error)


def _make_step(kind: str, axis: str, group: int, runs: bool) -> Step:
    """Return a collective whose result is brought back to the size of its operand."""

    def step(y: Tensor, operands: Sequence[Tensor]) -> Tensor:
        return _work(_exchange(kind, axis, group, y, runs), operands[1])

    return step


def _work(y: Tensor, matrix: Tensor) -> Tensor:
    """Return the operand, after a product of matrices that waits for it."""
    nothing = y.builder.constant(NOTHING, y.dtype)
    first = apply_one(Multiply(), apply_one(Slice((0,), (1,), (1,)), y), nothing)
    product = apply_one(Einsum("ab,bc->ac"), apply_one(Add(), matrix, first), matrix)
    most = apply_one(Max((0, 1), keepdims=False), product)
    return apply_one(Add(), y, apply_one(Multiply(), most, nothing))


def _exchange(kind: str, axis: str, group: int, y: Tensor, runs: bool) -> Tensor:
    gather = AllGather((axis,), 0, group)
    if kind == AllGather.name:
        return _take_first(apply_one(gather, y), group) if runs else y
    if kind == ReduceScatter.name:
        scatter = ReduceScatter((axis,), "sum", 0, group)
        part = apply_one(scatter, y) if runs else _take_first(y, group)
        return apply_one(gather, part)
    if not runs:
        return y
    if kind == AllReduce.name:
        return apply_one(AllReduce((axis,), "sum"), y)
    if kind == AllToAll.name:
        return apply_one(AllToAll((axis,), 0, 0, group), y)
    around = tuple((i, (i + 1) % group) for i in range(group))
    return apply_one(Permute((axis,), around), y)


def _take_first(y: Tensor, group: int) -> Tensor:
    """Return the first part of a vector."""
    return apply_one(Slice((0,), (y.shape[0] // group,), (1,)), y)
