"""Processes of a job run one plan together: who was given something else is told before it runs.

Each process traces and plans by itself what it is called with. Plans that differ would exchange
data all the same, and go on with wrong numbers, or wait for each other for ever. So processes
compare a user's plan before it runs for the first time. One in which devices exchange nothing may
be of one process alone, such as an evaluation where `is_main()`, and is compared with none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from mithril.errors import BackendError
from mithril.ir.rewrite import all_nodes
from mithril.plan import Plan, Port
from mithril.plan.fingerprint import describe_port, fingerprint_ports, fingerprint_work
from mithril.runtime.array import ArrayBackend
from mithril.runtime.processes import exchange

SHOWN = 8
"""How many arguments, and numbers of processes, a message lists."""


def check_same_plan(backend: ArrayBackend, caller: str, plan: Plan) -> None:
    """Raise in every process unless all of them are about to run a plan like this one.

    Args:
        backend: which it is to run on.
        caller: what the user calls, for the message.
        plan: of this process.

    Raises:
        BackendError: another process has another plan.
    """
    engine = backend.engine
    if engine.process_count == 1 or not _meets_all(plan):
        return
    passed, kept = _split_inputs(plan)
    own = fingerprint(plan)
    found = _ask_others(backend, caller, passed, own)
    differing = [any(row[i] != own[i] for row in found.values()) for i in range(len(own))]
    if not any(differing):
        return
    same = _list_processes([index for index, row in found.items() if row == own])
    others = _list_processes([index for index, row in found.items() if row != own])
    if not any(differing[:2]):
        raise BackendError(
            f"{caller} computes in {same} something else than in {others}, from "
            f"{_list_ports(passed)} in all of them; give every process of a job the same model, "
            f"functions and options"
        )
    raise BackendError(
        f"{caller} is called with {_list_ports(passed if differing[0] else kept)} in {same}, and "
        f"with others in {others}; give every process of a job the same shapes, dtypes and "
        f"shardings"
    )


def _ask_others(
    backend: ArrayBackend, caller: str, passed: Sequence[Port], own: Sequence[int]
) -> dict[int, list[int]]:
    """Return the fingerprints of all processes.

    Raises:
        BackendError: another process is somewhere else, such as in a plan that it had before.
    """
    index, count = backend.engine.process_index, backend.engine.process_count
    why, cause = "they exchange something else", None
    try:
        rows = exchange(backend, [index, *own]).tolist()
        found = {process: numbers for process, *numbers in sorted(rows)}
        if [*found] == [*range(count)]:
            return found
    except BackendError as error:
        why, cause = str(error), error
    raise BackendError(
        f"{caller} is called with {_list_ports(passed)} for the first time in process {index}, and "
        f"other processes do not come to compare that: {why}; give every process of a job the same "
        f"shapes, dtypes and shardings in each call"
    ) from cause


def fingerprint(plan: Plan) -> list[int]:
    """Return what processes compare: numbers for what is passed, what is kept, and what is done."""
    passed, kept = _split_inputs(plan)
    return [fingerprint_ports(passed), fingerprint_ports(kept), fingerprint_work(plan)]


def _split_inputs(plan: Plan) -> tuple[list[Port], list[Port]]:
    """Return what a plan takes besides parameters and the state of an optimiser, and these."""
    known = {*plan.parameters, *plan.optimizer}
    passed = [port for port in plan.inputs if port.name not in known]
    return passed, [port for port in plan.inputs if port.name in known]


def _meets_all(plan: Plan) -> bool:
    """Return whether all devices take part in a plan, and exchange data."""
    devices = {device for stage in plan.stages for device in stage.devices}
    if len(devices) < plan.mesh.size:
        return False
    nodes = chain.from_iterable(all_nodes(stage.program.graph) for stage in plan.stages)
    return bool(plan.timetable.transfers) or any(node.op.is_collective for node in nodes)


def _list_ports(ports: Sequence[Port]) -> str:
    shown = ", ".join(map(describe_port, ports[:SHOWN])) or "nothing"
    return f"{shown} and {len(ports) - SHOWN} more" if len(ports) > SHOWN else shown


def _list_processes(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN]))
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"process{'es' if len(numbers) > 1 else ''} {shown}{more}"


__all__ = ["check_same_plan", "fingerprint"]
