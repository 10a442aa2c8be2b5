"""Wiring: the members and links of a model that grows, with an index of every connection.

Adding a member costs as much as the member has ports, however large the model is already;
`snapshot` is the whole as a `Composition`, made when it is asked for. Nothing here judges what is
added, that is `joining`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from mithril.errors import GraphError, listing
from mithril.models.composition import Composition, Link, Member, short_name


class Wiring:
    """A model's members and links as they are now.

    Args:
        composition: what it starts from.
    """

    def __init__(self, composition: Composition) -> None:
        self._said = replace(composition, members=(), links=())
        self._snapshot: Composition | None = composition
        self._counted: dict[tuple[str, int], int] = {}
        self.members: dict[str, Member] = {}
        self.links: dict[str, Link] = {}
        self.producers: dict[str, Member] = {}
        self.consumers: dict[str, Member] = {}
        self._readers: dict[str, list[Member]] = defaultdict(list)
        self._fed_by: dict[str, dict[str, None]] = defaultdict(dict)
        self._short_producers: dict[str, list[str]] = defaultdict(list)
        self._short_consumers: dict[str, list[str]] = defaultdict(list)
        self._open_inputs: dict[str, None] = {}
        self._short_open_inputs: dict[str, dict[str, None]] = defaultdict(dict)
        self._short_open_outputs: dict[str, dict[str, None]] = defaultdict(dict)
        self._titles = dict(composition.titles)
        self._titled = {title: name for name, title in composition.titles}
        for member in composition.members:  # before links, so that inputs are open in their order
            self._index_member(member)
        for link in composition.links:
            self._index_link(link)

    @property
    def snapshot(self) -> Composition:
        """The model as it is now."""
        if self._snapshot is None:
            self._snapshot = replace(
                self._said,
                members=tuple(self.members.values()),
                links=tuple(self.links.values()),
            )
        return self._snapshot

    def say(self, **said: Any) -> None:
        """Change what is said of the model besides its members and links, by field."""
        self._said = replace(self._said, **said)
        self._titles = dict(self._said.titles)
        self._titled = {title: name for name, title in self._said.titles}
        self._snapshot = None

    def add(self, member: Member, links: Iterable[Link]) -> None:
        """Add a member, and links to it and from it."""
        for link in links:
            self._index_link(link)
        self._index_member(member)
        self._snapshot = None

    def link(self, link: Link) -> None:
        """Add a link, in the place of what fed its destination."""
        old = self.links.pop(link.destination, None)
        if old is not None:
            del self._fed_by[old.source][old.destination]
            before = self.root(old.source)
            if not self.is_read(before):
                self._open(before)
        self._index_link(link)
        self._snapshot = None

    # ------------------------------------------------------------------ names

    def free_name(self, stem: str, first: int = 0) -> str:
        """Return the first of `stem_0`, `stem_1`, … that no member has."""
        index = self._counted.get((stem, first), first)  # what is taken stays so
        while f"{stem}_{index}" in self.members:
            index += 1
        self._counted[stem, first] = index
        return f"{stem}_{index}"

    def root(self, name: str) -> str:
        """Return the connection a name takes its value from, following links."""
        while name in self.links:
            name = self.links[name].source
        return name

    def has(self, name: str) -> bool:
        """Return whether a connection has a name."""
        return name in self.producers or name in self.consumers

    def open_input(self, name: str) -> str | None:
        """Return the connection of the model's input of a name, or None."""
        if name in self._titled or self.has(name):
            named = self._titled.get(name, name)
            return named if named in self._open_inputs else None
        short = self._short_open_inputs.get(name, ())
        return next((found for found in short if found not in self._titles), None)

    def find_source(self, name: str) -> str | None:
        """Return the connection a user means by a name where a value is read, or None.

        Raises:
            GraphError: several unnamed ports could be meant.
        """
        if self.has(name):
            return name
        found = self._titled.get(name) or self._port(name, outputs=True) or self.open_input(name)
        if found is not None:
            return found
        untitled = [
            output
            for output in self._short_open_outputs.get(name, ())
            if output not in self._titles
        ]
        if len(untitled) == 1:
            return untitled[0]
        return _only(name, self._short_producers.get(name, []))

    def find_destination(self, name: str) -> str | None:
        """Return the connection a user means by a name where a value is fed, or None.

        Raises:
            GraphError: several unnamed ports could be meant.
        """
        if self.has(name):
            return name
        found = self._port(name, outputs=False) or self.open_input(name)
        return found or _only(name, self._short_consumers.get(name, []))

    def is_read(self, name: str) -> bool:
        """Return whether some member reads a connection."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self.consumers:
                return True
            waiting += self._fed_by.get(name, ())
        return False

    def find_titled(self, title: str) -> str | None:
        """Return the connection that `model.output` shows by a name, or None."""
        return self._titled.get(title)

    def everything(self) -> Iterator[str]:
        """Yield every name a user may write, for messages."""
        state = self.snapshot
        yield from dict.fromkeys((*state.shown.values(), *sorted(state.names)))

    # ------------------------------------------------------------------ cycles

    def reads_from(self, sources: Iterable[str], fed: Collection[str]) -> bool:
        """Return whether connections, or what they are made of, read one that is to be fed.

        Args:
            sources: connections that somebody is about to read.
            fed: connections that nothing feeds yet.
        """
        seen: set[str] = set()
        waiting = [self.root(name) for name in sources]
        while waiting:
            name = waiting.pop()
            if name in fed:
                return True
            member = self.producers.get(name)
            if member is not None and member.name not in seen:
                seen.add(member.name)
                waiting += [self.root(connection) for _, connection in member.inputs]
        return False

    def leads_to(self, start: str, end: str) -> bool:
        """Return whether a connection, or what is made of it, feeds another."""
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name == end:
                return True
            if name in seen:
                continue
            seen.add(name)
            waiting += self._fed_by.get(name, ())
            for member in self._readers.get(name, ()):
                waiting += [connection for _, connection in member.outputs]
        return False

    # ------------------------------------------------------------------ the index

    def _index_link(self, link: Link) -> None:
        self.links[link.destination] = link
        self._fed_by[link.source][link.destination] = None
        self._close_input(link.destination)
        if self.is_read(link.destination):
            self._read(link.source)

    def _index_member(self, member: Member) -> None:
        self.members[member.name] = member
        for _, name in member.inputs:
            self._readers[name].append(member)
            if name not in self.consumers:
                self.consumers[name] = member
                self._short_consumers[short_name(name)].append(name)
            self._read(name)
        for _, name in member.outputs:
            self.producers[name] = member
            self._short_producers[short_name(name)].append(name)
            self._close_input(name)
            if not self.is_read(name):
                self._open(name)

    def _read(self, name: str) -> None:
        """Note that somebody reads a connection."""
        root = self.root(name)
        if root in self.producers:
            self._short_open_outputs[short_name(root)].pop(root, None)
        else:
            self._open(root)

    def _open(self, name: str) -> None:
        if name in self.producers:
            self._short_open_outputs[short_name(name)][name] = None
        else:
            self._open_inputs[name] = None
            self._short_open_inputs[short_name(name)][name] = None

    def _close_input(self, name: str) -> None:
        self._open_inputs.pop(name, None)
        self._short_open_inputs[short_name(name)].pop(name, None)

    def _port(self, name: str, *, outputs: bool) -> str | None:
        """The connection of a port written as `linear_0.output`, whatever it was named."""
        owner, _, port = name.partition(".")
        member = self.members.get(owner)
        if member is None:
            return None
        return dict(member.outputs if outputs else member.inputs).get(port)


def _only(name: str, candidates: list[str]) -> str | None:
    if len(candidates) > 1:
        raise GraphError(
            f"'{name}' may mean {listing(candidates)}; write the full name, or name one of them "
            f"when you call its layer"
        )
    return candidates[0] if candidates else None
