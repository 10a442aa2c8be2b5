"""Attention and its gradient; tensors are [batch, sequence, heads, head_dim].

On a CPU PyTorch's flash kernel does it, where it can: it never holds all scores. Elsewhere scores
are matrices, in at least float32. The statistic between both directions is the logarithm of the sum
of exponentials [batch, heads, sequence], in at least float32.
"""

from __future__ import annotations

import math

import torch

FULLY_MASKED = -1e28  # a row whose scores are all below this sees nothing: its results are 0

aten = torch.ops.aten


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the logarithm of the sum of exponentials."""
    if not has_flash_kernel(q, v):
        return attention_by_scores(q, k, v, causal, scale, mask)
    added = None
    if mask is not None or (causal and q.shape[1] != k.shape[1]):
        added, causal = make_score_bias(q, k, causal, mask), False
    out, total = aten._scaled_dot_product_flash_attention_for_cpu(
        heads_first(q), heads_first(k), heads_first(v), 0.0, causal, attn_mask=added, scale=scale
    )
    if mask is not None:
        fully_masked = total < FULLY_MASKED
        out, total = (
            out.masked_fill(fully_masked.unsqueeze(-1), 0.0),
            total.masked_fill(fully_masked, 0.0),
        )
    return out.transpose(1, 2), total


def attention_gradient(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    g: torch.Tensor,
    causal: bool,
    scale: float,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v; probabilities are computed again from the statistic."""
    if not has_flash_kernel(q, v):
        return attention_gradient_by_scores(q, k, v, out, total, g, causal, scale, mask)
    added = None
    if mask is not None or (causal and q.shape[1] != k.shape[1]):
        added, causal = make_score_bias(q, k, causal, mask), False
    total = total.float() if q.dtype.itemsize == 2 else total
    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        heads_first(g), heads_first(q), heads_first(k), heads_first(v), heads_first(out), total,
        0.0, causal, attn_mask=added, scale=scale,
    )  # fmt: skip
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def has_flash_kernel(q: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether a kernel that holds no scores takes these operands."""
    return q.device.type == "cpu" and q.shape[3] == v.shape[3] and q.numel() > 0


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """Return [b, h, s, d] whose last dimension lies in a row, which the flash kernel relies on."""
    return (x if x.stride(3) == 1 else x.contiguous()).transpose(1, 2)


def make_score_bias(
    q: torch.Tensor, k: torch.Tensor, causal: bool, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return what is added to the scores: [b, h, s, t], each size there or 1."""
    wide = torch.promote_types(q.dtype, torch.float32)
    if mask is None:
        added = q.new_zeros((1, 1, 1, 1), dtype=wide)
    elif mask.dtype == torch.bool:
        added = q.new_zeros(mask.shape, dtype=wide).masked_fill_(~mask, -math.inf)
    else:
        added = mask.to(wide)
    if not causal:
        return added
    s, t = q.shape[1], k.shape[1]
    future = torch.ones((s, t), dtype=torch.bool, device=q.device).triu_(t - s + 1)
    return added.masked_fill(future, -math.inf)


def compute_scores(
    q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return the scores [b, g, r, s, t] of queries [b, g, r, s, d] and keys [b, g, 1, t, d]."""
    scores = torch.matmul(q * scale, k.mT)
    if mask is None and not causal:
        return scores
    added = make_score_bias(q[:, 0, 0].unsqueeze(2), k[:, 0, 0].unsqueeze(2), causal, mask)
    groups = scores.shape[1:3] if added.shape[1] > 1 else (1, 1)
    return scores + added.view(added.shape[0], *groups, *added.shape[2:])


def group_heads(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Return [b, s, h, d] as [b, groups, heads of a group, s, d], in at least float32."""
    b, s, h, d = x.shape
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x.reshape(b, s, groups, h // groups, d).permute(0, 2, 3, 1, 4)


def ungroup_heads(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return [b, groups, heads of a group, s, d] as [b, s, h, d]."""
    return x.permute(0, 3, 1, 2, 4).flatten(2, 3).to(dtype)


def attention_by_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of any shape on any device, with all scores in memory."""
    groups = k.shape[2]
    scores = compute_scores(group_heads(q, groups), group_heads(k, groups), causal, scale, mask)
    top = scores.amax(-1, keepdim=True) if scores.numel() else scores.sum(-1, keepdim=True)
    if mask is not None:
        top = top.masked_fill(top < FULLY_MASKED, 0.0)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if mask is not None:
        total = total.masked_fill(total == 0.0, 1.0)
    out = torch.matmul(weights.div_(total), group_heads(v, groups))
    statistic = total.log_().add_(top)
    return ungroup_heads(out, q.dtype), statistic.squeeze(-1).flatten(1, 2)


def attention_gradient_by_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    g: torch.Tensor,
    causal: bool,
    scale: float,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradient of attention of any shape on any device, with all scores in memory."""
    dtype, groups = q.dtype, k.shape[2]
    q, k, v, out, g = (group_heads(x, groups) for x in (q, k, v, out, g))
    weights = compute_scores(q, k, causal, scale, mask)
    weights = weights.sub_(total.unflatten(1, q.shape[1:3]).unsqueeze(-1)).exp_()
    along = (g * out).sum(-1, keepdim=True)
    slope = torch.matmul(g, v.mT).sub_(along).mul_(weights).mul_(scale)
    dq = torch.matmul(slope, k)
    dk = torch.matmul(slope.mT, q).sum(2, keepdim=True)
    dv = torch.matmul(weights.mT, g).sum(2, keepdim=True)
    return ungroup_heads(dq, dtype), ungroup_heads(dk, dtype), ungroup_heads(dv, dtype)


__all__ = ["attention", "attention_gradient"]
