"""Runs whose results are looked at: at first without a copy, by values with MITHRIL_CHECK=1."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from mithril.engine import Engine, Executable, Observer
from mithril.engine.checks import check_handle, check_part
from mithril.errors import FaultyBackendError, kind_of
from mithril.plan import Plan, Port, Program


def check_outputs(engine: Engine, plan: Plan | Program, made: Any) -> None:
    """Raise unless a program returns a handle for each output, with what devices hold.

    Args:
        engine: where it ran.
        plan: what ran, or one program of it.
        made: what it returned.

    Raises:
        FaultyBackendError: it does not.
    """
    if not isinstance(made, list | tuple) or len(made) != len(plan.outputs):
        found = f"{len(made)} handles" if isinstance(made, list | tuple) else kind_of(made)
        raise FaultyBackendError(
            f"program of backend '{engine.name}' returns {found} for {len(plan.outputs)} outputs; "
            f"return a handle for each"
        )
    for port, shards in zip(plan.outputs, made, strict=True):
        what = f"program, as output '{port.name}',"
        check_handle(engine, what, shards, port.type, port.sharding)


def run_and_compare(
    execute: Executable,
    engine: Engine,
    plan: Plan,
    donated: Collection[int],
    given: Sequence[Any],
    observe: Observer | None,
) -> list[Any]:
    """Run a plan; read its results, and its inputs before and after, if they are kept.

    Args:
        execute: the lowered plan.
        engine: where it runs.
        plan: what runs.
        donated: positions of the inputs that are given up.
        given: a handle for each input.
        observe: told of every collective.

    Raises:
        FaultyBackendError: a result is not what the plan says, or an input that was not given up
            has other values than before.
    """
    ports = zip(plan.inputs, given, strict=True)
    kept = [(port, x) for i, (port, x) in enumerate(ports) if i not in donated]
    before = [_read(engine, port, x) for port, x in kept]
    made = execute(given, observe)
    check_outputs(engine, plan, made)
    for port, shards in zip(plan.outputs, made, strict=True):
        _read(engine, port, shards)
    for (port, x), parts in zip(kept, before, strict=True):
        for old, new in zip(parts, _read(engine, port, x), strict=True):
            if old.tobytes() != new.tobytes():
                raise FaultyBackendError(
                    f"program of backend '{engine.name}' writes into its input '{port.name}', "
                    f"{port.type}, which is not given up; copy it"
                )
    return made


def _read(engine: Engine, port: Port, shards: Any) -> list[np.ndarray]:
    """Return copies of what the devices of this process hold of an input or output."""
    part, type, sharding = engine.on(port.sharding.mesh), port.type, port.sharding
    return [
        check_part(engine.name, part.shard(shards, sharding, device), type, sharding).copy()
        for device in part.local_devices
    ]
