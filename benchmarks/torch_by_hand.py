"""The benchmarks' models as one writes them in PyTorch: `nn.Module`, trained through autograd.

Parameters are called as in Mithril's models. On several ranks the GPT goes into
`DistributedDataParallel`, or through `parallelize_module` after Megatron: columns of the layers that
widen, rows of those that come back, activations whole in between.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from mithril.cli.gpt import Sizes
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in "qkvo")
        self.head = width // heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, -1, self.head).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attn = Attention(sizes.width, sizes.heads)
        self.mlp = Mlp(sizes.width, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """The GPT of `mithril.cli.gpt`, from tokens and targets to the mean cross-entropy."""

    def __init__(self, vocabulary: int, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.context, sizes.width)
        self.blocks = [Block(sizes) for _ in range(sizes.layers)]
        for i, block in enumerate(self.blocks):
            self.add_module(f"block{i}", block)
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


# ------------------------------------------------------------------ Llama


class GroupedAttention(nn.Module):
    """Attention with rotated queries and keys, and fewer key heads than query heads."""

    def __init__(self, sizes: Sizes, key_heads: int) -> None:
        super().__init__()
        self.head = sizes.width // sizes.heads
        narrow = key_heads * self.head
        self.q, self.o = (nn.Linear(sizes.width, sizes.width, bias=False) for _ in "qo")
        self.k, self.v = (nn.Linear(sizes.width, narrow, bias=False) for _ in "kv")
        rates = 10000.0 ** (-torch.arange(0, self.head, 2, dtype=torch.float64) / self.head)
        angles = torch.arange(sizes.context)[:, None] * torch.cat((rates, rates))
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        length = x.shape[-2]
        return x * self.cos[:length] + torch.cat((-second, first), -1) * self.sin[:length]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, -1, self.head).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(
            self.turn(q), self.turn(k), v, is_causal=True, enable_gqa=True
        )
        return self.o(mixed.transpose(1, 2).reshape(batch, length, -1))


class GatedMlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, sizes: Sizes, key_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(sizes.width, eps=1e-6) for _ in range(2))
        self.attn = GroupedAttention(sizes, key_heads)
        self.mlp = GatedMlp(sizes.width, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """The Llama of `training_cases`, from tokens and targets to the mean cross-entropy."""

    def __init__(self, vocabulary: int, sizes: Sizes, key_heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, sizes.width)
        self.blocks = [LlamaBlock(sizes, key_heads) for _ in range(sizes.layers)]
        for i, block in enumerate(self.blocks):
            self.add_module(f"block{i}", block)
        self.norm = nn.RMSNorm(sizes.width, eps=1e-6)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


# ------------------------------------------------------------------ MLP


class MlpModel(nn.Module):
    """The MLP of `numpy_mlp`, with relu, from inputs and targets to the mean cross-entropy."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        for i, layer in enumerate(self.layers):
            self.add_module(f"layer{i}", layer)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x))
        return functional.cross_entropy(self.layers[-1](x), target)


def tensor_parallel(model: Gpt, mesh: DeviceMesh) -> Gpt:
    """Split the blocks of a GPT over a mesh."""
    plan = {
        **{f"attn.{part}": ColwiseParallel() for part in "qkv"},
        "attn.o": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model
