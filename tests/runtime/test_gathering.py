"""What processes say reaches all of them, or all that came are told who did not, in bounded time."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition

import mithril as ml
import pytest
from mithril.engine.job_store import JobStore
from mithril.runtime import gathering
from mithril.runtime.gathering import announce_end, gather, list_processes

LONG, SHORT = 60.0, 0.2


class Kept:
    """A store in this process, in which threads stand for processes."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = Condition()

    def set(self, key: str, text: str) -> None:
        with self.changed:
            self.texts[key] = text
            self.changed.notify_all()

    def get(self, key: str, seconds: float) -> str | None:
        with self.changed:
            self.changed.wait_for(lambda: key in self.texts, seconds)
            return self.texts.get(key)

    def limited(self, timeout: float, size: int = 3) -> JobStore:
        return JobStore(self.set, self.get, timeout, tuple(range(size)))


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Begin with no rounds, and return what is to be done where this process ends."""
    found: list[Callable[[], None]] = []
    monkeypatch.setattr(gathering, "_rounds", gathering.Counter())
    monkeypatch.setattr(gathering, "_announced", set())
    monkeypatch.setattr(gathering, "SLICE", 0.05)
    monkeypatch.setattr(atexit, "register", found.append)
    return found


def meet(store: JobStore, who: Sequence[int], members: Sequence[int]) -> list[object]:
    """Return what each of those that come is told: the texts of all, or an error's."""

    def come(own: int) -> object:
        try:
            return gather(store, "job", own, members, f"text of {own}")
        except ml.BackendError as error:
            return str(error)

    with ThreadPoolExecutor(len(who)) as pool:
        return [*pool.map(come, who)]


def test_all_are_told_what_each_says() -> None:
    store = Kept().limited(LONG)
    for members in ([0, 1, 2], [1, 2], [0, 1, 2]):
        texts = {member: f"text of {member}" for member in members}
        assert meet(store, members, members) == [texts] * len(members)


@pytest.mark.parametrize("absent", [0, 2])
def test_who_came_is_told_who_did_not(absent: int) -> None:
    who = [member for member in range(3) if member != absent]
    told = meet(Kept().limited(SHORT), who, range(3))
    assert told == [f"process {absent} did not come within timeout=0.2 s"] * 2


@pytest.mark.parametrize("late", [0, 1, 2])
def test_who_comes_late_is_told_that_the_others_gave_up(late: int) -> None:
    kept, who = Kept(), [member for member in range(3) if member != late]
    meet(kept.limited(SHORT), who, range(3))
    (told,) = meet(kept.limited(SHORT), [late], range(3))
    assert told == "they came earlier, and waited for their timeout"
    # A round that failed did so for all, so that they may try the next one together.
    texts = {member: f"text of {member}" for member in range(3)}
    assert meet(kept.limited(LONG), range(3), range(3)) == [texts] * 3


@pytest.mark.parametrize("gone", [0, 1])
def test_nobody_waits_for_a_process_that_has_ended(
    gone: int, ends: list[Callable[[], None]]
) -> None:
    store = Kept().limited(LONG)
    announce_end(store, "job", gone)
    (end,) = ends
    end()
    assert meet(store, [1 - gone], [0, 1]) == [f"process {gone} ended without"]


def test_who_gave_up_while_others_are_waited_for_is_not_counted_as_there() -> None:
    kept = Kept()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, kept.limited(LONG), [0], range(3))
        assert meet(kept.limited(SHORT), [1], range(3)) == [
            "process 2 did not come within timeout=0.2 s"
        ]
        last = pool.submit(meet, kept.limited(LONG), [2], range(3))
        assert (
            first.result() == last.result() == ["they came earlier, and waited for their timeout"]
        )


def test_a_fork_of_a_process_and_one_that_fails_do_not_tell_their_end(
    ends: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    announce_end(kept.limited(LONG), "job", 0)
    own = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: own + 1)
        ends[0]()
    with monkeypatch.context() as failing:
        failing.setattr(sys, "last_value", ValueError("boom"), raising=False)
        ends[0]()
    assert kept.texts == {}
    ends[0]()
    assert [*kept.texts] == ["mithril/job/ended/0"]


def test_an_end_is_not_told_to_a_store_that_is_gone(ends: list[Callable[[], None]]) -> None:
    kept = Kept()

    def fail(key: str, text: str) -> None:
        raise ml.BackendError("store is gone")

    announce_end(kept.limited(LONG), "job", 0)
    vars(kept)["set"] = fail
    ends[0]()


def test_of_many_processes_some_are_listed() -> None:
    assert re.fullmatch(r"processes 0, .* 7 and 4 more", list_processes(range(12)))
