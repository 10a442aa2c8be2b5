"""The cheapest way from one sharding of a value to another, as a list of moves.

The search is Dijkstra's over shardings, priced by the seconds of each move; one collective is taken
rather than two that save less than a nanosecond, which may be rounding alone, and neighbours of one
kind are joined. A plan asks for the paths between all shardings that a value may have, which meet
in the same few in between: what can be done there, and its price, is found once. Where sizes do not
divide, parts travel with their padding; a permute needs equal parts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from mithril.cost import Hardware, describe_emulation, graph_seconds, price_collective
from mithril.cost.devices import local_bytes
from mithril.errors import PlanError
from mithril.ir import Graph
from mithril.mesh import MICRO, Mesh, Sharding
from mithril.ops.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from mithril.sharding.moves import Move, list_moves, merge
from mithril.types import DType, Shape, TensorType

PICOSECONDS = 1e12
ATTOSECONDS = 1e18
PICOSECOND = 10**6
"""In attoseconds, in which moves are compared: of a path's price their rounding is no part."""
WAIT = 1.0
"""The price in seconds of having all micro-batches of a pipeline wait for one another."""


@dataclass(frozen=True, slots=True)
class Path:
    """Moves from one sharding to another, their price in picoseconds, and how many exchange."""

    moves: tuple[Move, ...]
    price: int
    collectives: int


Step = tuple[int, int, Move]
"""A move in a search: its price's number, its end's number, itself."""
Trail = tuple[Step, "Trail"] | None
"""The steps made so far, the last one first."""
PriceKey = tuple[object, ...]
"""What the time of a move depends on, beside the type."""
Amount = TensorType | tuple[int, DType]
"""What it depends on of the type: bytes and elements, where sizes divide."""
Weights = dict[int, int]
"""What moves add to the cost of a path, by number, in attoseconds."""
WORTH = 1000 * PICOSECOND
"""What a path must save to have one more collective."""
MOST = 2**200
"""The cost of a path with a move that may not be made; no other one costs as much."""


@dataclass(slots=True)
class _Steps:
    """The shardings on the way to one goal, by number, and the steps from each, found once."""

    numbers: dict[Sharding, int] = field(default_factory=dict)
    shardings: list[Sharding] = field(default_factory=list)
    known: dict[int, tuple[Step, ...]] = field(default_factory=dict)

    def number(self, sharding: Sharding) -> int:
        """Return the number of a sharding."""
        number = self.numbers.setdefault(sharding, len(self.shardings))
        if number == len(self.shardings):
            self.shardings.append(sharding)
        return number


@dataclass(frozen=True, slots=True)
class Journey:
    """A start and a goal, of which is known what can be done on the way.

    Args:
        start: the sharding to start from.
        goal: the one to end in.
        steps: what can be done.
        here: number of the start.
        end: number of the goal.
        is_even: whether sizes divide wherever a value is cut.
    """

    start: Sharding
    goal: Sharding
    steps: _Steps
    here: int
    end: int
    is_even: bool


