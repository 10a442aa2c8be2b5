"""What a reduce_scatter takes: where the library below would reduce a copy, there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from mithril_torch.program.runtime_library.collectives import reduce_scatter

from tests.torch.test_memory import count_peak

MIB = 1 << 18
"""Elements of float32 in a MiB."""


class Work:
    """A collective that has ended."""

    def wait(self) -> None:
        """Return at once."""


class Pair:
    """Two processes of Gloo that hold the same; this is the second."""

    size, index, place, places, process_group = 2, 1, 1, None, None

    def scatters(self, device: torch.device) -> bool:
        """Return that Gloo has no reduce_scatter of its own."""
        return False


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what is reduced."""
    sizes: list[int] = []

    def all_reduce(x: torch.Tensor, kind: Any, group: Any, async_op: bool) -> Work:
        sizes.append(x.numel())
        if kind == dist.ReduceOp.SUM:
            x.mul_(2)
        return Work()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    return sizes


def scatter(*operands: torch.Tensor, reduction: str = "sum", dimension: int = 0) -> Any:
    return reduce_scatter(Pair(), *operands, reduction=reduction, dimension=dimension).wait()


def test_parts_are_reduced_in_the_buffer_they_are_cut_into(reduced: list[int]) -> None:
    a, b = torch.arange(8.0).view(2, 4), torch.arange(4.0).view(2, 2)
    first, second = scatter(a, b, dimension=1)
    torch.testing.assert_close(first, 2 * a[:, 2:], rtol=0, atol=0)
    torch.testing.assert_close(second, 2 * b[:, 1:], rtol=0, atol=0)
    assert reduced == [12]


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int16])
def test_what_is_given_stays_as_it_is(
    reduced: list[int], reduction: str, dtype: torch.dtype
) -> None:
    """Of one operand the rows lie behind one another already."""
    x = torch.arange(-4, 4).to(dtype)
    before = x.clone()
    made = scatter(x, reduction=reduction)
    assert torch.equal(x, before)
    assert torch.equal(made, before[4:] * (2 if reduction == "sum" else 1))
    assert made.dtype == dtype
    assert reduced == [8]


def test_there_is_one_copy(reduced: list[int]) -> None:
    """While it is on its way: the buffer; in the end this process's part besides."""
    two = [torch.ones(2, MIB) for _ in range(2)]
    for operands, sent in ((two, 4), (two[:1], 2)):
        most, made = count_peak(lambda operands=operands: scatter(*operands))
        assert (most, made) == ((sent + sent // 2) << 20, (sent // 2 << 20) * len(operands))
