"""Messages between stages lie in memory while they are under way."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
from mithril.cost.plan_liveness import Replay
from mithril.plan import Execution, Plan
from mithril.plan.messages import Messages
from mithril.plan.timetable import Run, Send


def make_plan() -> Plan:
    model = ml.Model()
    stages = [ml.Linear(8), ml.Linear(8)]
    model |= ml.Pipeline(stages, microbatch_size=2)(input="input", output="output")
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    return ml.compile(model, backend, shapes={"input": (8, 8)}).plan


def test_what_is_sent_is_kept_until_an_answer_comes() -> None:
    plan = make_plan()
    messages, steps = Messages(plan), plan.timetable.steps
    answered = messages.find_answered(0)
    sent = [message for found in answered.values() for message in found]
    assert sent and len(set(sent)) == len(sent)
    for brought, found in answered.items():
        for position, receiver in found:
            assert isinstance(steps[position], Send) and isinstance(steps[brought], Send)
            assert messages.list_receivers(0, position) == [receiver] == [1]
            assert position < messages.find_first_use(1, position) < brought


def test_what_comes_after_a_run_is_received_beside_it() -> None:
    plan = make_plan()
    messages, steps = Messages(plan), plan.timetable.steps
    early = messages.find_early(1)
    received = [position for found in early.values() for position in found]
    assert received and len(set(received)) == len(received)
    for run, found in early.items():
        assert isinstance(steps[run], Run)
        own = messages.list_steps(1)
        between = own[own.index(run) + 1 : own.index(found[-1])] if found else []
        assert not any(isinstance(steps[position], Run) for position in between)
        assert not any(messages.list_receivers(1, position) for position in found)


def test_messages_under_way_are_in_memory() -> None:
    plan, plain = make_plan(), Execution()
    kept = replace(plain, sends_beside=True)
    early = replace(plain, receives_early=True)
    one = 2 * 8 * 4  # bytes of a micro-batch
    peaks = [Replay(plan, execution).run(0).peak for execution in (plain, kept, early)]
    assert peaks[1] >= peaks[0] + one
    assert peaks[0] <= peaks[2] <= peaks[0] + one
    before, during = (Replay(plan, execution).run(1).curve for execution in (plain, early))
    assert max(b - a for a, b in zip(before, during, strict=True)) == 2 * one  # of both at first
