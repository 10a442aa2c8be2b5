"""A whole step of training a GPT, AdamW included, against the strongest way to write it by hand.

PyTorch on one rank: eager autograd and `torch.optim.AdamW(fused=True)`. On 2 or 4: the same in
`DistributedDataParallel`; `fully_shard` (FSDP2) against ZeRO's stage 3; `ZeroRedundancyOptimizer`
with DDP against stage 1. JAX on one device: `jax.value_and_grad` and `optax.adamw` in one donated
`jax.jit`. Losses of the first steps are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, with_loss

from benchmarks.harness import BLOCKS_KEPT, Limit, interleave, ratio, report, settle
from benchmarks.sides import INPUTS, SIZES, VOCABULARIES, Data, Functions, Times, data_of, sizes_of
from tests.tolerances import TOLERANCE

RATE, DECAY = 1e-4, 0.01
LIMITS = {
    ("mithril", "eager, fused AdamW"): 1.0,
    ("mithril", "optax, donated"): 1.0,
    ("mithril, data", "DDP, fused AdamW"): 0.9,
    ("mithril, zero 3", "FSDP2, fused AdamW"): 0.8,
    ("mithril, zero 1", "DDP, ZeroRedundancyOptimizer"): 0.9,
}
CHECKED = 3
"""Steps whose losses are compared."""


class Ours:
    """Mithril's side.

    Args:
        backend: where it runs.
        sizes: of the GPT.
        vocabulary: how many tokens there are.
        data: tokens and targets.
        zero: stage of ZeRO.
    """

    def __init__(
        self, backend: ml.Backend, sizes: Sizes, vocabulary: int, data: Data, zero: int = 0
    ) -> None:
        split = ml.P("data") if "data" in backend.mesh.names else ml.P()
        self.batch = {name: backend.array(x, sharding=split) for name, x in data.items()}
        optimizer = ml.optim.adamw(RATE, weight_decay=DECAY)
        model = with_loss(gpt(vocabulary, sizes))
        self.run = ml.train_step(model, backend, optimizer, shapes=self.batch, zero=zero)
        self.state = self.run.init(seed=0)

    def step(self) -> ml.Metrics:
        """Make a step; its results may not be there yet."""
        self.state, metrics = self.run(self.state, self.batch)
        return metrics

    def loss(self) -> float:
        """Make a step, and return its loss."""
        return float(self.step()["loss"].item())

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, as they are now."""
        return {name.removeprefix("gpt."): x.numpy() for name, x in self.state.params.items()}


def check(ours: Callable[[], float], theirs: Callable[[], float], name: str) -> None:
    """Refuse sides whose losses differ."""
    pairs = [(ours(), theirs()) for _ in range(CHECKED)]
    np.testing.assert_allclose(*zip(*pairs, strict=True), *TOLERANCE["float32"], err_msg=name)


# ------------------------------------------------------------------ PyTorch


def torch_side(module: Any, inputs: tuple[Any, ...], optimizer: Any) -> Callable[[], Any]:
    """Return a step of autograd and an optimiser."""

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = module(*inputs)
        loss.backward()
        optimizer.step()
        return loss

    return step


def fused(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, RATE, weight_decay=DECAY, fused=True)


def torch_alone(sizes: Sizes, vocabulary: int) -> Functions:
    """Return the contestants on one rank."""
    import torch

    from benchmarks import torch_by_hand

    data = data_of(sizes, vocabulary)
    ours = Ours(ml.TorchBackend(device="cpu"), sizes, vocabulary, data)
    module = torch_by_hand.Gpt(vocabulary, sizes)
    module.load_state_dict({n: torch.tensor(x) for n, x in ours.parameters().items()})
    inputs = tuple(torch.tensor(data[name], dtype=torch.int64) for name in INPUTS)
    eager = torch_side(module, inputs, fused(module.parameters()))
    check(ours.loss, lambda: float(eager().detach()), "eager")
    return {"mithril": ours.step, "eager, fused AdamW": eager}


