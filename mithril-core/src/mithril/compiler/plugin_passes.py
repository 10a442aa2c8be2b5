"""Passes of plugins: run where the pipeline has a place for them, and what they return is checked.

A pass that raises, or breaks the graph, is refused in its own name; a plan says which ones ran over
it, and what they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mithril.cost import Target
from mithril.errors import MithrilError, OptionError, PlanError, kind_of
from mithril.ir import Graph
from mithril.ir.rewrite import all_nodes
from mithril.ir.verify import verify
from mithril.plan import Plan, Program
from mithril.plugins.extensions import Extension, Kind, find_extension
from mithril.transform import eliminate_dead

Changed = TypeVar("Changed", Graph, Program)


def read_passes(given: object) -> tuple[Extension, ...]:
    """Return the passes that `passes=` names.

    Raises:
        BackendError: a plugin does not exist, or cannot be used.
        OptionError: it is no list of names, or a plugin has no such pass.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise OptionError(
            f"passes={given!r} is no list of passes; give names, such as passes=['acme.fold']"
        )
    for name in given:
        if not isinstance(name, str) or name.count(".") != 1:
            raise OptionError(
                f"passes= names {name!r}; give the name of a pass of a plugin, such as "
                f"'acme.fold'; `mithril plugins list` shows them"
            )
    return tuple(find_extension(name, Kind.graph_pass, Kind.program_pass) for name in given)


def change_graph(
    graph: Graph, target: Target, passes: Sequence[Extension]
) -> tuple[Graph, tuple[str, ...]]:
    """Return a graph on whole tensors after those passes that are for graphs, and notes on them.

    Args:
        graph: forward only.
        target: where it will run.
        passes: all that were asked for.

    Raises:
        PlanError: a pass raises, or returns something else than a graph with the same ports.
    """
    notes = []
    for one in _of_kind(passes, Kind.graph_pass):
        changed = _run(one, graph, target, Graph)
        _check(one, graph, changed)
        changed = eliminate_dead(changed)
        notes.append(_note(one, [(graph, changed)]))
        graph = changed
    return graph, tuple(notes)


def change_programs(plan: Plan, target: Target, passes: Sequence[Extension]) -> Plan:
    """Return a plan whose programs went through those passes that are for programs, with notes.

    Args:
        plan: a local program for each stage.
        target: where it will run.
        passes: all that were asked for.

    Raises:
        PlanError: a pass raises, or returns something else than a program with the same ports.
    """
    for one in _of_kind(passes, Kind.program_pass):
        changes, stages = [], []
        for stage in plan.stages:
            before = stage.program
            program = _run(one, before, target.within(before.mesh), Program)
            _check(one, before.graph, program.graph)
            if (program.inputs, program.outputs) != (before.inputs, before.outputs):
                raise _refuse(one, "changed how inputs or outputs lie; leave the ports as they are")
            changes.append((before.graph, program.graph))
            stages.append(replace(stage, program=program))
        plan = replace(plan, stages=tuple(stages), notes=(*plan.notes, _note(one, changes)))
    return plan


def _of_kind(passes: Sequence[Extension], kind: Kind) -> list[Extension]:
    return [one for one in passes if one.kind is kind]


def _run(one: Extension, given: Changed, target: Target, kind: type[Changed]) -> Changed:
    function: Callable[[Changed, Target], Any] = one.load()
    try:
        found = function(given, target)
    except MithrilError:
        raise
    except Exception as error:
        raise _refuse(one, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise _refuse(one, f"returned {kind_of(found)}; return a {kind.__name__}")
    return found


def _check(one: Extension, before: Graph, after: Graph) -> None:
    """Raise unless a graph is well formed and takes and gives what it did before."""
    try:
        verify(after)
    except MithrilError as error:
        raise _refuse(one, f"returned a graph that is not well formed: {error}") from error
    if _ports(before) != _ports(after):
        raise _refuse(
            one,
            "changed the inputs or outputs of the graph; leave their names and types as they are",
        )
    if any(node.op.is_collective and node.cause is None for node in all_nodes(after)):
        raise _refuse(one, "added a collective without a cause; give the node one")


def _ports(graph: Graph) -> tuple[object, ...]:
    inputs = [(value.name, value.type) for value in graph.inputs]
    return inputs, [(name, value.type) for name, value in graph.outputs.items()]


def _refuse(one: Extension, what: str) -> PlanError:
    return PlanError(
        f"pass '{one.name}' of {one.package} {what}; leave it out of passes= until it is mended"
    )


def _note(one: Extension, changes: Sequence[tuple[Graph, Graph]]) -> str:
    before, after = (
        [[str(node.op) for node in all_nodes(pair[side])] for pair in changes] for side in (0, 1)
    )
    if before == after:
        return f"pass '{one.name}' of {one.package} ran; it changed nothing"
    counts = (sum(map(len, before)), sum(map(len, after)))
    return f"pass '{one.name}' of {one.package} ran; nodes: {counts[0]} before, {counts[1]} after"
