"""Marks: what a timed program calls coming from one segment to the next, here or in a worker."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch


def make_mark(stamps: list[float], device: str) -> Callable[[int], None]:
    """Return the function that a timed program calls as it comes to a segment.

    Args:
        stamps: where the numbers of segments and the times go.
        device: where the program computes; a GPU is waited for.
    """
    note, is_gpu = stamps.append, device.startswith("cuda")

    def mark(number: int) -> None:
        if is_gpu:
            torch.cuda.synchronize()
        note(number)
        note(perf_counter())

    return mark
