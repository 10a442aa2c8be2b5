"""What the benchmarks of the mixture of experts share: the model, its sizes and its data.

The other sides are GShard's formulation, as one writes it: tokens go to their experts and back by
einsums with a one-hot tensor [groups, tokens, experts, capacity].
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

import mithril as ml
import numpy as np
from mithril.ir import Tensor
from mithril.ops import mean

BALANCE, Z = 0.01, 0.001


@dataclass(frozen=True, slots=True)
class MoeSizes:
    """Sizes of a mixture of experts with biases and relu."""

    experts: int = 8
    width: int = 256
    hidden: int = 1024
    top_k: int = 2
    capacity_factor: float | None = 1.25
    batch: int = 8
    context: int = 128

    @property
    def capacity(self) -> int:
        """Places of an expert in a group."""
        if self.capacity_factor is None:
            return self.context
        return math.ceil(self.capacity_factor * self.top_k * self.context / self.experts)


def asked(description: str | None) -> tuple[MoeSizes, int]:
    """Return what stands on the command line: sizes, and how many rounds to time."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--dropless", action="store_true", help="room for all tokens on both sides")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    sizes = MoeSizes(given.experts)
    return replace(sizes, capacity_factor=None) if given.dropless else sizes, given.rounds


@ml.layer
def Loss(input: Tensor, target: Tensor, balance: Tensor, z: Tensor) -> Tensor:  # noqa: N802
    """The mean squared error with the losses of the router."""
    away = input - target
    return mean(away * away) + balance * BALANCE + z * Z


def model(sizes: MoeSizes, **options: object) -> ml.Model:
    """Return a mixture of experts with its loss."""
    moe = ml.MoE(
        sizes.experts, sizes.hidden, sizes.top_k, sizes.capacity_factor, activation="relu",
        name="moe", **options,
    )  # fmt: skip
    made = ml.Model()
    made |= moe(input="x", output="y", load_balancing_loss="balance", router_z_loss="z")
    made |= Loss()(input="y", target="target", balance="balance", z="z", output="loss")
    return made


def data_of(sizes: MoeSizes) -> dict[str, np.ndarray]:
    """Return inputs and targets."""
    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.context, sizes.width)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name in ("x", "target")}
