"""The sides of the benchmark of recomputation on PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mithril as ml
import numpy as np
import torch
from mithril.cli.gpt import Sizes
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from benchmarks import torch_by_hand
from benchmarks.recompute import VOCABULARY, Family, Side, compile_side, found_by
from benchmarks.sides import INPUTS, data_of
from benchmarks.torch_sides import count_peak

aten = torch.ops.aten
SAVED = {
    aten.mm.default, aten.addmm.default, aten.bmm.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}  # fmt: skip
"""What a selective checkpoint saves: products of matrices, and attention."""


def make_ours(sizes: Sizes, asked: object) -> Side:
    """Return Mithril's side."""
    backend = ml.TorchBackend(ml.Mesh(), device="cpu")
    compiled, params, inputs = compile_side(sizes, backend, asked)
    one = backend.ones()

    def step() -> Any:
        return compiled.evaluate(params, inputs, {"loss": one})

    def peak() -> int:
        held = [x.shards for x in (*params.values(), *inputs.values(), one)]
        return count_peak(step, lambda: held)

    return Side(step, peak, lambda: found_by(*step()))


class Gpt(torch_by_hand.Gpt):
    """The GPT, whose first `count` blocks are checkpoints; what these are told is in `more`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(VOCABULARY, sizes)
        self.count, self.more = 0, {}  # type: int, dict[str, Any]

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            if number < self.count:
                x = checkpoint(block, x, use_reentrant=False, **self.more)
            else:
                x = block(x)
        logits = self.head(self.norm(x))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def list_families(sizes: Sizes, params: Mapping[str, np.ndarray]) -> list[Family]:
    """Return the ways of PyTorch to recompute.

    Args:
        sizes: of the GPT.
        params: its parameters by name.
    """
    module = Gpt(sizes)
    module.load_state_dict({name: torch.tensor(x) for name, x in params.items()})
    data = data_of(sizes, VOCABULARY)
    given = tuple(torch.tensor(data[name], dtype=torch.int64) for name in INPUTS)

    def make(count: int, more: dict[str, Any]) -> Side:
        def step() -> Any:
            module.count, module.more = count, more
            module.zero_grad(set_to_none=True)
            loss = module(*given)
            loss.backward()
            return loss

        def peak() -> int:
            def held() -> list[torch.Tensor]:
                slopes = [p.grad for p in module.parameters() if p.grad is not None]
                return [*module.parameters(), *given, *slopes]

            return count_peak(step, held)

        def found() -> tuple[float, dict[str, np.ndarray]]:
            loss = step().item()
            return loss, {n: p.grad.numpy().copy() for n, p in module.named_parameters()}

        return Side(step, peak, found)

    selective = {"context_fn": lambda: create_selective_checkpoint_contexts(_choose)}
    return [
        Family("checkpoint", lambda count: make(count, {}), sizes.layers),
        Family("selective checkpoint", lambda count: make(count, selective), sizes.layers),
    ]


def _choose(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE
