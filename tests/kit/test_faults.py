"""Faults planted into a copy of the NumPy engine: the kit finds them at the level `basic`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.tools import load_tool

TOOL = load_tool("plant_faults")
FAULTS = TOOL.read_faults(TOOL.KERNEL_FAULTS)


def test_there_are_thirty_of_many_kinds() -> None:
    assert len(FAULTS) == 30
    assert len(Counter(fault.area for fault in FAULTS)) >= 10


@pytest.mark.slow
def test_a_sound_copy_is_good() -> None:
    found, _ = TOOL.try_in_copy(None)
    assert found == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 9, 20])
def test_some_are_found(number: int) -> None:
    found, _ = TOOL.try_in_copy(FAULTS[number])
    assert found, FAULTS[number]


@pytest.mark.slow
def test_at_most_one_is_missed() -> None:
    missed = [fault for fault in FAULTS if not TOOL.try_in_copy(fault)[0]]
    assert len(missed) <= 1, missed
