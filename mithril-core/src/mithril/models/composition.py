"""Composition: an immutable snapshot of a model, and every question about its names.

Each input and output port of a member has a connection name. A user gives it (`hidden`), or it is
the port's own (`linear_0.output`, told apart by its dot). A name that an output produces is a wire
to every input of that name; one that nothing produces is an input of the model; links lead one name
to another. Outside, ports the user did not name show by their port's name alone where that is
enough: an input if it is the first of its name, whatever is added after it, an output if it is the
only one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from mithril.errors import GraphError
from mithril.ir import Source
from mithril.mesh import PartitionSpec
from mithril.models.component import Component, Connected, Names
from mithril.models.layer import Layer
from mithril.models.parameter_rule import ParameterRule
from mithril.models.stages import Pipelined, StageRule


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A layer or model in its place.

    Args:
        name: its name in this model.
        component: what it is.
        inputs: pairs of input port and connection name.
        outputs: pairs of output port and connection name.
        source: the user's line.
    """

    name: str
    component: Layer | Composition
    inputs: Names
    outputs: Names
    source: Source | None


@dataclass(frozen=True, slots=True)
class Link:
    """Destination takes its value from source; automatic ones were made by `+=`."""

    destination: str
    source: str
    automatic: bool
    place: Source | None


@dataclass(frozen=True, slots=True)
class ShardRule:
    """`model.shard({pattern: spec})` or `model.at_rest(…)`, as said at a place."""

    pattern: str
    spec: PartitionSpec
    place: Source | None
    at_rest: bool = False

    @property
    def call(self) -> str:
        """The method that was called, for messages."""
        return "model.at_rest" if self.at_rest else "model.shard"


