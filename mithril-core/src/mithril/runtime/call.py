"""Calls: a plan on an engine, how arrays go in and come out, and which arrays it is for.

Models, functions and single ops are run alike. Each makes a graph and says how its arrays lie; from
there on `bind` plans it, a `Bound` runs it, and `Bindings` find it again for arrays of kinds that
were passed before. Nothing here knows a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.engine import Engine, Executable, Observer
from mithril.engine.reuse import find_overwritten
from mithril.ir import Graph
from mithril.plan import Plan, Port
from mithril.runtime.array import Array, Kind
from mithril.runtime.donation import check_donated, give_up
from mithril.runtime.lru import LRUCache

Form = TypeVar("Form", bound=Hashable)
Source = TypeVar("Source")
Pick = Callable[[Any], Sequence[Any]]
_Parts = tuple[Executable, Pick, Pick | None, list[Kind], bool]
_kind, _shards = attrgetter("kind"), attrgetter("shards")


@dataclass(frozen=True, slots=True, eq=False)
class Interface(Generic[Source]):
    """What a caller passes and wants.

    Args:
        caller: who calls, for messages.
        owner: the backend whose arrays the results are.
        source: what the graph was made from.
        arguments: names of the inputs of the plan, in the order in which arrays are passed.
        results: names of the outputs that are wanted, in order.
        donated: positions of the arguments that are given up.
    """

    caller: str
    owner: Any
    source: Source
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    donated: tuple[int, ...] = ()

    def donating(self, names: Collection[str]) -> Interface[Source]:
        """Return the same with the arguments of some names given up."""
        donated = tuple(i for i, name in enumerate(self.arguments) if name in names)
        return replace(self, donated=donated)


@dataclass(frozen=True, eq=False)
class Bound(Generic[Source]):
    """A plan on an engine, and how arrays go in and come out.

    Args:
        engine: where it runs.
        plan: what runs.
        interface: what is passed and wanted.
    """

    engine: Engine
    plan: Plan
    interface: Interface[Source]

    @cached_property
    def executable(self) -> Executable:
        """The lowered plan, told which of its inputs are given up; made when it is first run."""
        donated = self.interface.donated
        given_up = [i for i, position in enumerate(self.order) if position in donated]
        return self.engine.lower_plan(self.plan, given_up)

    @cached_property
    def ports(self) -> Mapping[str, Port]:
        """What the plan takes, by the name of the argument."""
        return {port.name: port for port in self.plan.inputs}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """For each input of the plan, the position of its array among the arguments."""
        position = {name: i for i, name in enumerate(self.interface.arguments)}
        return tuple(position[port.name] for port in self.plan.inputs)

    @cached_property
    def results(self) -> tuple[int, ...]:
        """For each result, the position of its output among those of the plan."""
        position = {port.name: i for i, port in enumerate(self.plan.outputs)}
        return tuple(position[name] for name in self.interface.results)

    def run(self, arrays: Sequence[Array], observe: Observer | None = None) -> list[Array]:
        """Return the results for arrays of the kinds that were planned for.

        Args:
            arrays: one for each argument.
            observe: told of every collective that is carried out.

        Raises:
            BackendError: an array was donated before, or is donated and needed otherwise.

        An array that is given up is lost if the run fails and may have written into its memory.
        """
        execute, order, choose, kinds, is_donated = self._parts
        if is_donated:
            check_donated(arrays, self.interface.arguments, self.interface.donated)
        try:
            made = execute(order(list(map(_shards, arrays))), observe)
        except BaseException:
            # What may be half written over by now is of no use to anybody.
            self._give_up(arrays, self._overwritten)
            raise
        if is_donated:
            self._give_up(arrays, self.interface.donated)
        return Array.of_kinds(kinds, made if choose is None else choose(made))

    @cached_property
    def _overwritten(self) -> Sequence[int]:
        """Positions of the arguments that the program may write over while it runs."""
        stage, donated = self.plan.only_stage, self.interface.donated
        if stage is None or not donated:
            return ()
        given_up = [i for i, position in enumerate(self.order) if position in donated]
        return [self.order[i] for i in find_overwritten(stage.program, given_up)]

    def _give_up(self, arrays: Sequence[Array], positions: Sequence[int]) -> None:
        caller, names = self.interface.caller, self.interface.arguments
        for position in positions:
            give_up(arrays[position], f"{caller} as '{names[position]}'")

    @cached_property
    def _parts(self) -> _Parts:
        """What `run` needs, looked up once: a small step would feel each attribute."""
        ports = [self.plan.outputs[i] for i in self.results]
        kinds = [Kind(self.interface.owner, port.type, port.sharding) for port in ports]
        in_order = self.results == tuple(range(len(self.plan.outputs)))
        choose = None if in_order else pick(self.results)
        return self.executable, pick(self.order), choose, kinds, bool(self.interface.donated)


def bind(
    engine: Engine,
    graph: Graph,
    request: Request,
    interface: Interface[Source],
    options: PlanOptions | None = None,
) -> Bound[Source]:
    """Return a graph planned for an engine, ready to be called.

    Args:
        engine: where it runs.
        graph: on whole tensors.
        request: how its values lie, and what runs where.
        interface: what is passed and wanted.
        options: of the passes.

    Raises:
        MithrilError: as `make_plan` does.
    """
    return Bound(engine, make_plan(graph, request, Target.of(engine), options), interface)


Known = tuple[Form, list[Kind], Bound[Source]]


class Bindings(Generic[Form, Source]):
    """Bound plans, by the form of a call and the kinds of the arrays in it.

    A loop calls with arrays of the same kinds again and again: the last call is recognised without
    a look into the table.

    Args:
        capacity: how many are kept; the one unused for longest goes first.
    """

    def __init__(self, capacity: int) -> None:
        self.made = 0
        self._known: LRUCache[tuple[Form, tuple[Kind, ...]], Known[Form, Source]]
        self._known = LRUCache(capacity)
        self._last: Known[Form, Source] | None = None

    def of_last(self, form: Form, given: Sequence[Any]) -> Bound[Source] | None:
        """Return what the last call ran, if this one is alike; what is no array never is.

        Args:
            form: of the call.
            given: arrays, or what users passed for them.
        """
        if self._last is None or self._last[0] != form:
            return None
        try:
            kinds = list(map(_kind, given))
        except AttributeError:
            return None
        if kinds != self._last[1]:
            return None
        bound = self._last[2]
        self._last = (form, kinds, bound)  # the very objects are recognised without a comparison
        return bound

    def find(self, form: Form, kinds: Sequence[Kind]) -> Bound[Source] | None:
        """Return what is bound for such a call, None if nothing is (any more)."""
        known = self._known.get((form, tuple(kinds)))
        if known is None:
            return None
        self._last = known
        return known[2]

    def keep(
        self, form: Form, kinds: Sequence[Kind], bound: Bound[Source], *, is_planned: bool = True
    ) -> None:
        """Keep what was bound for such a call, and for arrays that lie as its plan wants them.

        Args:
            form: of the call.
            kinds: of its arrays.
            bound: what runs.
            is_planned: whether a plan was made for it; it may be that of another form.
        """
        self.made += is_planned
        settled = _settle(kinds, bound)
        self._last = (form, settled, bound)
        self._known.put((form, tuple(kinds)), self._last)
        if settled != list(kinds) and self._known.get((form, tuple(settled))) is None:
            self._known.put((form, tuple(settled)), self._last)

    def __len__(self) -> int:
        return len(self._known)


def _settle(kinds: Sequence[Kind], bound: Bound[Any]) -> list[Kind]:
    """Return kinds with everything open replaced by what the plan decided."""
    ports = (bound.ports[name] for name in bound.interface.arguments)
    return [
        Kind(kind.backend, port.type, port.sharding) if kind.is_open else kind
        for kind, port in zip(kinds, ports, strict=False)
    ]


def pick(keys: Sequence[str] | Sequence[int]) -> Pick:
    """Return the function that picks the items under some keys, or at some places, in order."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda items: [items[key] for key in keys]
