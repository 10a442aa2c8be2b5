"""Updates of AdamW: PyTorch's fused kernel over lists of tensors."""

from __future__ import annotations

import math
import sys
from functools import cache
from itertools import chain

import torch

from mithril_torch.program.runtime_library.dynamic_slicing import find_shared
from mithril_torch.program.runtime_library.tracing import is_traced

Tensors = list[torch.Tensor]
is_contiguous = torch.Tensor.is_contiguous


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
    if is_traced():
        return adamw_steps_by_formula(
            parameters, gradients, firsts, seconds, rate, count, b1, b2, eps, weight_decay
        )
    # Hundreds of tensors, mostly in order, are asked for it once.
    is_plain = all(map(is_contiguous, chain(parameters, gradients, firsts, seconds)))
    parameters = own_memory(parameters, own[0], is_plain=is_plain)
    firsts = own_memory(firsts, own[1], is_plain=is_plain)
    seconds = own_memory(seconds, own[2], is_plain=is_plain)
    if not is_plain:
        gradients, firsts, seconds = (
            lay_alike(xs, parameters) for xs in (gradients, firsts, seconds)
        )
    # The kernel takes memory as it lies, but copies what has its channels last.
    torch._fused_adamw_(
        parameters if is_plain else view_in_order(parameters),
        gradients if is_plain else view_in_order(gradients),
        firsts if is_plain else view_in_order(firsts),
        seconds if is_plain else view_in_order(seconds),
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


def adamw_steps_by_formula(
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
) -> tuple[torch.Tensor, ...]:
    """Return the same for tensors whose dtypes differ, or that a compiler looks at."""
    found: tuple[Tensors, Tensors, Tensors] = ([], [], [])
    for tensors in zip(parameters, gradients, firsts, seconds):  # noqa: B905
        dtypes = [tensors[i].dtype for i in (0, 2, 3)]
        wide = torch.promote_types(torch.promote_types(dtypes[0], dtypes[1]), torch.float32)
        p, g, m, v, r, t = (x.to(wide) for x in (*tensors, rate, count))
        m = m + (1 - b1) * (g - m)
        v = b2 * v + (1 - b2) * g * g
        root = v.sqrt() / sum_of_weights(b2, t).sqrt() + eps
        p = p - r * weight_decay * p - r / sum_of_weights(b1, t) * m / root
        for xs, x, dtype in zip(found, (p, m, v), dtypes):  # noqa: B905
            xs.append(x.to(dtype))
    return (*found[0], *found[1], *found[2])


def sum_of_weights(b: float, count: torch.Tensor) -> torch.Tensor:
    """Return 1 - b ** count, exact where that is small."""
    return -torch.expm1(count * math.log(b)) if b else torch.ones_like(count)


def own_memory(tensors: Tensors, is_given_up: bool, *, is_plain: bool) -> Tensors:
    """Return tensors whose memory is the program's: those it is given where nobody else has them.

    Others are copied, and so is what does not lie in order; with `is_plain` all are contiguous.
    """
    if not is_given_up:
        return [copy_in_order(x) for x in tensors]
    most = count_holders_of_list()
    counts, shared = count_each(tensors), find_shared(tensors)
    if is_plain and max(counts) <= most and not any(shared):
        return tensors
    return [
        copy_in_order(x) if count > most or is_shared or find_order(x) is None else x
        for count, is_shared, x in zip(counts, shared, tensors)  # noqa: B905
    ]


def find_order(x: torch.Tensor) -> torch.memory_format | None:
    """Return in which of two orders a tensor lies, without gaps; None if it does in neither."""
    if x.is_contiguous():
        return torch.contiguous_format
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else None


def view_in_order(tensors: Tensors) -> Tensors:
    """Return tensors in one of the two orders with their dimensions as they lie in memory."""
    return [x if x.is_contiguous() else x.permute(0, 2, 3, 1) for x in tensors]


def copy_in_order(x: torch.Tensor) -> torch.Tensor:
    """Return a copy that lies as the tensor does, in order if that does not."""
    return x.clone(memory_format=find_order(x) or torch.contiguous_format)


def lay_alike(tensors: Tensors, likes: Tensors) -> Tensors:
    """Return tensors, each of which lies as that at its place in a list of others in order."""
    found = []
    for x, like in zip(tensors, likes):  # noqa: B905
        order = find_order(like) or torch.contiguous_format
        found.append(x if find_order(x) is order else x.contiguous(memory_format=order))
    return found


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


__all__ = ["adamw_steps", "adamw_steps_by_formula"]
