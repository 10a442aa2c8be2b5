"""Updates of AdamW: PyTorch's fused kernel over lists of tensors."""

from __future__ import annotations

import math
import sys
from functools import cache

import torch

from mithril_torch.program.runtime_library.dynamic_slicing import is_memory_shared

Tensors = list[torch.Tensor]


def adamw_steps(
    parameters: Tensors,
    gradients: Tensors,
    firsts: Tensors,
    seconds: Tensors,
    rate: torch.Tensor,
    count: torch.Tensor,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    own: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[torch.Tensor, ...]:
    """Return the new parameters, then the first moments, then the second ones.

    They are made in the memory of the old ones where a program owns that: `own` says of which of
    the three lists it may, and who holds a tensor is seen here.
    """
    dtypes = {x.dtype for xs in (parameters, gradients, firsts, seconds) for x in xs}
    if len(dtypes) > 1 or torch.compiler.is_compiling():
        found = [
            adamw_step_of_one(*tensors, rate, count, b1, b2, eps, weight_decay)
            for tensors in zip(parameters, gradients, firsts, seconds)  # noqa: B905
        ]
        return tuple(x for xs in zip(*found) for x in xs)  # noqa: B905
    parameters = own_memory(parameters, own[0])
    firsts = own_memory(firsts, own[1])
    seconds = own_memory(seconds, own[2])
    torch._fused_adamw_(
        parameters,
        [gradient.contiguous() for gradient in gradients],  # the kernel takes memory as it lies
        firsts,
        seconds,
        [],
        [count.to(torch.float32)] * len(parameters),
        lr=rate.to(torch.float32) if rate.is_cuda else rate,
        beta1=b1,
        beta2=b2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
    return (*parameters, *firsts, *seconds)


def adamw_step_of_one(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    rate: torch.Tensor,
    count: torch.Tensor,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a new parameter and its moments by the formula, whatever their dtypes."""
    wide = torch.promote_types(torch.promote_types(parameter.dtype, first.dtype), torch.float32)
    p, g, m, v, rate, count = (
        x.to(wide) for x in (parameter, gradient, first, second, rate, count)
    )
    m = m + (1 - b1) * (g - m)
    v = b2 * v + (1 - b2) * g * g
    root = v.sqrt() / sum_of_weights(b2, count).sqrt() + eps
    p = p - rate * weight_decay * p - rate / sum_of_weights(b1, count) * m / root
    return p.to(parameter.dtype), m.to(first.dtype), v.to(second.dtype)


def sum_of_weights(b: float, count: torch.Tensor) -> torch.Tensor:
    """Return 1 - b ** count, exact where that is small."""
    return -torch.expm1(count * math.log(b)) if b else torch.ones_like(count)


def own_memory(tensors: Tensors, is_given_up: bool) -> Tensors:
    """Return tensors whose memory is the program's: those it is given where nobody else has them.

    Others are copied, and so is what does not lie in order.
    """
    references = count_each(tensors)
    most = count_holders_of_list() if is_given_up else 0
    return [
        x
        if count <= most and x.is_contiguous() and not is_memory_shared(x)
        else x.clone(memory_format=torch.contiguous_format)
        for count, x in zip(references, tensors)  # noqa: B905
    ]


@cache
def count_holders_of_list() -> int:
    """Return how often a tensor that is given up is referred to in a list that a program passes on.

    Its handle and the list of inputs refer to it, the variable of the program and the list.
    """
    handle = [torch.empty(1)]
    inputs = [handle[0]]
    variable = inputs[0]
    (count,) = count_each([variable])
    return count


def count_each(tensors: Tensors) -> list[int]:
    """Return how often each tensor of a list is referred to, a variable here included."""
    return [sys.getrefcount(x) for x in tensors]


__all__ = ["adamw_steps"]
