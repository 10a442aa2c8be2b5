"""Calls: a plan on an engine, how arrays go in and come out, and which arrays it is for.

Models, functions and single ops are run alike. Each makes a graph and says how its arrays lie; from
there on `bind` plans it, a `Bound` runs it, and `Bindings` (`runtime.bindings`) find it again for
arrays of kinds that were passed before. Nothing here knows a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.engine import Engine, Executable, Observer
from mithril.engine.checks import check_executable, is_checking
from mithril.engine.reuse import find_overwritten
from mithril.ir import Graph
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Sharding
from mithril.ops.constrain import Constrain
from mithril.plan import Plan, Port
from mithril.runtime.array import Array, Kind
from mithril.runtime.checked_run import check_outputs, run_and_compare
from mithril.runtime.donation import check_donated, give_up
from mithril.runtime.observing import Occasion, Run, tell_compiled, watch
from mithril.runtime.same_plans import check_same_plan
from mithril.runtime.unplaced import find_unsettled, settle

Source = TypeVar("Source")
Pick = Callable[[Any], Sequence[Any]]


class Parts(NamedTuple):
    """What a run needs, looked up once: a small step would feel each attribute.

    Args:
        execute: runs the plan; from the second run on without a look at what comes out.
        order: brings the arguments into the order of the plan's inputs, None if they are in it.
        choose: picks the results of the plan's outputs, None if they are those in order.
        kinds: of the results.
        is_donated: whether an argument is given up.
        owner: the backend.
    """

    execute: Run
    order: Pick | None
    choose: Pick | None
    kinds: list[Kind]
    is_donated: bool
    owner: Any


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
        is_placed: whether somebody said how anything in the plan lies; its results are placed then.
    """

    caller: str
    owner: Any
    source: Source
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    donated: tuple[int, ...] = ()
    is_placed: bool = True

    @property
    def is_users(self) -> bool:
        """Whether it is of a model, a train step or a function, and not of one op."""
        return self.source is not None

    def donating(self, names: Collection[str]) -> Interface[Source]:
        """Return the same with the arguments of some names given up."""
        given_up = frozenset(names)
        donated = tuple(i for i, name in enumerate(self.arguments) if name in given_up)
        return replace(self, donated=donated)


