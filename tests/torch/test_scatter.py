"""What a reduce_scatter takes over Gloo, which has none: each process gets its parts of all others."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
import torch.distributed as dist
from mithril.cost import collective_seconds
from mithril_torch.program.runtime_library.collectives import reduce_rows, reduce_scatter

from tests.torch.test_memory import count_peak

MIB = 1 << 18
"""Elements of float32 in a MiB."""


class Work:
    """A collective that has ended."""

    def wait(self) -> None:
        """Return at once."""


class Pair:
    """Two processes of Gloo that hold the same; this is the second."""

    size, index, place, places, process_group, scatters = 2, 1, 1, None, None, False


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of what is exchanged."""
    sizes: list[int] = []

    def exchange(parts: torch.Tensor, pieces: torch.Tensor, **options: Any) -> Work:
        sizes.append(pieces.nbytes)
        mine = pieces[pieces.numel() // 2 :]
        parts.view(2, -1).copy_(mine)
        return Work()

    monkeypatch.setattr(dist, "all_to_all_single", exchange)
    return sizes


def scatter(*operands: torch.Tensor, reduction: str = "sum", dimension: int = 0) -> Any:
    return reduce_scatter(Pair(), *operands, reduction=reduction, dimension=dimension).wait()


def test_parts_travel_in_the_buffer_they_are_cut_into(sent: list[int]) -> None:
    a, b = torch.arange(8.0).view(2, 4), torch.arange(4.0).view(2, 2)
    first, second = scatter(a, b, dimension=1)
    torch.testing.assert_close(first, 2 * a[:, 2:], rtol=0, atol=0)
    torch.testing.assert_close(second, 2 * b[:, 1:], rtol=0, atol=0)
    assert sent == [12 * 4]


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int16, torch.uint16]
)
def test_what_is_given_stays_as_it_is(sent: list[int], reduction: str, dtype: torch.dtype) -> None:
    """Of one operand the rows lie behind one another already; they travel in their own type."""
    x = torch.arange(8).to(dtype)
    before = x.clone()
    made = scatter(x, reduction=reduction)
    assert torch.equal(x, before)
    expected = torch.arange(4, 8) * (2 if reduction == "sum" else 1)
    assert torch.equal(made, expected.to(dtype))
    assert made.dtype == dtype
    assert sent == [8 * dtype.itemsize]


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_extremes_keep_nan(sent: list[int], reduction: str) -> None:
    made = scatter(torch.tensor([1.0, 2.0, torch.nan, 4.0]), reduction=reduction)
    assert torch.equal(made.isnan(), torch.tensor([True, False]))


def test_narrow_sums_are_taken_in_float32() -> None:
    """In 16 bits 256 + 1 is 256."""
    parts = torch.tensor([[256.0], *[[1.0]] * 256], dtype=torch.bfloat16)
    assert reduce_rows(parts, "sum").item() == 512


def test_what_it_takes(sent: list[int]) -> None:
    """While it is on its way: the parts of all, and what is sent where that is cut anew."""
    two = [torch.ones(2, MIB) for _ in range(2)]
    for operands, held, left in ((two, 8, 2), (two[:1], 3, 1)):
        most, made = count_peak(lambda operands=operands: scatter(*operands))
        assert (most, made) == (held << 20, (left << 20) * len(operands))


def test_a_plan_says_what_is_exchanged_and_prices_that() -> None:
    backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
    assert backend.engine.transport is not None
    assert not backend.engine.transport.has("reduce_scatter")
    model = ml.Linear(8, bias=False)
    shapes = {"input": ml.TensorSpec((4, 8), "float32", ml.P("data"))}
    compiled = ml.compile(model, backend, shapes=shapes, zero=3)
    (row,) = (row for row in compiled.plan.collectives() if row.kind == "reduce_scatter")
    issued = "all_to_all", row.bytes, row.axes, backend.mesh, backend.hardware
    assert row.cause.seconds == collective_seconds(*issued)
    assert f"emulated: all_to_all among 2 devices, {row.bytes} bytes" in compiled.explain()
    given = {"input": backend.array(np.ones((4, 8), np.float32), sharding=ml.P("data"))}
    executed: list[object] = []
    upper = {"output": np.ones((4, 8), np.float32)}
    compiled.evaluate(
        compiled.randomize_params(), given, upper, observe=lambda told: executed.append(told.row)
    )
    assert tuple(executed) == compiled.plan.list_issued()


def test_devices_in_lockstep_have_all_collectives() -> None:
    assert ml.TorchBackend(ml.Mesh(data=2), executor="lockstep").engine.transport is None
