"""Run a plan of several stages from one process, step by step in the order of its timetable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mithril.engine.protocol import Engine, Executable, Handle, Observer
from mithril.errors import BackendError
from mithril.mesh import Mesh, Sharding, coarse
from mithril.plan import Plan
from mithril.plan.plan import observed_send
from mithril.plan.timetable import Run, Timetable
from mithril.types import DType, TensorType


def part_of(engine: Engine, mesh: Mesh) -> Engine:
    """Return the engine of a part of the mesh; of the whole one that is the engine itself.

    Raises:
        BackendError: the engine knows no parts.
    """
    if not mesh.devices:
        return engine
    if not hasattr(engine, "part"):
        raise BackendError(
            f"backend '{engine.name}' runs one program on all of its devices, and this model has "
            f"layers or stages on some of them; remove device_id and stages, or use another backend"
        )
    return engine.part(coarse(mesh))


class StagedExecutable:
    """A plan of several stages, lowered stage by stage.

    Nothing waits for a step to end: an engine whose computations run by themselves has those of
    different devices overlap. An observer is told what the devices of this process take part in.

    Args:
        engine: where it runs.
        plan: stages and timetable.
    """

    def __init__(self, engine: Engine, plan: Plan) -> None:
        assert plan.timetable is not None, "a plan of several stages has a timetable"
        self._table: Timetable = plan.timetable
        self._programs: list[Executable] = [
            part_of(engine, stage.program.mesh).lower(stage.program, _given_up(plan, number))
            for number, stage in enumerate(plan.stages)
        ]
        self._dead = self._table.last_uses()
        # Where an engine can, what a transfer does is worked out once.
        mover = getattr(engine, "mover", lambda transfer: lambda x: engine.move(x, transfer))
        self._moves = [mover(transfer) for transfer in self._table.transfers]
        here = set(engine.local_devices)
        self._told = [not here.isdisjoint(sent.devices) for sent in self._table.transfers]
        self._numbers = [
            (index.slot, _number(engine, index.mesh, index.value)) for index in self._table.indices
        ]

    def __call__(self, inputs: Sequence[Handle], observe: Observer | None = None) -> list[Handle]:
        """Run once; see `Executable`."""
        table = self._table
        slots: dict[int, Any] = dict(zip(table.given, inputs, strict=True))
        slots.update(self._numbers)
        for step, dead in zip(table.steps, self._dead, strict=True):
            if isinstance(step, Run):
                results = self._programs[step.stage]([slots[s] for s in step.inputs], observe)
                slots.update(zip(step.outputs, results, strict=True))
            else:
                transfer = table.transfers[step.transfer]
                if observe is not None and self._told[step.transfer]:
                    observe(*observed_send(transfer))
                slots[step.target] = self._moves[step.transfer](slots[step.source])
            for slot in dead:
                del slots[slot]
        return [slots[slot] for slot in table.made]


def _given_up(plan: Plan, number: int) -> list[int]:
    """Return the inputs of a stage whose memory an output of the same type may take."""
    assert plan.timetable is not None, "a plan of several stages has a timetable"
    graph = plan.stages[number].program.graph
    free = Counter(value.type for value in graph.outputs.values())
    found = []
    for position in plan.timetable.given_up(number):
        type = graph.inputs[position].type
        if free[type]:
            free[type] -= 1
            found.append(position)
    return found


def _number(engine: Engine, mesh: Mesh, value: int) -> Handle:
    """Return the number of a micro-batch on the devices of a part."""
    part = part_of(engine, mesh)
    host = np.asarray(value, np.int32)
    return part.put(
        TensorType((), DType.int32), Sharding.replicated(part.mesh, 0), lambda box: host
    )
