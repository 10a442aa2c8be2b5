"""Shared pytest set-up: hypothesis profile and the golden-file option."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

LONG = (
    "mlx/test_spmd.py", "mlx/test_stages.py", "torch/test_torchrun.py", "torch/test_stages.py",
    "torch/test_stage_faults.py", "torch/test_torch_benchmarks.py", "jax/test_stages.py",
    "jax/test_processes.py", "jax/test_jax_benchmarks.py", "torch/test_module.py",
    "examples/test_placement.py", "examples/test_pjit.py", "runtime/test_launch.py",
    "conformance/test_models.py", "conformance/test_context.py", "conformance/test_moe.py",
)  # fmt: skip
"""Files whose tests take long, often because they start processes."""
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-golden."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes long first, so that no process is left alone with it in the end."""
    long = {Path(__file__).parent / name for name in LONG}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME, or rewrite that file under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text + "\n"

    return check
