"""The models of the matrix as one writes them in PyTorch, from inputs and targets to the loss.

Parameters are called as in Mithril's models; those of an LSTM as `nn.LSTM` has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import torch_by_hand
from benchmarks.matrix.cases import Row, Sizes
from benchmarks.matrix.models import (
    GROUPS,
    by_hand_name,
    gpt_sizes,
    mlp_sizes,
    moe_sizes,
    resnet_blocks,
    resnet_norms,
)
from benchmarks.moe import BALANCE, MoeSizes, Z
from benchmarks.torch_moe import Moe

LSTM_NAMES = {
    "input.weight": "weight_ih", "input.bias": "bias_ih",
    "hidden.weight": "weight_hh", "hidden.bias": "bias_hh",
}  # fmt: skip


def make_module(row: Row, params: Mapping[str, np.ndarray], gathering: bool = False) -> nn.Module:
    """Return the module of a row with Mithril's parameters, by Mithril's names.

    Args:
        row: what it is.
        params: the parameters.
        gathering: whether a mixture of experts finds its tokens by indices, not by one-hot einsums.
    """
    s, module = row.sizes, None
    if row.model == "mlp":
        module = torch_by_hand.MlpModel(mlp_sizes(s))
    elif row.model in ("gpt", "long-sequence"):
        module = torch_by_hand.Gpt(s["vocabulary"], gpt_sizes(s))
    elif row.model == "llama":
        module = torch_by_hand.Llama(s["vocabulary"], gpt_sizes(s), s["key_heads"])
    elif row.model == "moe":
        module = (GatheringMoe if gathering else Moe)(moe_sizes(s))
    else:
        module = {"vit": Vit, "unet": UNet, "lstm": Lstm}.get(row.model, ResNet)(s)
    named = {name_in_module(name): torch.tensor(x) for name, x in params.items()}
    own = module.state_dict()
    state = {n: x if n not in named else named[n].view(x.shape) for n, x in own.items()}
    assert named.keys() <= own.keys(), f"{sorted(named.keys() - own.keys())} are not in {row.model}"
    module.load_state_dict(state)
    return module


def name_in_module(name: str) -> str:
    """Return the name by hand of one of Mithril's parameters."""
    found = re.fullmatch(r"lstm\.layer_(\d+)\.(.*)", name)
    if found is None:
        return by_hand_name(name)
    return f"lstm.{LSTM_NAMES[found[2]]}_l{found[1]}"


