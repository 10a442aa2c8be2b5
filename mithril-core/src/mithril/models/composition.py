"""Composition: an immutable snapshot of a model, and every question about its names.

Each input and output port of a member has a connection name. A user gives it (`hidden`), or it is
the port's own (`linear_0.output`, told apart by its dot). A name that an output produces is a wire
to every input of that name; one that nothing produces is an input of the model; links lead one name
to another. Outside, ports the user did not name show by their port's name alone as long as only one
port could be meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from mithril.errors import GraphError, listing
from mithril.ir import Source
from mithril.mesh import PartitionSpec
from mithril.models.component import Component, Connected, Names
from mithril.models.layer import Layer
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
    """

    members: tuple[Member, ...] = ()
    links: tuple[Link, ...] = ()
    rules: tuple[ShardRule, ...] = ()
    given_name: str | None = None
    stage_rules: tuple[StageRule, ...] = ()
    pipeline: Pipelined | None = None

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
        """Connections that nobody consumes, in the order of their members."""
        consumed = {self.root(name) for name in self.consumers}
        return tuple(name for name in self.producers if name not in consumed)

    @cached_property
    def shown(self) -> Mapping[str, str]:
        """What each input and output of the model is called outside."""
        exposed = [*self.open_inputs, *self.open_outputs]
        shorts = Counter(_short(name) for name in exposed if "." in name)
        taken = set(self.names)
        return {
            name: name
            if "." not in name or shorts[_short(name)] > 1 or _short(name) in taken
            else _short(name)
            for name in exposed
        }

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

    def find_source(self, name: str) -> str | None:
        """Return the connection a user means by a name where a value is read, or None.

        Raises:
            GraphError: several unnamed ports could be meant.
        """
        if name in self.names:
            return name
        exposed = {shown: connection for connection, shown in self.shown.items()}
        hidden = [produced for produced in self.producers if _short(produced) == name]
        return self._port(name, outputs=True) or exposed.get(name) or _only(name, hidden)

    def find_destination(self, name: str) -> str | None:
        """Return the connection a user means by a name where a value is fed, or None.

        Raises:
            GraphError: several unnamed ports could be meant.
        """
        if name in self.names:
            return name
        exposed = {self.shown[connection]: connection for connection in self.open_inputs}
        hidden = [fed for fed in self.consumers if _short(fed) == name]
        return self._port(name, outputs=False) or exposed.get(name) or _only(name, hidden)

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

    def everything(self) -> Iterator[str]:
        """Yield every name a user may write, for messages."""
        yield from dict.fromkeys((*self.shown.values(), *sorted(self.names)))

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

    def _port(self, name: str, *, outputs: bool) -> str | None:
        """The connection of a port written as `linear_0.output`, whatever it was named."""
        owner, _, port = name.partition(".")
        for member in self.members:
            if member.name == owner:
                return dict(member.outputs if outputs else member.inputs).get(port)
        return None


def _short(name: str) -> str:
    """The port's part of an unnamed connection; nothing for one that a user named."""
    return name.partition(".")[2]


def _only(name: str, candidates: list[str]) -> str | None:
    if len(candidates) > 1:
        raise GraphError(
            f"'{name}' may mean {listing(candidates)}; write the full name, or name one of them "
            f"when you call its layer"
        )
    return candidates[0] if candidates else None


AnyComponent: TypeAlias = Component[Layer] | Component[Composition]
AnyConnected: TypeAlias = Connected[Layer] | Connected[Composition]