@dataclass(frozen=True, eq=False)
class Composition:
    """A model at one moment; see the module's text.

    Args:
        members: layers and models in the order they were added.
        links: connections made by `connect` and by `+=`.
        rules: shardings by name pattern, in the order they were given.
        given_name: the name the user gave the model.
        stage_rules: which layers are which stage, by name pattern.
        pipeline: how the members lie on a mesh, if they are the stages of a pipeline.
        parameter_rules: what is trained and how it starts, by name pattern.
        ties: pairs of a parameter and the one that it is.
        also_outputs: connections that are outputs although somebody reads them.
        only_outputs: the connections that are outputs, if not all that nobody reads are.
        titles: pairs of a connection and what it is called outside, where that was said.
    """

    members: tuple[Member, ...] = ()
    links: tuple[Link, ...] = ()
    rules: tuple[ShardRule, ...] = ()
    given_name: str | None = None
    stage_rules: tuple[StageRule, ...] = ()
    pipeline: Pipelined | None = None
    parameter_rules: tuple[ParameterRule, ...] = ()
    ties: Names = ()
    also_outputs: tuple[str, ...] = ()
    only_outputs: tuple[str, ...] | None = None
    titles: Names = ()

    variadic_input = None
    optional_ports = ()

    @property
    def kind(self) -> str:
        """What the model is counted as in names."""
        return "model" if self.pipeline is None else "pipeline"

    @property
    def label(self) -> str:
        """What messages call the model."""
        return f"{self.kind} '{self.given_name}'" if self.given_name else self.kind

    @cached_property
    def producers(self) -> Mapping[str, Member]:
        """The member that produces each connection."""
        return {name: member for member in self.members for _, name in member.outputs}

    @cached_property
    def link_to(self) -> Mapping[str, Link]:
        """The link to each linked connection."""
        return {link.destination: link for link in self.links}

    @cached_property
    def consumers(self) -> Mapping[str, Member]:
        """The first member that names each input connection."""
        found: dict[str, Member] = {}
        for member in self.members:
            for _, name in member.inputs:
                found.setdefault(name, member)
        return found

    def root(self, name: str) -> str:
        """Return the connection a name takes its value from, following links."""
        while name in self.link_to:
            name = self.link_to[name].source
        return name

    @cached_property
    def open_inputs(self) -> tuple[str, ...]:
        """Connections that nothing produces, in the order they are met."""
        roots = dict.fromkeys(self.root(name) for name in self.consumers)
        return tuple(name for name in roots if name not in self.producers)

    @cached_property
    def open_outputs(self) -> tuple[str, ...]:
        """Connections that nobody consumes or that shall be outputs, in the order of members."""
        if self.only_outputs is not None:
            return self.only_outputs
        consumed = {self.root(name) for name in self.consumers} - set(self.also_outputs)
        return tuple(name for name in self.producers if name not in consumed)

    @cached_property
    def shown(self) -> Mapping[str, str]:
        """What each input and output of the model is called outside."""
        said, inputs = dict(self.titles), set(self.open_inputs)
        taken = {*self.names, *said.values()}
        first: dict[str, str] = {}
        for name in self.consumers:  # in the order of members, which more of them do not change
            if name in inputs and name not in said:
                first.setdefault(short_name(name), name)
        exposed = dict.fromkeys((*self.open_inputs, *self.open_outputs))
        times = Counter(short_name(name) for name in exposed if name not in said)

        def title(name: str) -> str:
            short = short_name(name)
            if not short or short in taken:
                return name
            alone = first[short] == name if name in inputs else times[short] == 1
            return short if alone else name

        return {name: said.get(name) or title(name) for name in exposed}

    @cached_property
    def depth(self) -> int:
        """How many models and layers are nested in each other here, this one included."""
        return 1 + max((member.component.depth for member in self.members), default=0)

    @cached_property
    def names(self) -> frozenset[str]:
        """All connection names."""
        return frozenset((*self.producers, *self.consumers))

    @cached_property
    def input_ports(self) -> tuple[str, ...]:
        """Names of the model's inputs."""
        return tuple(self.shown[name] for name in self.open_inputs)

    @cached_property
    def output_ports(self) -> tuple[str, ...]:
        """Names of the model's outputs."""
        return tuple(self.shown[name] for name in self.open_outputs)

    @cached_property
    def main_outputs(self) -> tuple[str, ...]:
        """Names of the outputs that the user has named, or that are the first of their layer.

        The others are what a layer tells besides, such as how evenly experts are used.
        """
        first = {member.outputs[0][1] for member in self.members if member.outputs}
        found = (name for name in self.open_outputs if "." not in name or name in first)
        return tuple(self.shown[name] for name in found)

    @cached_property
    def order(self) -> tuple[Member, ...]:
        """The members in an order in which each comes after those it reads from.

        Raises:
            GraphError: connections form a cycle.
        """
        done: dict[str, Member] = {}
        path: dict[str, None] = {}
        for member in self.members:
            self._visit(member, done, path)
        return tuple(done.values())

    def _visit(self, member: Member, done: dict[str, Member], path: dict[str, None]) -> None:
        # An explicit stack: a model may be deeper than Python's recursion limit.
        stack = [(member, self._sources(member))]
        while stack:
            current, sources = stack[-1]
            path[current.name] = None
            following = next((m for m in sources if m.name not in done), None)
            if following is None:
                done.setdefault(current.name, current)
                del path[current.name]
                stack.pop()
            elif following.name in path:
                around = [*list(path)[list(path).index(following.name) :], following.name]
                raise GraphError(
                    f"connections form a cycle; {' <- '.join(around)}; remove one of them, a model "
                    f"cannot feed itself"
                )
            else:
                stack.append((following, self._sources(following)))

    def _sources(self, member: Member) -> Iterator[Member]:
        roots = (self.root(name) for _, name in member.inputs)
        return iter([self.producers[root] for root in roots if root in self.producers])


def short_name(connection: str) -> str:
    """Return the port's part of an unnamed connection; nothing for one that a user named."""
    return connection.partition(".")[2]


AnyComponent: TypeAlias = Component[Layer] | Component[Composition]
AnyConnected: TypeAlias = Connected[Layer] | Connected[Composition]
