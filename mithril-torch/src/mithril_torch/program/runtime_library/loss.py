"""Cross-entropy and its gradient, in at least float32.

Both go through PyTorch's kernels of log_softmax, whose exponentials are the fastest there are. A
target that is no class gives NaN: neither an error, which would have to wait for a GPU, nor a wrong
number.
"""

from __future__ import annotations

import math

import torch

aten = torch.ops.aten


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses and the logarithms of the sums of exponentials.

    The latter are the distance of the largest logit from its logarithm of a probability, a number
    between 0 and log(classes), so that nothing is lost where logits are large.
    """
    wide = logits.float() if logits.dtype.itemsize == 2 else logits
    scores = aten._log_softmax(wide, -1, False)
    total = wide.amax(-1).sub_(scores.amax(-1))
    ids = targets.long()
    known = ids.clamp(0, logits.shape[-1] - 1)
    picked = scores.gather(-1, known.unsqueeze(-1)).squeeze(-1)
    loss = picked.neg_().masked_fill_(ids != known, math.nan)
    return loss.to(logits.dtype), total


def cross_entropy_gradient(
    logits: torch.Tensor, targets: torch.Tensor, total: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the logits: the probabilities, less 1 at the target, times g."""
    scores = logits - total.unsqueeze(-1)
    ids = targets.long().unsqueeze(-1)
    known = ids.clamp(0, logits.shape[-1] - 1)
    given = g.to(scores.dtype).unsqueeze(-1).neg().masked_fill_(ids != known, math.nan)
    # Both in order, whatever the strides of the logits: the kernel writes as if its result were.
    slope = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
    slope.scatter_(-1, known, given)
    # A CPU adds up a row before it writes it, so that the result may lie in the place of the slope.
    out = slope if slope.device.type == "cpu" else torch.empty_like(slope)
    aten._log_softmax_backward_data.out(slope, scores, -1, scores.dtype, out=out)
    return out.to(logits.dtype)


__all__ = ["cross_entropy", "cross_entropy_gradient"]
