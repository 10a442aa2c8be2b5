"""Parts of a run: each test is in one of them, whichever process asks."""

from __future__ import annotations

import pytest

from tests.profiles import Part

NAMES = [f"tests/test_some.py::test_one[{number}]" for number in range(1000)]


@pytest.mark.parametrize("count", [1, 3, 4])
def test_each_test_is_in_one_part(count: int) -> None:
    parts = [Part(number, count) for number in range(count)]
    assert all(sum(part.has(name) for part in parts) == 1 for name in NAMES)
    sizes = [sum(map(part.has, NAMES)) for part in parts]
    assert max(sizes) < 1.2 * len(NAMES) / count


def test_blocks_of_a_document_are_together() -> None:
    blocks = [f"docs/functions.md::line:{line},column:1" for line in range(100)]
    assert sum(any(Part(number, 6).has(block) for block in blocks) for number in range(6)) == 1


@pytest.mark.parametrize("text", ["4/4", "1/0", "-1/4", "1", "", "1/4/2", "one/four"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 0/4, of 0/4 to 3/4"):
        Part.read(text)
