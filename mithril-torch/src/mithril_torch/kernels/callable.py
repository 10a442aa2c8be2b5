"""Ops as functions of tensors, made of the text that programs are written with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mithril.spi import Kernel, KernelRun, Types

from mithril_torch.kernels.table import EXPRESSIONS, EmitExpression
from mithril_torch.program import runtime_library


def kernels_on(device: str) -> Mapping[str, Kernel]:
    """Return the kernel factory of every op that is written in PyTorch, by name.

    Args:
        device: where constants are made.
    """
    return {name: _kernel(write, device) for name, write in EXPRESSIONS.items()}


def _kernel(write: EmitExpression, device: str) -> Kernel:
    def factory(op: Any, types: Types) -> KernelRun:
        names = [f"x{i}" for i in range(len(types))]
        text = f"lambda {', '.join(names)}: {write(op, types).format(*names)}"
        run: KernelRun = eval(text, {**vars(runtime_library), "device": device})
        return run

    return factory
