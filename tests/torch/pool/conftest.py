"""Tests of the worker pool; skipped where the PyTorch backend is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("mithril_torch")

from mithril_torch.executors.pool.controller import Pool, close_all


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the repetitions of faults out unless they are asked for: `pytest -m slow`."""
    if not config.option.markexpr:
        items[:] = [item for item in items if item.get_closest_marker("slow") is None]


@pytest.fixture
def pool() -> Pool:
    """Return two workers; other tests use the same as long as they live."""
    return Pool.of(2)


@pytest.fixture(scope="package", autouse=True)
def no_pool_stays() -> Iterator[None]:
    """End the workers with the last of these tests."""
    yield
    close_all()
