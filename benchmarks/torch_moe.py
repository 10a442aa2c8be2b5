"""A training step of a mixture of experts on PyTorch, against GShard's einsums under autograd."""

from __future__ import annotations

import sys

import mithril as ml
import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import BLOCKS_KEPT, Limit, interleave, ratio, report, settle
from benchmarks.moe import BALANCE, MoeSizes, Z, asked, data_of, model
from benchmarks.sides import Functions, planned
from benchmarks.torch_sides import VERSION, Eager, Ours, check_sides, take_over

LIMIT = 1.0


class Stack(nn.Module):
    """Linear layers of all experts."""

    def __init__(self, experts: int, inner: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, out, inner))
        self.bias = nn.Parameter(torch.empty(experts, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.transpose(1, 2))


class Moe(nn.Module):
    """Router, one-hot dispatch, experts and combination, to the loss."""

    def __init__(self, sizes: MoeSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.experts = nn.ModuleDict(
            {
                "in": Stack(sizes.experts, sizes.width, sizes.hidden),
                "out": Stack(sizes.experts, sizes.hidden, sizes.width),
            }
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        sizes = self.sizes
        logits = self.router(x)
        odds = functional.softmax(logits, -1)
        gates, chosen = torch.topk(odds, sizes.top_k)
        gates = gates / gates.sum(-1, keepdim=True) if sizes.top_k > 1 else gates
        combine = self.combine(gates, chosen)
        spread = (combine > 0).to(x.dtype)
        rows = torch.einsum("gnec,gnd->egcd", spread, x)
        flat = rows.reshape(sizes.experts, -1, sizes.width)
        made = self.experts["out"](functional.relu(self.experts["in"](flat)))
        y = torch.einsum("gnec,egcd->gnd", combine, made.view_as(rows))
        share = functional.one_hot(chosen, sizes.experts).float().mean((0, 1, 2))
        balance = sizes.experts * (share * odds.mean((0, 1))).sum()
        z = torch.logsumexp(logits, -1).square().mean()
        return functional.mse_loss(y, target) + BALANCE * balance + Z * z

    def combine(self, gates: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the weight of every token in every place, [groups, tokens, experts, places]."""
        sizes = self.sizes
        groups, tokens, choices = chosen.shape
        by_round = functional.one_hot(chosen.transpose(1, 2).flatten(1), sizes.experts)
        position = ((by_round.cumsum(1) - 1) * by_round).sum(-1)
        fits = position < sizes.capacity
        place = functional.one_hot(torch.where(fits, position, 0), sizes.capacity)
        weight = gates.transpose(1, 2).flatten(1) * fits
        pairs = (weight.unsqueeze(-1) * by_round).unsqueeze(-1) * place.unsqueeze(2)
        return pairs.view(groups, choices, tokens, *pairs.shape[2:]).sum(1)


def contestants(sizes: MoeSizes) -> Functions:
    """Return both sides, after a check that they give the same numbers."""
    backend, data = ml.TorchBackend(device="cpu"), data_of(sizes)
    inputs = {name: backend.array(x) for name, x in data.items()}
    mithril = planned(Ours, model(sizes), backend, inputs)
    module = take_over(Moe(sizes), mithril.params, "moe.")
    eager = Eager(module, tuple(torch.tensor(x) for x in data.values()))
    check_sides(mithril, eager, "moe.")
    return {"mithril": mithril.step, "eager": eager.step}


def main() -> int:
    sizes, rounds = asked(__doc__)
    settle("benchmarks.torch_moe", BLOCKS_KEPT)
    times = interleave(contestants(sizes), rounds, warm_up=5)
    limits = [Limit("mithril to eager", ratio(times, "mithril", "eager"), LIMIT)]
    return report(f"{sizes}, {VERSION}, forward and backward", times, limits)


if __name__ == "__main__":
    sys.exit(main())
