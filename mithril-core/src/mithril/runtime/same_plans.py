"""Processes of a job run one plan together: who was given something else is told before it runs.

Each process traces and plans by itself what it is called with. Plans that differ would exchange
data all the same, and go on with wrong numbers, or wait for each other for ever. So those that take
part in a user's plan compare it before it runs for the first time: through the store of the job, so
that nobody waits for long for one that is in another plan; by a collective of all processes where
an engine has no store. One in which devices exchange nothing may be of one process alone, such as
an evaluation where `is_main()`, and is compared with none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from mithril.engine import Engine
from mithril.errors import BackendError
from mithril.ir.rewrite import all_nodes
from mithril.plan import Plan, Port, Stage
from mithril.plan.fingerprint import describe_port, fingerprint_ports, fingerprint_work
from mithril.runtime.array import ArrayBackend
from mithril.runtime.gathering import gather, list_processes
from mithril.runtime.processes import exchange

SHOWN = 8
"""How many arguments a message lists."""


def check_same_plan(backend: ArrayBackend, caller: str, plan: Plan) -> None:
    """Raise in every process that takes part unless all of them are about to run a plan like this.

    Args:
        backend: which it is to run on.
        caller: what the user calls, for the message.
        plan: of this process.

    Raises:
        BackendError: another process has another plan, or does not come to compare.
    """
    engine = backend.engine
    if engine.process_count == 1:
        return
    members = _list_members(engine, plan)
    if engine.process_index not in members or len(members) == 1:
        return
    passed, kept = _split_inputs(plan)
    own = fingerprint(plan)
    found = _ask_others(backend, members, caller, passed, own)
    differing = [any(row[i] != own[i] for row in found.values()) for i in range(len(own))]
    if not any(differing):
        return
    same = list_processes([index for index, row in found.items() if row == own])
    others = list_processes([index for index, row in found.items() if row != own])
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
    backend: ArrayBackend,
    members: Sequence[int],
    caller: str,
    passed: Sequence[Port],
    own: Sequence[int],
) -> dict[int, list[int]]:
    """Return the fingerprints of all processes that take part.

    Raises:
        BackendError: another process is somewhere else, such as in a plan that it had before.
    """
    index, cause = backend.engine.process_index, None
    waits = backend.engine.job_store is not None
    why = "they exchange something else"
    try:
        found = _exchange_in_store(backend, members, own)
        if found is None:
            rows = exchange(backend, [index, *own]).tolist()
            found = {process: numbers for process, *numbers in sorted(rows)}
        if [*found] == [*members]:
            return found
    except BackendError as error:
        why, cause = str(error), error
    raise BackendError(
        f"{caller} is called with {_list_ports(passed)} for the first time in process {index}, and "
        f"other processes do not come to compare that: {why}; give every process of a job the same "
        f"shapes, dtypes and shardings in each call"
        f"{', or raise timeout if one takes longer' if waits else ''}"
    ) from cause


def _exchange_in_store(
    backend: ArrayBackend, members: Sequence[int], own: Sequence[int]
) -> dict[int, list[int]] | None:
    """Return the fingerprints of all that take part; None where the job has no store.

    Raises:
        BackendError: one did not come within the store's timeout.
    """
    engine = backend.engine
    if engine.job_store is None:
        return None
    text = json.dumps([*own])
    told = gather(engine.job_store, backend.name, engine.process_index, members, text)
    return {process: json.loads(said) for process, said in told.items()}


def fingerprint(plan: Plan) -> list[int]:
    """Return what processes compare: numbers for what is passed, what is kept, and what is done."""
    passed, kept = _split_inputs(plan)
    return [fingerprint_ports(passed), fingerprint_ports(kept), fingerprint_work(plan)]


def _split_inputs(plan: Plan) -> tuple[list[Port], list[Port]]:
    """Return what a plan takes besides parameters and the state of an optimiser, and these."""
    known = {*plan.parameters, *plan.optimizer}
    passed = [port for port in plan.inputs if port.name not in known]
    return passed, [port for port in plan.inputs if port.name in known]


def _list_members(engine: Engine, plan: Plan) -> list[int]:
    """Return the numbers of the processes whose devices exchange data in a plan.

    Without a store they cannot be asked but all together: none then, where it is a part of them.
    """
    devices = {device for transfer in plan.timetable.transfers for device in transfer.devices}
    devices.update(*(stage.devices for stage in plan.stages if _has_collectives(stage)))
    if engine.job_store is not None:
        return sorted({engine.job_store.owners[device] for device in devices})
    return [*range(engine.process_count)] if len(devices) == plan.mesh.size else []


def _has_collectives(stage: Stage) -> bool:
    return any(node.op.is_collective for node in all_nodes(stage.program.graph))


def _list_ports(ports: Sequence[Port]) -> str:
    shown = ", ".join(map(describe_port, ports[:SHOWN])) or "nothing"
    return f"{shown} and {len(ports) - SHOWN} more" if len(ports) > SHOWN else shown


__all__ = ["check_same_plan", "fingerprint"]
