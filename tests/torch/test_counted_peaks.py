"""How benchmarks count what PyTorch's allocator gives and takes."""

from __future__ import annotations

import torch

from benchmarks.torch_sides import count_peak, replay


def test_what_is_taken_and_given_back_is_added_up() -> None:
    assert replay({100: 10}, [(110, 5), (100, -10), (200, 20)]) == 25


def test_what_others_give_back_is_gone_once_something_else_lies_there() -> None:
    assert replay({}, [(0, 10), (5, 10), (100, 3)]) == 13
    assert replay({0: 10, 10: 10}, [(0, 30), (40, 1)]) == 31


def test_a_function_is_counted_with_what_was_there() -> None:
    kept = torch.ones(1000)
    assert count_peak(lambda: torch.neg(kept), lambda: [kept]) == 2 * 4000
