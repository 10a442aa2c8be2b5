"""Cross-entropy and its gradient, in at least float32.

A processor takes some rows at a time: as many as stay in its cores' caches from one function to the
next. A target that is no class gives NaN: neither an error, which would have to wait for a GPU, nor
a wrong number.
"""

from __future__ import annotations

import math

import torch

from mithril_torch.program.runtime_library.tracing import is_traced

LOGITS_AT_A_TIME = 1 << 17
"""How many logits a thread of a processor takes at a time: 512 KiB of float32."""


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses and the logarithms of the sums of exponentials."""
    rows, known, is_known = _read_rows(logits, targets)
    count = _count_rows(rows)
    blocks = zip(rows.split(count), known.split(count), strict=True)
    losses, totals = zip(*(_find_losses(*block) for block in blocks), strict=True)
    loss = torch.cat(losses).masked_fill_(~is_known, math.nan)
    return loss.to(logits.dtype).view(targets.shape), torch.cat(totals).view(targets.shape)


def _find_losses(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both for some rows, [rows, 1], in float32 or float64."""
    wide = logits.float() if logits.dtype.itemsize == 2 else logits
    top = wide.amax(-1, keepdim=True)
    # Of both only the distance from the largest logit is taken, so that a loss is as exact where
    # logits are large.
    powers = wide - top
    picked = powers.gather(-1, ids)
    total = powers.exp_().sum(-1, keepdim=True).log_()
    return total - picked, total.add_(top)


def cross_entropy_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    total: torch.Tensor,
    g: torch.Tensor,
    over: bool = False,
) -> torch.Tensor:
    """Return the gradient of the logits: the probabilities, less 1 at the target, times g.

    Args:
        logits: [..., classes].
        targets: [...], integers.
        total: [...], the logarithms of the sums of exponentials.
        g: [...], the gradient of the losses.
        over: whether it is written over the logits.
    """
    rows, known, is_known = _read_rows(logits, targets)
    if is_traced():  # a compiler makes no kernel of a write to places that are computed
        is_target = torch.arange(rows.shape[-1], device=rows.device) == known
        less = torch.where(is_target, torch.where(is_known, 1.0, math.nan), 0.0)
        likely = torch.exp(rows - total.reshape(-1, 1)) - less.to(total.dtype)
        return (likely * g.to(total.dtype).reshape(-1, 1)).to(logits.dtype).view(logits.shape)
    count = _count_rows(rows)
    given = torch.full_like(is_known, -1, dtype=total.dtype).masked_fill_(~is_known, math.nan)
    columns = (known, given, total.reshape(-1, 1), g.to(total.dtype).reshape(-1, 1))
    out = rows if over else torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    blocks = zip(*(x.split(count) for x in (out, rows, *columns)), strict=True)
    for block, some, ids, less, sums, slope in blocks:
        is_wide = block.dtype == sums.dtype
        likely = torch.sub(some, sums, out=block) if is_wide else some - sums
        likely.exp_().scatter_add_(-1, ids, less).mul_(slope)
        if not is_wide:
            block.copy_(likely)
    return out.view(logits.shape)


def _read_rows(
    logits: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits [rows, classes], and [rows, 1] targets that are classes, and which were."""
    ids = targets.long().reshape(-1, 1)
    known = ids.clamp(0, logits.shape[-1] - 1)
    return logits.reshape(-1, logits.shape[-1]), known, ids == known


def _count_rows(rows: torch.Tensor) -> int:
    """Return how many rows are taken at a time."""
    if rows.device.type != "cpu" or is_traced():
        return len(rows)
    return max(1, LOGITS_AT_A_TIME * torch.get_num_threads() // rows.shape[-1])


__all__ = ["cross_entropy", "cross_entropy_gradient"]
