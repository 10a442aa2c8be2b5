"""Run a program on all devices of a mesh in one process, all devices in step.

The program is turned into straight-line Python: one assignment per node and per device, `del` at
the last use. What provably does not differ between devices is computed once: a value *varies* over
the mesh axes that its inputs, or its device index, vary over, and an all_reduce or all_gather ends
that. Generic over the array namespace and the kernels, so that any single-process framework can use
it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels import Kernel
from mithril.engine.protocol import Observer
from mithril.ir import Node, Op, Program, Value
from mithril.ir.plan import observed
from mithril.mesh import Mesh, carry
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisIndex,
    Permute,
    ReduceScatter,
)

Axes = tuple[str, ...]
Coordinate = tuple[int, ...]  # along the axes a value varies over, in mesh order
Group = list[Any]
SMALL_FLOATS = ("bfloat16", "float16")  # sums of these are taken in float32
COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}


class LockstepExecutable:
    """A program lowered for all devices of its mesh; inputs and outputs are lists by device."""

    def __init__(self, program: Program, kernels: Mapping[str, Kernel], xp: ModuleType) -> None:
        writer = _Writer(program, kernels, xp)
        self.source = writer.write()
        namespace: dict[str, Any] = writer.constants
        exec(compile(self.source, f"<lockstep {id(self)}>", "exec"), namespace)
        self._run: Callable[[Sequence[Sequence[Any]], Observer | None], list[list[Any]]] = (
            namespace["run"]
        )

    def __call__(
        self, inputs: Sequence[Sequence[Any]], observe: Observer | None = None
    ) -> list[list[Any]]:
        """Run once; see `Executable`."""
        # As on other frameworks, an overflow or a division by zero makes inf or nan in silence.
        with np.errstate(all="ignore"):
            return self._run(inputs, observe)


class _Writer:
    """Writes the source of one program and collects the functions it calls."""

    def __init__(self, program: Program, kernels: Mapping[str, Kernel], xp: ModuleType) -> None:
        self.constants: dict[str, Any] = {}
        self._program = program
        self._kernels = kernels
        self._xp = xp
        self._mesh = program.mesh
        self._varies: dict[Value, Axes] = {}
        self._names: dict[Value, str] = {}
        self._last = _last_uses(program)

    def write(self) -> str:
        """Return the source of `run(inputs, observe)`."""
        lines = ["def run(inputs, observe):"]
        lines += [f"    {line}" for line in self._body()]
        return "\n".join(lines) + "\n"

    def _body(self) -> Iterator[str]:
        for position, (port, value) in enumerate(
            zip(self._program.inputs, self._program.graph.inputs, strict=True)
        ):
            sharding = carry(port.sharding, self._mesh)
            pending = tuple(axis for axis, _ in sharding.partial)
            self._declare(value, (*sharding.split_axes, *pending))
            for at, name in self._variables(value):
                device = self._device(self._varies[value], at)
                yield f"{name} = inputs[{position}][{device}]"
        for number, node in enumerate(self._program.graph.nodes):
            yield from self._node(node, f"f{number}")
            dead = [n for v in self._last.get(node, ()) for _, n in self._variables(v)]
            if dead:
                yield f"del {', '.join(dead)}"
        yield f"return [{', '.join(self._output(v) for v in self._program.graph.outputs.values())}]"

    def _node(self, node: Node, function: str) -> Iterator[str]:
        op = node.op
        if isinstance(op, AxisIndex):
            yield from self._axis_index(node, op)
            return
        inherited = tuple(axis for value in node.inputs for axis in self._varies[value])
        if op.is_collective:
            yield from self._collective(node, function, inherited)
            return
        types = [value.type for value in node.inputs]
        self.constants[function] = self._kernels[op.name](op, types, self._xp)
        for value in node.outputs:
            self._declare(value, inherited)
        axes = self._varies[node.outputs[0]]
        for at in self._coordinates(axes):
            results = ", ".join(self._variable(value, axes, at) for value in node.outputs)
            operands = ", ".join(self._variable(value, axes, at) for value in node.inputs)
            yield f"{results} = {function}({operands})"

    def _axis_index(self, node: Node, op: AxisIndex) -> Iterator[str]:
        (value,) = node.outputs
        self._declare(value, op.axes)
        for at, name in self._variables(value):
            index = self._mesh.index_over(self._device(self._varies[value], at), op.axes)
            self.constants[f"i{index}"] = np.asarray(index, np.int32)
            yield f"{name} = i{index}"

    def _collective(self, node: Node, function: str, inherited: Axes) -> Iterator[str]:
        op = node.op
        self.constants[function] = _COLLECTIVES[type(op)](op, self._xp)
        axes: Axes = op.axes  # type: ignore[attr-defined]
        same_for_all = isinstance(op, AllReduce | AllGather)
        kept = tuple(axis for axis in inherited if axis not in axes)
        for value in node.outputs:
            self._declare(value, kept if same_for_all else (*kept, *axes))
        outer = self._in_mesh_order(kept)
        told = ", ".join(map(repr, observed(node, self._mesh)))
        yield f"if observe: observe({told})"
        for at in self._coordinates(outer):
            members = list(self._members(outer, at, axes))
            groups = []
            for value in node.inputs:
                names = (self._variable(value, *member) for member in members)
                groups.append(f"[{', '.join(names)}]")
            targets = []
            for value in node.outputs:
                if same_for_all:
                    targets.append(self._variable(value, outer, at))
                else:
                    names = (self._variable(value, *member) for member in members)
                    targets.append(f"[{', '.join(names)}]")
            yield f"{', '.join(targets)} = {function}({', '.join(groups)})"

    def _members(
        self, outer: Axes, at: Coordinate, axes: Axes
    ) -> Iterator[tuple[Axes, Coordinate]]:
        """Yield the members of a group, the first of `axes` being the major one."""
        both = self._in_mesh_order((*outer, *axes))
        fixed = dict(zip(outer, at, strict=True))
        for inner in itertools.product(*(range(self._mesh.sizes[axis]) for axis in axes)):
            where = {**fixed, **dict(zip(axes, inner, strict=True))}
            yield both, tuple(where[axis] for axis in both)

    def _output(self, value: Value) -> str:
        axes = self._varies[value]
        everywhere = (self._mesh.coordinates(device) for device in range(self._mesh.size))
        names = (self._variable(value, axes, tuple(c[a] for a in axes)) for c in everywhere)
        return f"[{', '.join(names)}]"

    # ---------------------------------------------------------------- variables

    def _declare(self, value: Value, axes: Axes) -> None:
        self._varies[value] = self._in_mesh_order(axes)
        self._names[value] = f"v{len(self._names)}"

    def _in_mesh_order(self, axes: Axes) -> Axes:
        return tuple(name for name in self._mesh.names if name in axes)

    def _coordinates(self, axes: Axes) -> Iterator[Coordinate]:
        return itertools.product(*(range(self._mesh.sizes[axis]) for axis in axes))

    def _variables(self, value: Value) -> Iterator[tuple[Coordinate, str]]:
        axes = self._varies[value]
        for at in self._coordinates(axes):
            yield at, self._variable(value, axes, at)

    def _variable(self, value: Value, axes: Axes, at: Coordinate) -> str:
        """Return the variable that holds a value at a coordinate given along some axes."""
        where = dict(zip(axes, at, strict=True))
        own = [str(where[axis]) for axis in self._varies[value]]
        return "_".join([self._names[value], *own])

    def _device(self, axes: Axes, at: Coordinate) -> int:
        where = dict(zip(axes, at, strict=True))
        return _flat(self._mesh, where)


def _flat(mesh: Mesh, where: Mapping[str, int]) -> int:
    device = 0
    for axis in mesh.axes:
        device = device * axis.size + where.get(axis.name, 0)
    return device


def _last_uses(program: Program) -> dict[Node, list[Value]]:
    """Return the values that nobody needs after a node; program outputs live on."""
    seen = set(program.graph.outputs.values())
    last: dict[Node, list[Value]] = {}
    for node in reversed(program.graph.nodes):
        for value in dict.fromkeys((*node.inputs, *node.outputs)):
            if value not in seen:
                seen.add(value)
                last.setdefault(node, []).append(value)
    return last


# -------------------------------------------------------------------- collectives on lists


def _all_reduce(op: Any, xp: ModuleType) -> Callable[..., Any]:
    reduce = _reducer(op.reduction, xp)

    def run(*groups: Group) -> Any:
        return tuple(map(reduce, groups)) if len(groups) > 1 else reduce(groups[0])

    return run


def _reducer(reduction: str, xp: ModuleType) -> Callable[[Group], Any]:
    combine = getattr(xp, COMBINE[reduction])

    def reduce(parts: Group) -> Any:
        dtype = parts[0].dtype
        small = str(dtype) in SMALL_FLOATS and reduction == "sum"
        total = xp.asarray(parts[0], dtype=np.float32) if small else parts[0]
        for part in parts[1:]:
            total = combine(total, part)
        return xp.asarray(total, dtype=dtype)

    return reduce


def _all_gather(op: Any, xp: ModuleType) -> Callable[[Group], Any]:
    return lambda parts: xp.concatenate(parts, axis=op.dimension)


def _reduce_scatter(op: Any, xp: ModuleType) -> Callable[[Group], Group]:
    reduce = _reducer(op.reduction, xp)
    return lambda parts: _cut(reduce(parts), op.dimension, op.count)


def _all_to_all(op: Any, xp: ModuleType) -> Callable[[Group], Group]:
    def run(parts: Group) -> Group:
        pieces = [_cut(part, op.split, op.count) for part in parts]
        return [xp.concatenate(column, axis=op.concat) for column in zip(*pieces, strict=True)]

    return run


def _permute(op: Any, xp: ModuleType) -> Callable[[Group], Group]:
    def run(parts: Group) -> Group:
        moved = list(parts)
        for source, target in op.pairs:
            moved[target] = parts[source]
        return moved

    return run


def _cut(x: Any, dimension: int, count: int) -> Group:
    size = x.shape[dimension] // count
    before = (slice(None),) * dimension
    return [x[(*before, slice(i * size, (i + 1) * size))] for i in range(count)]


_COLLECTIVES: dict[type[Op], Callable[[Any, ModuleType], Callable[..., Any]]] = {
    AllReduce: _all_reduce,
    AllGather: _all_gather,
    ReduceScatter: _reduce_scatter,
    AllToAll: _all_to_all,
    Permute: _permute,
}
