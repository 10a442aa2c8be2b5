"""Graph, Node and Value: typed programs in static single assignment form.

A graph is frozen: its nodes stand in an order in which every value is defined before it is used.
Values are compared by identity; their names are for people. A node knows where it comes from: the
user's layer path (`scope`) and line (`source`), kept by every pass, so that errors and plans can
name them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from mithril.ir.source import Source
from mithril.types import TensorType

if TYPE_CHECKING:
    from mithril.ir.op import Cost, Op


class Phase(StrEnum):
    """Whether a node belongs to the forward or the backward computation, or to the update."""

    forward = "forward"
    backward = "backward"
    update = "update"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor of a graph; equal only to itself."""

    type: TensorType
    name: str = ""

    def __repr__(self) -> str:
        return f"Value({self.name or '?'}: {self.type})"


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to run what asks for a collective.

    Args:
        option: the op, and how its operands would lie.
        seconds: predicted time that it would take more there; below 0 if less.
    """

    option: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Of which collective another one is a step.

    Args:
        name: `ring`, `hierarchical`, ….
        kind: of the collective that is carried out so.
        bytes: of each of its operands, as plans count them.
        step: the number of this step, from 1.
        steps: how many there are.
    """

    name: str
    kind: str
    bytes: tuple[int, ...]
    step: int
    steps: int

    def __str__(self) -> str:
        return f"{self.name}, step {self.step} of {self.steps} of {self.kind}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a collective is in the plan.

    Args:
        value: the tensor that moves.
        produced: how it lies where it is made.
        required: how it has to lie where it is used.
        consumer: layer path or output that requires it.
        seconds: predicted time.
        parts: for a bucket, the tensors it carries.
        instead: what else was possible for the layer that asks, the cheapest first.
        wholeness: which op needs which dimension whole, where that alone is why it moves.
        emulated: what is issued in its place, where the backend lacks it.
        is_asked: whether it is part of what an option asks for, such as `context_parallel`.
        is_again: whether it repeats for the backward what the forward has exchanged.
        hidden: the part of the predicted time that passes while something is computed; None where
            nothing is said of that.
        behind: what is computed meanwhile: layer paths, those that take longest first, three at
            most.
        algorithm: of which collective it is a step; None where it is all of it.
        compressed: what it carries of a gradient, or a parameter, in the place of all bits; empty
            where it carries what it is given.
        plain_bytes: what a device would send without that; 0 where another collective of the same
            gradient says it.
    """

    value: str
    produced: str
    required: str
    consumer: str
    seconds: float = 0.0
    parts: tuple[str, ...] = ()
    instead: tuple[Alternative, ...] = ()
    wholeness: str = ""
    emulated: str = ""
    is_asked: bool = False
    is_again: bool = False
    hidden: float | None = None
    behind: tuple[str, ...] = ()
    algorithm: Algorithm | None = None
    compressed: str = ""
    plain_bytes: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One application of an op.

    Args:
        op: the op with its attributes.
        inputs: operands.
        outputs: results.
        scope: the user's layer path, such as `block3.attn.q`.
        source: the user's line.
        phase: forward, backward or update.
        cause: for a collective, why it is there.
    """

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    scope: str = ""
    source: Source | None = None
    phase: Phase = Phase.forward
    cause: Cause | None = None

    @property
    def attributes(self) -> Mapping[str, object]:
        """The op's attributes by name."""
        return self.op.attributes

    @property
    def line(self) -> str:
        """The user's line, as `file:line`, or empty."""
        return str(self.source) if self.source else ""

    @property
    def stacks(self) -> tuple[Value, ...]:
        """The results of a loop that its iterations make slice by slice; no other op has any."""
        return self.outputs[len(self.op.carries) :] if self.op.bodies else ()

    def cost(self) -> Cost:
        """Return the work of the op on these operands."""
        return self.op.cost([v.type for v in self.inputs], [v.type for v in self.outputs])

    def where(self) -> str:
        """Return `layer (file:line)` as far as known, for messages."""
        parts = [f"'{self.scope}'" if self.scope else "", f"({self.source})" if self.source else ""]
        return " ".join(part for part in parts if part) or f"op '{self.op.name}'"

    def __repr__(self) -> str:
        return f"Node({self.op!r} at {self.where()})"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A program: inputs, nodes in order, outputs by name."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Value] = field(default_factory=dict)
    _named: Mapping[str, Value] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        named = {value.name: value for value in reversed(self.inputs)}  # the first of a name counts
        object.__setattr__(self, "_named", named)

    def input(self, name: str) -> Value:
        """Return the input of a name; KeyError when there is none."""
        return self._named[name]

    def values(self) -> Iterator[Value]:
        """Yield every value, in order of definition."""
        yield from self.inputs
        for node in self.nodes:
            yield from node.outputs

    def producers(self) -> dict[Value, Node]:
        """Return the node that defines each value that is not an input."""
        return {value: node for node in self.nodes for value in node.outputs}

    def uses(self) -> dict[Value, list[tuple[Node, int]]]:
        """Return which operands each value is: nodes in order, with the operand's position."""
        uses: dict[Value, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for position, value in enumerate(node.inputs):
                uses.setdefault(value, []).append((node, position))
        return uses

    def last_uses(self) -> dict[Node, list[Value]]:
        """Return the values that nobody needs after a node; outputs live on."""
        seen = set(self.outputs.values())
        last: dict[Node, list[Value]] = {}
        for node in reversed(self.nodes):
            for value in dict.fromkeys((*node.inputs, *node.outputs)):
                if value not in seen:
                    seen.add(value)
                    last.setdefault(node, []).append(value)
        return last

    def __str__(self) -> str:
        from mithril.ir.printer import print_graph

        return print_graph(self)


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name, lengthened until it is not taken.

    >>> free_name("x", {"x", "x_"})
    'x__'
    """
    while name in taken:
        name = f"{name}_"
    return name