def list_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a module that FSDP gathers one after another."""
    blocks = getattr(module, "blocks", None) or getattr(module, "layers", None)
    return [*(blocks or [m for m in module.children() if isinstance(m, Twice)])]


# ------------------------------------------------------------------ ViT


class Attention(torch_by_hand.Attention):
    """The first positions see all."""

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        batch = len(x)
        q, k, v = (
            part(given).unflatten(2, (-1, self.head)).transpose(1, 2)
            for part, given in ((self.q, x[:, :count]), (self.k, x), (self.v, x))
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.o(mixed.transpose(1, 2).reshape(batch, count, -1))


class VitBlock(torch_by_hand.Block):
    """A block that makes the first positions alone, since the last one's others nobody reads."""

    def __init__(self, s: Sizes) -> None:
        super().__init__(gpt_sizes({**s, "context": 0}))
        self.attn = Attention(s["width"], s["heads"])

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        x = x[:, :count] + self.attn(self.norm1(x), count)
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, s["width"], s["patch"], s["patch"])
        self.first = nn.Parameter(torch.empty(1, 1, s["width"]))
        self.at = nn.Embedding((s["size"] // s["patch"]) ** 2 + 1, s["width"])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.project(image).flatten(2).transpose(1, 2)
        first = self.first.expand(len(image), -1, -1)
        return torch.cat((first, patches), 1) + self.at.weight


class Vit(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.patches = Patches(s)
        self.blocks = []
        for i in range(s["layers"]):
            block = VitBlock(s)
            self.blocks.append(block)
            self.add_module(f"block{i}", block)
        self.norm, self.head = nn.LayerNorm(s["width"]), nn.Linear(s["width"], s["classes"])

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.patches(image)
        for block in self.blocks[:-1]:
            x = block(x, x.shape[1])
        x = self.blocks[-1](x, 1)
        return functional.cross_entropy(self.head(self.norm(x[:, 0])), target)


# ------------------------------------------------------------------ ResNet


class Shortcut(nn.Conv2d):
    """A 1×1 convolution with a stride.

    With PyTorch 2.13, oneDNN writes past the end of its weight's gradient where channels lie last,
    so what it skips is skipped before.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_contiguous():
            return super().forward(x)
        down, right = self.stride
        return functional.conv2d(x[:, :, ::down, ::right], self.weight)


class ResNet(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self._blocks = resnet_blocks(s)
        self.stem_conv = nn.Conv2d(3, s["width"], 3, padding=1, bias=False)
        for name, channels in resnet_norms(s).items():
            self.add_module(name, nn.BatchNorm2d(channels))
        for name, before, after, stride in self._blocks:
            shapes = {"conv1": (before, after, 3, stride), "conv2": (after, after, 3, 1)}
            shapes |= {"short_conv": (before, after, 1, stride)} if before != after else {}
            for part, (inner, outer, kernel, step) in shapes.items():
                kind = Shortcut if part == "short_conv" else nn.Conv2d
                made = kind(inner, outer, kernel, step, kernel // 2, bias=False)
                self.add_module(f"{name}_{part}", made)
        self.head = nn.Linear(self._blocks[-1][2], s["classes"])

    def normed(self, conv: str, norm: str, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, norm)(getattr(self, conv)(x))

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.normed("stem_conv", "stem_norm", image), inplace=True)
        for name, before, after, _ in self._blocks:
            inner = self.normed(f"{name}_conv1", f"{name}_norm1", x)
            inner = functional.relu(inner, inplace=True)
            inner = self.normed(f"{name}_conv2", f"{name}_norm2", inner)
            if before != after:
                x = self.normed(f"{name}_short_conv", f"{name}_short_norm", x)
            inner += x
            x = functional.relu(inner, inplace=True)
        return functional.cross_entropy(self.head(x.mean((2, 3))), target)


# ------------------------------------------------------------------ U-Net and LSTM


class Twice(nn.Module):
    def __init__(self, before: int, filters: int) -> None:
        super().__init__()
        self.conv_0 = nn.Conv2d(before, filters, 3, padding=1, bias=False)
        self.conv_1 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm_0, self.norm_1 = (nn.GroupNorm(GROUPS, filters) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.norm_0(self.conv_0(x)))
        return functional.silu(self.norm_1(self.conv_1(x)))


class UNet(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self._last = s["levels"] - 1
        filters = [s["width"] << level for level in range(s["levels"])]
        for level, (before, after) in enumerate(zip((3, *filters), filters, strict=False)):
            self.add_module(f"down_{level}", Twice(before, after))
        for level, (inner, outer) in enumerate(zip(filters[1:], filters, strict=False)):
            self.add_module(f"larger_{level}", nn.ConvTranspose2d(inner, outer, 2, 2))
            self.add_module(f"up_{level}", Twice(2 * outer, outer))
        self.head = nn.Conv2d(filters[0], 1, 1)

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x, kept = image, []
        for level in range(self._last + 1):
            x = getattr(self, f"down_{level}")(x)
            kept.append(x)
            x = x if level == self._last else functional.max_pool2d(x, 2)
        for level in reversed(range(self._last)):
            wide = getattr(self, f"larger_{level}")(x)
            x = getattr(self, f"up_{level}")(torch.cat((kept[level], wide), 1))
        return functional.binary_cross_entropy_with_logits(self.head(x), target)


class Lstm(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.table = nn.Embedding(s["vocabulary"], s["width"])
        self.lstm = nn.LSTM(s["width"], s["width"], s["layers"], batch_first=True)
        self.head = nn.Linear(s["width"], s["vocabulary"])

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.lstm(self.table(tokens))[0])
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


# ------------------------------------------------------------------ mixture of experts


class GatheringMoe(Moe):
    """A mixture of experts that finds tokens by indices: no products with one-hot tensors."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        s: MoeSizes = self.sizes
        logits = self.router(x)
        odds = functional.softmax(logits, -1)
        gates, chosen = torch.topk(odds, s.top_k)
        gates = gates / gates.sum(-1, keepdim=True) if s.top_k > 1 else gates
        made = self.work(x, chosen)
        groups, tokens, _ = x.shape
        y = (made.view(groups, s.top_k, tokens, -1) * gates.transpose(1, 2).unsqueeze(-1)).sum(1)
        counts = torch.bincount(chosen.flatten(), minlength=s.experts)
        balance = s.experts * (counts / chosen.numel() * odds.mean((0, 1))).sum()
        z = torch.logsumexp(logits, -1).square().mean()
        return functional.mse_loss(y, target) + BALANCE * balance + Z * z

    def work(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return what experts make of each choice, [groups * choices * tokens, width]."""
        s: MoeSizes = self.sizes
        groups, tokens, width = x.shape
        by_round = chosen.transpose(1, 2).flatten(1)
        ones = functional.one_hot(by_round, s.experts)
        position = (ones.cumsum(1) - 1).gather(2, by_round.unsqueeze(2)).squeeze(2)
        group = torch.arange(groups).unsqueeze(1)
        place = (by_round * groups + group) * s.capacity + position
        spare = s.experts * groups * s.capacity  # where tokens without room go
        place = torch.where(position < s.capacity, place, spare).flatten()
        token = (group * tokens + torch.arange(tokens).repeat(s.top_k)).flatten()
        source = torch.full((spare + 1,), groups * tokens)  # a row of zeros for empty places
        source[place] = token
        flat = torch.cat((x.reshape(-1, width), x.new_zeros(1, width)))
        rows = flat[source[:spare]].view(s.experts, -1, width)
        made = self.experts["out"](functional.relu(self.experts["in"](rows))).flatten(0, 1)
        return torch.cat((made, made.new_zeros(1, width)))[place]