@dataclass(frozen=True, eq=False)
class Bound(Generic[Source]):
    """A plan on an engine, and how arrays go in and come out.

    Args:
        engine: where it runs.
        plan: what runs.
        interface: what is passed and wanted.
        planning_seconds: what it took to make the plan.
    """

    engine: Engine
    plan: Plan
    interface: Interface[Source]
    planning_seconds: float = 0.0

    @cached_property
    def executable(self) -> Executable:
        """The lowered plan, told which of its inputs are given up; made when it is first run.

        Raises:
            BackendError: other processes of the job are about to run another plan.
        """
        plan = self._compared_plan
        started = perf_counter()
        made = self.engine.lower_plan(plan, self._given_up)
        check_executable(self.engine.name, "lower", made)
        if self.interface.is_users:
            lowering = perf_counter() - started
            tell_compiled(self._occasion, plan, self.planning_seconds, lowering)
        return made

    @cached_property
    def _compared_plan(self) -> Plan:
        """The plan, once the other processes of the job have shown that they have the same.

        Raises:
            BackendError: they are about to run another one.
        """
        owner = self.interface.owner
        if self.interface.is_users and self.engine.process_count > 1:
            # What is measured is what the user runs.
            family = owner.family
            profile, family.open_profile = family.open_profile, None
            try:
                check_same_plan(owner, self.interface.caller, self.plan)
            finally:
                family.open_profile = profile
        return self.plan

    @cached_property
    def _watched(self) -> Run:
        """The executable, whose runs observers are told of."""
        made = self.executable
        return watch(self._occasion, made) if self.interface.is_users else made

    @property
    def _occasion(self) -> Occasion:
        return Occasion(self.interface.caller, self.interface.owner.name, self.plan.mesh)

    @property
    def is_settled(self) -> bool:
        """Whether it has run, and what came out was looked at; never so with MITHRIL_CHECK=1."""
        parts = vars(self).get("parts")
        return parts is not None and parts.execute != self._run_first

    @cached_property
    def written(self) -> dict[Any, Any]:
        """What is written as Python to run it, by the form of the call; each is written once."""
        return {}

    @cached_property
    def measured(self) -> Executable:
        """The plan lowered once more, to be measured by profiles."""
        measuring = self.engine.measuring()
        if measuring is self.engine:
            return self.executable
        return measuring.lower_plan(self.plan, self._given_up)

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
    def settled(self) -> tuple[Sharding, ...]:
        """How each argument lies when it goes in; an unplaced one is brought there."""
        return tuple(self.ports[name].sharding for name in self.interface.arguments)

    def of(self, source: Source) -> Bound[Source]:
        """Return the same plan, bound for something else that was traced to the same graph."""
        return replace(self, interface=replace(self.interface, source=source))

    def settle(
        self, arrays: Sequence[Array], positions: Sequence[int] | None = None
    ) -> list[Array]:
        """Return arrays as the plan takes them; unplaced ones are brought there.

        Args:
            arrays: of the first arguments.
            positions: of those that may lie otherwise; by default any may.

        Raises:
            BackendError: an array was donated before, or is donated and needed otherwise.
        """
        others = find_unsettled(arrays, self.settled, positions)
        if not others:
            return list(arrays)
        if self.interface.donated:  # before a copy hides that one is passed twice
            held = [x.shards for x in arrays]
            check_donated(arrays, held, self.interface.arguments, self.interface.donated)
        return settle(arrays, self.settled, others)

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
            BackendError: an array was donated before, or is donated and needed otherwise; or other
                processes of the job are about to run another plan.

        An array that is given up is lost if the run fails and may have written into its memory.
        """
        made, choose = self.run_handles(arrays, observe), self.parts.choose
        return Array.of_kinds(self.parts.kinds, made if choose is None else choose(made))

    def run_handles(
        self, arrays: Sequence[Array], observe: Observer | None = None
    ) -> Sequence[Any]:
        """Return what the engine returns for all outputs of the plan; see `run`."""
        execute, order, _, _, is_donated, owner = self.parts
        given: Sequence[Any] = [x.shards for x in arrays]
        if is_donated:
            check_donated(arrays, given, self.interface.arguments, self.interface.donated)
        if order is not None:
            given = order(given)  # an engine may take over what nobody else holds
        try:
            profile = owner.family.open_profile
            made = execute(given, observe) if profile is None else profile.run(self, given, observe)
        except BaseException:
            # What may be half written over by now is of no use to anybody.
            give_up(arrays, self._overwritten, self._takers)
            raise
        if is_donated:
            give_up(arrays, self.interface.donated, self._takers)
        return made

    def run_for(self, arrays: Sequence[Array], place: int) -> Array:
        """Return one of the results; an op that runs by itself has next to nothing around it.

        Args:
            arrays: one for each argument.
            place: which of the results.
        """
        parts = self.parts
        is_plain = parts.order is None and parts.choose is None and not parts.is_donated
        if not is_plain or parts.owner.family.open_profile is not None:
            return self.run(arrays)[place]
        made = parts.execute([x.shards for x in arrays], None)
        return Array.of_kind(parts.kinds[place], made[place])

    @cached_property
    def _overwritten(self) -> Sequence[int]:
        """Positions of the arguments that the program may write over while it runs."""
        stage = self.plan.only_stage
        if stage is None or not self.interface.donated:
            return ()
        return [self.order[i] for i in find_overwritten(stage.program, self._given_up)]

    @cached_property
    def _given_up(self) -> list[int]:
        """Positions of the plan's inputs that are given up."""
        donated = self.interface.donated
        return [i for i, position in enumerate(self.order) if position in donated]

    @cached_property
    def _takers(self) -> list[str]:
        """As what each argument is taken if it is given up, for messages."""
        return [f"{self.interface.caller} as '{name}'" for name in self.interface.arguments]

    def _run_first(self, given: Sequence[Any], observe: Observer | None = None) -> list[Any]:
        """Run, and look at what comes out; the next run does without unless MITHRIL_CHECK=1."""
        if is_checking():
            return run_and_compare(
                self._watched, self.engine, self.plan, self._given_up, given, observe
            )
        made = self._watched(given, observe)
        check_outputs(self.engine, self.plan, made)
        vars(self)["parts"] = self.parts._replace(execute=self._watched)
        return made

    @cached_property
    def parts(self) -> Parts:
        """What `run` needs.

        Raises:
            BackendError: other processes of the job are about to run another plan.
        """
        plan = self._compared_plan  # before anything runs or is measured
        ports = [plan.outputs[i] for i in self.results]
        owner = self.interface.owner
        is_placed = self.interface.is_placed and owner.mesh.size > 1
        kinds = [Kind(owner, port.type, port.sharding, is_placed) for port in ports]
        order = _pick_unless_in_order(self.order, len(self.interface.arguments))
        choose = _pick_unless_in_order(self.results, len(plan.outputs))
        donates = bool(self.interface.donated)
        return Parts(self._run_first, order, choose, kinds, donates, owner)


def bind(
    engine: Engine,
    graph: Graph,
    request: Request,
    interface: Interface[Source],
    options: PlanOptions | None = None,
    plan_graph: Callable[..., Plan] = make_plan,
) -> Bound[Source]:
    """Return a graph planned for an engine, ready to be called.

    Args:
        engine: where it runs.
        graph: on whole tensors.
        request: how its values lie, and what runs where.
        interface: what is passed and wanted.
        options: of the passes.
        plan_graph: makes the plan; `lay_out` where nothing but shardings is read off it.

    Raises:
        MithrilError: as `make_plan` does.
    """
    target = Target.of(engine, interface.owner.hardware)
    started = perf_counter()
    plan = plan_graph(graph, request, target, options)
    return Bound(engine, plan, interface, perf_counter() - started)


def says_sharding(graph: Graph) -> bool:
    """Return whether a line of the user's code says how a value of a graph lies."""
    return any(isinstance(node.op, Constrain) for node in all_nodes(graph))


def pick(keys: Sequence[str] | Sequence[int]) -> Pick:
    """Return the function that picks the items under some keys, or at some places, in order."""
    if len(keys) > 1:
        return itemgetter(*keys)
    if not keys:
        return lambda items: ()
    (key,) = keys
    return lambda items: (items[key],)


def _pick_unless_in_order(places: Sequence[int], count: int) -> Pick | None:
    """Return the function that picks the items at some of so many places; None if all stay."""
    return None if places == tuple(range(count)) else pick(places)