class Resharder:
    """Finds and prices reshard paths on one mesh with one hardware profile.

    Args:
        mesh: the devices.
        hardware: the profile.
        pads: whether a dimension may be split that does not divide.
        refuses: whether a collective of some kind and bytes may not occur; None if all may.
    """

    def __init__(
        self,
        mesh: Mesh,
        hardware: Hardware,
        pads: bool = True,
        refuses: Callable[[str, int], bool] | None = None,
    ) -> None:
        self.mesh = mesh
        self.hardware = hardware
        self._refuses = refuses
        self._pads = pads
        self._paths: dict[tuple[Sharding, Sharding, TensorType], Path] = {}
        self._steps: dict[tuple[Sharding, Shape | None], _Steps] = {}
        self._numbers: dict[PriceKey, int] = {(): 0}  # of free moves
        self._weights: dict[Amount, Weights] = {}
        self._merged: dict[tuple[int, ...], tuple[Move, ...]] = {}
        self._collectives: dict[int, tuple[tuple[int, Move], ...]] = {}
        self._work: dict[Graph, float] = {}
        self._times: dict[tuple[str, tuple[str, ...]], Callable[[int], float]] = {}

    def graph_seconds(self, graph: Graph) -> float:
        """Return the predicted seconds of what a device computes in a local graph."""
        if graph not in self._work:
            self._work[graph] = graph_seconds(graph, self.hardware)
        return self._work[graph]

    def path(self, start: Sharding, goal: Sharding, type: TensorType) -> Path:
        """Return the cheapest path.

        Raises:
            PlanError: there is none (the goal is partial in another reduction, say).
        """
        key = (start, goal, type)
        found = self._paths.get(key)
        if found is None:
            journey = self.begin(start, goal, type)
            found = self._paths[key] = self._search(journey, type)
        return found

    def begin(self, start: Sharding, goal: Sharding, type: TensorType) -> Journey:
        """Return what is known of the way from a start to a goal.

        It is the same for other types if sizes divide wherever a value is cut.
        """
        is_even = self._is_even(start, goal, type)
        steps = self._steps.setdefault((goal, None if is_even else type.shape), _Steps())
        return Journey(start, goal, steps, steps.number(start), steps.number(goal), is_even)

    def find_path(self, journey: Journey, type: TensorType) -> Path | None:
        """Return the cheapest path, None if there is none without what is refused.

        Raises:
            PlanError: there would be none with that, either.
        """
        try:
            return self._search(journey, type)
        except PlanError:
            if self._refuses is None:
                raise
            return None

    def follow(self, path: Path, journey: Journey, type: TensorType) -> Path:
        """Return a path of a journey that was found for another type."""
        return self._price_path(path.moves, type, self._of_amount(journey, type))

    @property
    def has_refusals(self) -> bool:
        """Whether there are collectives that may not occur."""
        return self._refuses is not None

    def refuses(self, kind: str, nbytes: int) -> bool:
        """Return whether a collective may not occur."""
        return self._refuses is not None and self._refuses(kind, nbytes)

    def move_bytes(self, move: Move, type: TensorType) -> int:
        """Return the bytes of a collective move with padding, as `Collective.bytes` counts them."""
        type = self._find_exchanged(move, type)
        if move.kind == AllGather.name:
            return local_bytes(type, move.before) * self.mesh.product(move.axes)
        if move.kind == ReduceScatter.name:
            return local_bytes(type, move.after) * self.mesh.product(move.axes)
        if move.kind == AllToAll.name:
            held, left = (s.local_shape(type.shape) for s in (move.before, move.after))
            split = move.target_dimension
            cut = left[split] * self.mesh.product(move.axes)
            sizes = (cut if i == split else size for i, size in enumerate(held))
            return math.prod(sizes) * type.dtype.itemsize
        return local_bytes(type, move.before)

    def find_counted(self, dtype: DType) -> DType:
        """Return the dtype of which as many bytes take as long in any move as of this one."""
        widens = self.hardware.execution.widens
        is_wider = any(widens(AllReduce.name, reduction, dtype) for reduction in ("sum", "max"))
        return DType.bfloat16 if is_wider else DType.int8

    def _find_exchanged(self, move: Move, type: TensorType) -> TensorType:
        """Return the type in which a move is carried out: see `partition/widen_reductions.py`."""
        if MICRO in move.axes:
            return type
        reduction = move.before.reduction_of(move.axes[0]) or "sum"
        is_wide = self.hardware.execution.widens(move.kind, reduction, type.dtype)
        return TensorType(type.shape, DType.float32) if is_wide else type

    def seconds(self, move: Move, type: TensorType) -> float:
        """Return the predicted seconds of a move."""
        if not move.is_collective:
            return 0.0
        # A sum over micro-batches grows by itself; for anything else over time they all must wait.
        waits = WAIT if MICRO in move.axes and move.kind != AllReduce.name else 0.0
        axes = _axes_of_devices(move)
        if self.mesh.product(axes) == 1:
            return waits
        once = self.collective_seconds(move.kind, self.move_bytes(move, type), axes)
        return waits + once * (self.mesh.sizes[MICRO] if _is_repeated(move) else 1)

    def describe_emulation(self, move: Move, type: TensorType) -> str:
        """Return in words what is issued instead of a collective move; empty if it is itself."""
        nbytes, axes = self.move_bytes(move, type), _axes_of_devices(move)
        return describe_emulation(move.kind, nbytes, axes, self.mesh, self.hardware)

    def collective_seconds(self, kind: str, nbytes: int, axes: tuple[str, ...]) -> float:
        """Return the predicted seconds of a collective over some axes of the mesh."""
        key = kind, axes
        if key not in self._times:
            self._times[key] = price_collective(kind, axes, self.mesh, self.hardware)
        return self._times[key](nbytes)

    def _search(self, journey: Journey, type: TensorType) -> Path:
        steps, here, end = journey.steps, journey.here, journey.end
        weights = self._of_amount(journey, type)
        count = 0  # ties go to the path found first
        queue: list[tuple[int, int, int, Trail]] = [(0, count, here, None)]
        least = {end: MOST, here: 0}  # what is no better than a path to the goal is left out
        while queue:
            cost, _, here, trail = heapq.heappop(queue)
            if here == end:
                return self._price_path(self._finish(trail, journey.is_even), type, weights)
            if cost > least[here]:
                continue
            if here not in steps.known:
                steps.known[here] = self._find_steps(here, journey, type)
            for step in steps.known[here]:
                number, after, move = step
                weight = weights.get(number)
                if weight is None:
                    weight = self._weigh(number, move, type, weights)
                found = cost + weight
                if found < least[end] and found < least.get(after, MOST):
                    least[after], count = found, count + 1
                    heapq.heappush(queue, (found, count, after, (step, trail)))
        start, goal = (end.describe() for end in (journey.start, journey.goal))
        raise PlanError(f"cannot reshard {type} from {start} to {goal}")

    def _of_amount(self, journey: Journey, type: TensorType) -> Weights:
        """Return what is known of moves of as many bytes."""
        amount: Amount = (type.nbytes, type.dtype) if journey.is_even else type
        return self._weights.setdefault(amount, {})

    def _is_even(self, start: Sharding, goal: Sharding, type: TensorType) -> bool:
        """Whether sizes divide wherever a value is cut on its way: so it is for every such shape.

        A dimension is split over no axes but those of the start and of the goal.
        """
        return not any(
            size % self.mesh.product({*before, *after})
            for before, after, size in zip(start.dims, goal.dims, type.shape, strict=True)
            if before or after
        )

    def _find_steps(self, here: int, journey: Journey, type: TensorType) -> tuple[Step, ...]:
        steps, before = journey.steps, journey.steps.shardings[here]
        parts = self._count_parts(before) if journey.is_even else None
        moves = list_moves(before, journey.goal, type.shape, self._pads)
        return tuple((self._number(m, parts), steps.number(m.after), m) for m in moves)

    def _count_parts(self, sharding: Sharding) -> int:
        return self.mesh.product(sharding.split_axes)

    def _number(self, move: Move, parts: int | None = None) -> int:
        """Return a number that moves share that take the same time for each type.

        Args:
            move: a move.
            parts: into how many a value is split before, if this alone makes a difference.
        """
        if not move.is_collective:
            return 0
        key: PriceKey = (move,)
        if parts is not None:
            reduction = move.before.reduction_of(move.axes[0])
            key = (move.kind, move.axes, parts, reduction, _is_repeated(move))
        return self._numbers.setdefault(key, len(self._numbers))

    def _weigh(self, number: int, move: Move, type: TensorType, weights: Weights) -> int:
        """Return what a move with a number adds to the cost of a path, found once for an amount."""
        if number not in weights:
            weights[number] = self._find_weight(move, type)
        return weights[number]

    def _find_weight(self, move: Move, type: TensorType) -> int:
        if not move.is_collective:
            return 0
        if self.has_refusals and self.refuses(move.kind, self.move_bytes(move, type)):
            return MOST
        return round(self.seconds(move, type) * ATTOSECONDS) + WORTH

    def _finish(self, trail: Trail, is_even: bool) -> tuple[Move, ...]:
        """Return the moves made, neighbours joined; the same object for the same moves."""
        steps: list[Step] = []
        while trail:
            step, trail = trail
            steps.append(step)
        key = tuple(map(id, steps))  # the lists keep them
        if key not in self._merged:
            steps.reverse()
            self._merged[key] = merged = merge(tuple(move for *_, move in steps))
            self._collectives[id(merged)] = tuple(
                (self._number(move, self._count_parts(move.before) if is_even else None), move)
                for move in merged
                if move.is_collective
            )
        return self._merged[key]

    def _price_path(self, moves: tuple[Move, ...], type: TensorType, weights: Weights) -> Path:
        steps = self._collectives[id(moves)]
        cost = sum(self._weigh(number, move, type, weights) for number, move in steps)
        time = cost - WORTH * len(steps)
        return Path(moves, (time + PICOSECOND // 2) // PICOSECOND, len(steps))


def _is_repeated(move: Move) -> bool:
    """Return whether every micro-batch makes a move: none is added to the others before."""
    return MICRO not in move.axes and move.before.reduction_of(MICRO) is not None


def _axes_of_devices(move: Move) -> tuple[str, ...]:
    """Return the axes over which devices exchange data: micro-batches are of one device."""
    return tuple(axis for axis in move.axes if axis != MICRO)


__all__ = ["PICOSECONDS", "Journey", "Path", "Resharder"]
