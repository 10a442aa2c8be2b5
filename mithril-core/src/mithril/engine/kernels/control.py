"""Kernels of the ops that only say when something happens."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.control import After
from mithril.types import TensorType


@kernel(After)
def after(op: After, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """The first operand: statements run in order as it is."""
    return lambda x, dependency: x
