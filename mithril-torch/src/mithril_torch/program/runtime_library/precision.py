"""How precisely products of float32 are computed where the hardware has a faster, coarser way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Run = Callable[[Sequence[torch.Tensor | None]], list[torch.Tensor | None]]


def float32_products(precision: str, run: Run) -> Run:
    """Return `run` with matrix products of float32 at a precision: `ieee` or `tf32`."""

    def run_precisely(inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        before = cuda.fp32_precision, cpu.fp32_precision
        cuda.fp32_precision = cpu.fp32_precision = precision
        try:
            return run(inputs)
        finally:
            cuda.fp32_precision, cpu.fp32_precision = before

    return run_precisely


__all__ = ["float32_products"]