def torch_spread(sizes: Sizes, vocabulary: int, ranks: int) -> Functions:
    """Return the contestants of a rank of a job."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks import torch_by_hand

    data, found = data_of(sizes, vocabulary), {}
    backend = ml.TorchBackend(
        ml.Mesh(data=ranks), device="cpu"
    )  # which starts the processes' group
    whole = tuple(torch.tensor(data[name], dtype=torch.int64) for name in INPUTS)
    mine = tuple(x.chunk(ranks)[dist.get_rank()] for x in whole)
    devices = init_device_mesh("cpu", (ranks,))

    def module(ours: Ours) -> torch_by_hand.Gpt:
        made = torch_by_hand.Gpt(vocabulary, sizes)
        made.load_state_dict({n: torch.tensor(x) for n, x in ours.parameters().items()})
        return made

    def fsdp(made: torch_by_hand.Gpt) -> Callable[[], Any]:
        for part in made.modules():
            if isinstance(part, torch_by_hand.Block):
                fully_shard(part, mesh=devices)
        fully_shard(made, mesh=devices)
        return torch_side(made, mine, fused(made.parameters()))

    def ddp(made: torch_by_hand.Gpt) -> Callable[[], Any]:
        wrapped = DistributedDataParallel(made)
        return torch_side(wrapped, mine, fused(wrapped.parameters()))

    def redundancy(made: torch_by_hand.Gpt) -> Callable[[], Any]:
        wrapped = DistributedDataParallel(made)
        optimizer = ZeroRedundancyOptimizer(
            wrapped.parameters(), torch.optim.AdamW, lr=RATE, weight_decay=DECAY, fused=True
        )
        return torch_side(wrapped, mine, optimizer)

    def mean(step: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            loss = step().detach()
            dist.all_reduce(loss)
            return float(loss) / ranks

        return run

    sides = {
        "mithril, data": (0, "DDP, fused AdamW", ddp),
        "mithril, zero 3": (3, "FSDP2, fused AdamW", fsdp),
        "mithril, zero 1": (1, "DDP, ZeroRedundancyOptimizer", redundancy),
    }
    for name, (zero, other, make) in sides.items():
        ours = Ours(backend, sizes, vocabulary, data, zero)
        theirs = make(module(ours))
        check(ours.loss, mean(theirs), other)
        found |= {name: ours.step, other: theirs}
    return found


# ------------------------------------------------------------------ JAX


def on_jax(sizes: Sizes, vocabulary: int) -> Functions:
    """Return the contestants on one device of JAX."""
    import jax
    import jax.numpy as jnp
    import optax

    from benchmarks import jax_by_hand

    data = data_of(sizes, vocabulary)
    ours = Ours(ml.JaxBackend(), sizes, vocabulary, data)
    params = {name: jnp.asarray(x) for name, x in ours.parameters().items()}
    optimizer = optax.adamw(RATE, weight_decay=DECAY)
    gradients_of = jax_by_hand.gpt_step(sizes.heads)
    inputs = [jnp.asarray(data[name]) for name in INPUTS]

    def update(params: Any, state: Any, *inputs: Any) -> tuple[Any, Any, Any]:
        loss, gradients = gradients_of(params, *inputs)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    jitted = jax.jit(update, donate_argnums=(0, 1))
    kept: list[Any] = [params, optimizer.init(params)]

    def by_hand() -> Any:
        *kept[:], loss = jitted(*kept, *inputs)
        jax.block_until_ready(kept)
        return loss

    def mithril() -> object:
        metrics = ours.step()
        jax.block_until_ready([x.shards for x in ours.state.params.values()])
        return metrics

    check(ours.loss, lambda: float(by_hand()), "optax")
    return {"mithril": mithril, "optax, donated": by_hand}


# ------------------------------------------------------------------ all of it


def limits(times: Times) -> list[Limit]:
    """Return the limits on the contestants."""
    return [
        Limit(f"{of} to {to}", ratio(times, of, to), limit)
        for (of, to), limit in LIMITS.items()
        if {of, to} <= times.keys()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--width", choices=SIZES, default="256")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    settle("benchmarks.training", BLOCKS_KEPT if given.backend == "torch" else None)
    sizes, vocabulary = sizes_of(given.width, given.ranks), VOCABULARIES[given.width]
    if given.backend == "jax":
        times = interleave(on_jax(sizes, vocabulary), given.rounds, 5)
    elif given.times:
        from benchmarks.torch_sides import hand_in, together

        functions = torch_spread(sizes, vocabulary, given.ranks)
        hand_in(interleave(functions, given.rounds, 5, ready=together), given.times)
        return 0
    elif given.ranks == 1:
        times = interleave(torch_alone(sizes, vocabulary), given.rounds, 5)
    else:
        from benchmarks.torch_sides import in_job

        passed = ["--ranks", str(given.ranks), "--width", given.width]
        times = in_job("benchmarks.training", given.ranks, [*passed, "--rounds", str(given.rounds)])
    title = f"step of GPT {sizes}, vocabulary {vocabulary}, {given.backend}, {given.ranks} ranks"
    return report(title, times, limits(times))


if __name__ == "__main__":
    sys.exit(main())
