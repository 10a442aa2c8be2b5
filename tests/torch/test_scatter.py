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

    def is_completed(self) -> bool:
        """Return that it has ended."""
        return True


class Members:
    """Processes of Gloo that hold the same."""

    host, places, process_group, scatters = None, None, None, False

    def __init__(self, size: int, place: int) -> None:
        self.size, self.place, self.index = size, place, place
        self.begun: list[Any] = []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of what is exchanged: from each process comes what goes to the last."""
    sizes: list[int] = []

    def exchange(
        parts: torch.Tensor, data: torch.Tensor, to: list[int], of: list[int], **options: Any
    ) -> Work:
        assert to == of
        assert sum(of) == data.numel() == parts.numel()
        sizes.append(data.nbytes)
        parts.copy_(data)
        return Work()

    monkeypatch.setattr(dist, "all_to_all_single", exchange)
    return sizes


def scatter(
    *operands: torch.Tensor,
    reduction: str = "sum",
    dimension: int = 0,
    size: int = 2,
    place: int = 1,
) -> Any:
    group: Any = Members(size, place)
    return reduce_scatter(group, *operands, reduction=reduction, dimension=dimension).wait()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_process_sends_others_their_parts(sent: list[int], place: int, count: int) -> None:
    """And nothing to itself, unless its part lies between theirs; what it sends comes back here."""
    given = [torch.arange(6.0 * n).view(2, 3 * n) for n in range(1, count + 1)]
    made = scatter(*given, dimension=1, size=3, place=place)
    for x, found in zip(given, made if count > 1 else [made], strict=True):
        total = sum(x.chunk(3, 1))
        torch.testing.assert_close(found, total, rtol=0, atol=0)
    stays = place != 1 or count > 1
    assert sent == [sum(x.nbytes for x in given) * (2 if stays else 3) // 3]


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
    low, high = torch.arange(4), torch.arange(4, 8)
    expected = {"sum": low + high, "max": high, "min": low}[reduction]
    assert torch.equal(made, expected.to(dtype))
    assert made.dtype == dtype
    assert sent == [4 * dtype.itemsize]


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_extremes_keep_nan(sent: list[int], reduction: str) -> None:
    made = scatter(torch.tensor([1.0, 2.0, torch.nan, 4.0]), reduction=reduction)
    assert torch.equal(made.isnan(), torch.tensor([True, False]))


def test_narrow_sums_are_taken_in_float32() -> None:
    """In 16 bits 256 + 1 is 256."""
    parts = torch.tensor([[256.0], *[[1.0]] * 256], dtype=torch.bfloat16)
    assert reduce_rows(list(parts), "sum").item() == 512


def test_what_it_takes(sent: list[int]) -> None:
    """While it is on its way: the parts of all, and what is sent where that is cut anew."""
    two = [torch.ones(2, MIB) for _ in range(2)]
    for operands, held, left in ((two, 6, 2), (two[:1], 1, 1)):
        most, made = count_peak(lambda operands=operands: scatter(*operands))
        assert (most, made) == (held << 20, (left << 20) * len(operands))


def test_buffers_are_let_go_of_at_the_next_exchange(sent: list[int]) -> None:
    """Once all has arrived, though nobody waits for it yet."""
    group: Any = Members(2, 1)
    first = reduce_scatter(group, torch.arange(4.0), reduction="sum", dimension=0)
    assert first.arguments
    second = reduce_scatter(group, torch.ones(4), reduction="sum", dimension=0)
    assert not first.arguments
    assert group.begun == [second]
    assert first.wait().tolist() == [2.0, 4.0]
    assert second.wait().tolist() == [2.0, 2.0]
    assert first.wait() is None, "what nobody else holds is gone"


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
