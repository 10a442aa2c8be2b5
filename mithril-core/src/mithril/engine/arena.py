"""Arenas: one block of memory a device, in which a program keeps its values at fixed offsets.

The offsets are chosen before anything runs, from when values are needed (`mithril.cost.arena`). An
engine makes the block when it lowers a program, has kernels write into parts of it, and uses it
again at every call. What leaves a program is never in it, so that nobody finds a result changed by
the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any, Protocol

import numpy as np

from mithril.engine.alignment import ALIGNMENT
from mithril.engine.kernels.registry import Run
from mithril.ir import Graph, Node, Value
from mithril.ir.start import join_starts
from mithril.ops import (
    Add,
    CrossEntropy,
    CrossEntropyGradient,
    Divide,
    Einsum,
    Exp,
    Gelu,
    GeluGradient,
    LayerNorm,
    LayerNormGradient,
    LogSoftmax,
    Multiply,
    OneHot,
    RmsNorm,
    RmsNormGradient,
    ScatterAdd,
    Silu,
    SiluGradient,
    Softmax,
    SoftmaxGradient,
    Subtract,
    Take,
    Tanh,
    Where,
)
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.elementwise import Comparison
from mithril.ops.random import RandomBits
from mithril.ops.reduce import Reduction
from mithril.plan import Execution, Program
from mithril.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """Where the values of a graph lie in the one block of a device.

    Args:
        size: of the block, in bytes.
        bound: the most bytes that are needed in it at once: no order of offsets takes less.
        offsets: where in it each value begins that a kernel writes into it.
        bodies: for each loop where in it the arena of its body begins, and that arena.
    """

    size: int = 0
    bound: int = 0
    offsets: Mapping[Value, int] = field(default_factory=dict)
    bodies: Mapping[Node, tuple[int, Arena]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times the least it takes; 1.0 is the best there is."""
        return self.size / self.bound if self.bound else 1.0

    def within(self, node: Node) -> tuple[int, Arena]:
        """Return where the arena of a loop's body begins, and that arena."""
        return self.bodies.get(node, (0, NO_ARENA))


NO_ARENA = Arena()

_ANEW = (
    Add, Attention, AttentionGradient, Comparison, CrossEntropy, CrossEntropyGradient, Divide,
    Einsum, Exp, Gelu, GeluGradient, LayerNorm, LayerNormGradient, LogSoftmax, Multiply, OneHot,
    RandomBits, RmsNorm, RmsNormGradient, ScatterAdd, Silu, SiluGradient, Softmax, SoftmaxGradient,
    Subtract, Take, Tanh, Where,
)  # fmt: skip
"""Ops whose kernels, on every engine, return neither an operand nor a view of one."""


def makes_anew(node: Node) -> bool:
    """Return whether the results of a node share no memory with its operands, wherever it runs."""
    return isinstance(node.op, _ANEW) or (isinstance(node.op, Reduction) and bool(node.op.axes))


@dataclass(frozen=True, slots=True)
class Writing:
    """What an engine's kernels do with memory that is given.

    Args:
        results: returns which results of a node are written into it, and may lie in an arena.
        is_anew: returns whether the other results of a node share no memory with its operands;
            where they may, the operands are needed as long as they.
    """

    results: Callable[[Node], Sequence[Value]]
    is_anew: Callable[[Node], bool] = makes_anew


class Arrange(Protocol):
    """Chooses where the values of a graph lie; `mithril.cost` has it, which knows live ranges."""

    def __call__(self, execution: Execution, graph: Graph, writing: Writing) -> Arena:
        """Return where values lie.

        Args:
            execution: how the engine runs programs.
            graph: a local one, its nodes in the order in which they run.
            writing: what its kernels do with memory that is given.
        """
        ...


WriterOf = Mapping[str, Callable[[Any, Sequence[TensorType]], Run | None]]
"""By op name, factories of kernels that write into memory that is given; None if there is none."""


Place = tuple[int, int, TensorType]
"""A device, where something begins in its block, and what it is."""


class SimulatedArenas:
    """The arenas of simulated devices, in the memory of NumPy; the programs of a plan share them.

    Args:
        arrange: chooses offsets.
    """

    def __init__(self, arrange: Arrange) -> None:
        self._arrange = arrange
        self._blocks: dict[int, np.ndarray] = {}
        self._sizes: dict[int, int] = {}
        self.lock = Lock()
        """Held while a program runs: two calls at once would write into the same memory."""

    def lay_out(self, program: Program, execution: Execution, writers: WriterOf) -> ArenaLayout:
        """Return where the values of a program lie, and take note of the size that it needs.

        Args:
            program: its nodes in the order in which they run.
            execution: how the engine runs them.
            writers: of its kernels those that write where they are told.
        """
        graph = join_starts(program.graph)
        arena = self._arrange(execution, graph, Writing(partial(_list_written, writers)))
        for device in program.mesh.flat:
            self._sizes[device] = max(arena.size, self._sizes.get(device, 0))
        return ArenaLayout(self, graph, arena, writers)

    def assign(self, places: Mapping[str, Place], namespace: dict[str, Any]) -> None:
        """Put memory into a namespace; blocks are made when they are first needed.

        Args:
            places: what memory, by name.
            namespace: of the functions that use it.
        """
        for name, (device, offset, type) in places.items():
            block = self._blocks.get(device)
            if block is None:
                block = self._blocks[device] = _make_block(self._sizes[device])
            part = block[offset : offset + type.nbytes]
            namespace[name] = part.view(type.dtype.numpy).reshape(type.shape)


def _list_written(writers: WriterOf, node: Node) -> Sequence[Value]:
    """Return the results of a node that a kernel writes; a scalar of NumPy is no array."""
    if node.op.bodies:
        return node.stacks
    make = writers.get(node.op.name)
    if make is None or not all(value.type.shape for value in node.outputs):
        return ()
    return node.outputs if make(node.op, [x.type for x in node.inputs]) is not None else ()


def _make_block(size: int) -> np.ndarray:
    """Return bytes that begin where a line of the cache does."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


@dataclass(frozen=True, slots=True, eq=False)
class ArenaLayout:
    """Where the values of one graph lie in the arenas of simulated devices.

    Args:
        arenas: the blocks.
        graph: the graph.
        arena: the offsets.
        writers: by op name, factories of kernels that write where they are told.
        base: where in a block the arena begins.
    """

    arenas: SimulatedArenas
    graph: Graph
    arena: Arena
    writers: WriterOf
    base: int = 0

    def holds(self, value: Value) -> bool:
        """Return whether a value is written into the arena."""
        return value in self.arena.offsets

    def make_writer(self, node: Node) -> Run:
        """Return the kernel of a node that writes so; it takes the memory after the operands."""
        run = self.writers[node.op.name](node.op, [x.type for x in node.inputs])
        assert run is not None, "only what a kernel writes is in an arena"
        return run

    def place(self, value: Value, device: int) -> Place:
        """Return where such a value lies on a device."""
        return device, self.base + self.arena.offsets[value], value.type

    def within(self, node: Node) -> ArenaLayout:
        """Return the layout of the body of a loop."""
        start, arena = self.arena.within(node)
        return replace(self, graph=node.op.bodies[0], arena=arena, base=self.base + start)
