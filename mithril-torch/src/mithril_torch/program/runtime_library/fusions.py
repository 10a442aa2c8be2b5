"""Fusions of a program, of each of which PyTorch's compiler makes a few kernels."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

Fusion = Callable[..., Sequence[torch.Tensor]]


def compile_fusion(function: Fusion, over: int | None = None) -> Fusion:
    """Return a function that computes the same in kernels, which are made when it is first called.

    They are made for operands that lie as these do. Shapes and dtypes are those of a program, so
    that nothing else has to be looked at in a call.

    Args:
        function: what they compute.
        over: the operand that it writes over, and that is then its first result.
    """
    made: dict[Any, Fusion] = {}

    def run(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
        strides = tuple([x.stride() for x in operands])
        kernels = made.get(strides)
        if kernels is None:
            with Compiler.lock:
                kernels = made.get(strides) or make_kernels(function, operands, over)
            made[strides] = kernels
        results = kernels(*operands)
        return results if over is None else (operands[over], *results)

    return run


class Compiler:
    """PyTorch's, which takes one thread at a time."""

    lock = threading.Lock()


def make_kernels(function: Fusion, operands: Sequence[torch.Tensor], over: int | None) -> Fusion:
    """Return what PyTorch's compiler makes of a function for operands like these.

    16-bit floats are rounded where the function rounds them.
    """
    from torch._inductor import standalone_compile  # takes seconds

    # Calls that read the function, and that try what is made of it, shall not count.
    tried = [x.clone() if i == over else x for i, x in enumerate(operands)]
    graph = make_fx(function)(*tried)
    log = logging.getLogger("torch._inductor.standalone_compile")
    was, log.disabled = log.disabled, True  # it warns of what cannot be saved, and nobody saves it
    try:
        kernels: Fusion = standalone_compile(
            graph, [*operands], dynamic_shapes="from_example_inputs",
            options={"config_patches": {"emulate_precision_casts": True}},
        )  # fmt: skip
    finally:
        log.disabled = was
    if is_apart(tried, kernels(*tried)):
        return kernels
    return lambda *given: [y.clone() for y in kernels(*given)]


def is_apart(operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> bool:
    """Return whether results have memory of their own, with a place for each element."""
    read, made = ([x.untyped_storage().data_ptr() for x in xs] for xs in (operands, results))
    steps = (step for y in results for n, step in zip(y.shape, y.stride(), strict=True) if n > 1)
    return len({*read, *made}) == len({*read}) + len(made) and all(steps)


__all__ = ["compile_fusion"]
