"""Peak memory and time of a deep GPT under memory budgets, beside checkpoints placed by hand.

Mithril keeps everything, recomputes every layer (`all`), what costs next to nothing (`selective`),
and keeps to fractions of what keeping everything takes. By hand, PyTorch checkpoints every block or
every other one with `torch.utils.checkpoint`, or saves products and attention and computes the rest
again (`create_selective_checkpoint_contexts`); JAX wraps blocks into `jax.checkpoint` with one of
its policies. Then Mithril is given what each of these takes at its peak: it may not be more than
3 % slower; and of Mithril's choices that are no slower than a peer, the smallest may not take more
than 3 % more memory.

On PyTorch memory is what its allocator gave at most while a step ran, and what was held before; on
JAX arguments, results and temporaries of `memory_analysis()`. All sides run interleaved, after a
check that they give the same numbers. Fractions that no choice keeps to are named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.errors import PlanError

from benchmarks.harness import Estimate, Limit, interleave, ratio, report, settle
from benchmarks.sides import INPUTS, data_of

ASKED = (None, "all", "selective", 0.8, 0.6, 0.4, 0.3)
SLACK = 1.03
VOCABULARY = 512
OURS = "mithril "


@dataclass(frozen=True, eq=False)
class Side:
    """A way to run a step.

    Args:
        step: runs it, and waits.
        peak: returns the most bytes that are held while it runs.
        found: returns loss and gradients by name.
    """

    step: Callable[[], object]
    peak: Callable[[], int]
    found: Callable[[], tuple[float, dict[str, np.ndarray]]]


Make = Callable[[object], Side]


# ------------------------------------------------------------------ Mithril


def compile_side(sizes: Sizes, backend: ml.Backend, asked: object) -> Any:
    """Return a model compiled with what is asked of its memory, parameters and inputs."""
    inputs = {name: backend.array(x) for name, x in data_of(sizes, VOCABULARY).items()}
    model = with_loss(gpt(VOCABULARY, sizes))
    compiled = ml.compile(model, backend, shapes=inputs, checkpointing=asked)
    return compiled, compiled.randomize_params(0), inputs


def found_by(outputs: Any, gradients: Any) -> tuple[float, dict[str, np.ndarray]]:
    named = {name.removeprefix("gpt."): x.numpy() for name, x in gradients.items()}
    return float(outputs["loss"].numpy()), named


# ------------------------------------------------------------------ PyTorch


def measure_allocations(step: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch's allocator has given while a step runs."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        made = step()
    del made
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    live = most = 0
    for _, change in sorted((event.start_ns(), event.nbytes()) for event in events):
        live += change
        most = max(most, live)
    return most


def torch_ours(sizes: Sizes) -> Make:
    backend = ml.TorchBackend(ml.Mesh(), device="cpu")

    def make(asked: object) -> Side:
        compiled, params, inputs = compile_side(sizes, backend, asked)
        one = backend.ones()

        def step() -> Any:
            return compiled.evaluate(params, inputs, {"loss": one})

        held = sum(
            x.shards.untyped_storage().nbytes() for x in (*params.values(), *inputs.values())
        )
        return Side(step, lambda: held + measure_allocations(step), lambda: found_by(*step()))

    return make


def torch_peers(sizes: Sizes, params: Mapping[str, np.ndarray]) -> dict[str, Side]:
    """Return the ways of PyTorch to recompute."""
    import torch
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    from benchmarks import torch_by_hand

    aten = torch.ops.aten
    saved = {
        aten.mm.default, aten.addmm.default, aten.bmm.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }  # fmt: skip

    def choose(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        keeps = op in saved
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    def selective() -> Any:
        return create_selective_checkpoint_contexts(choose)

    class Gpt(torch_by_hand.Gpt):
        """The GPT, some of whose blocks are checkpoints."""

        def __init__(self, every: int, is_selective: bool) -> None:
            super().__init__(VOCABULARY, sizes)
            self.every, self.more = every, {"context_fn": selective} if is_selective else {}

        def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
            for number, block in enumerate(self.blocks):
                if self.every and number % self.every == 0:
                    x = checkpoint(block, x, use_reentrant=False, **self.more)
                else:
                    x = block(x)
            logits = self.head(self.norm(x))
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    given = tuple(
        torch.tensor(data_of(sizes, VOCABULARY)[name], dtype=torch.int64) for name in INPUTS
    )

    def make(every: int, is_selective: bool = False) -> Side:
        module = Gpt(every, is_selective)
        module.load_state_dict({name: torch.tensor(x) for name, x in params.items()})

        def step() -> Any:
            module.zero_grad(set_to_none=True)
            loss = module(*given)
            loss.backward()
            return loss

        def peak() -> int:
            step()
            module.zero_grad(set_to_none=True)
            held = sum(p.untyped_storage().nbytes() for p in (*module.parameters(), *given))
            return held + measure_allocations(step)

        def found() -> tuple[float, dict[str, np.ndarray]]:
            loss = step().item()
            return loss, {n: p.grad.numpy().copy() for n, p in module.named_parameters()}

        return Side(step, peak, found)

    return {
        "torch, no checkpoint": make(0),
        "torch, every block": make(1),
        "torch, every other block": make(2),
        "torch, selective": make(1, is_selective=True),
    }


# ------------------------------------------------------------------ JAX


def jax_ours(sizes: Sizes) -> Make:
    import jax

    backend = ml.JaxBackend(ml.Mesh())

    def make(asked: object) -> Side:
        compiled, params, inputs = compile_side(sizes, backend, asked)
        one = backend.ones()

        def step() -> Any:
            outputs, gradients = compiled.evaluate(params, inputs, {"loss": one})
            jax.block_until_ready([x.shards for x in (*outputs.values(), *gradients.values())])
            return outputs, gradients

        def peak() -> int:
            step()
            executable = compiled._evaluator.latest.executable
            handles = {name: x.shards for name, x in {**params, **inputs}.items()}
            ports = executable.program.inputs
            return total(executable.memory([handles.get(p.name, one.shards) for p in ports]))

        return Side(step, peak, lambda: found_by(*step()))

    return make


def total(analysis: Any) -> int:
    """Return the bytes of a program of XLA."""
    made = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(analysis.argument_size_in_bytes + made + analysis.temp_size_in_bytes)


def jax_peers(sizes: Sizes, params: Mapping[str, np.ndarray]) -> dict[str, Side]:
    """Return the ways of JAX to recompute."""
    import jax
    import jax.numpy as jnp

    from benchmarks import jax_by_hand

    placed = {name: jnp.asarray(x) for name, x in params.items()}
    given = [jnp.asarray(data_of(sizes, VOCABULARY)[name]) for name in INPUTS]
    policies = jax.checkpoint_policies

    def make(policy: Any, *, is_checkpointed: bool = True) -> Side:
        def block(params: Any, x: Any, name: str) -> Any:
            return jax_by_hand.block(params, name, x, sizes.heads, jax_by_hand.unconstrained)

        def loss(params: Any, tokens: Any, target: Any) -> Any:
            x = params["embed.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
            for i in range(sizes.layers):
                run = block
                if is_checkpointed:
                    run = jax.checkpoint(block, policy=policy, static_argnums=2)
                x = run(params, x, f"block{i}")
            return jax_by_hand.head_loss(params, x, target)

        function = jax.jit(jax.value_and_grad(loss))

        def step() -> Any:
            return jax.block_until_ready(function(placed, *given))

        def peak() -> int:
            return total(function.lower(placed, *given).compile().memory_analysis())

        def found() -> tuple[float, dict[str, np.ndarray]]:
            value, slopes = step()
            return float(value), {name: np.asarray(x) for name, x in slopes.items()}

        return Side(step, peak, found)

    return {
        "jax, no checkpoint": make(None, is_checkpointed=False),
        "jax, nothing saveable": make(policies.nothing_saveable),
        "jax, dots saveable": make(policies.dots_saveable),
        "jax, dots without batch": make(policies.dots_with_no_batch_dims_saveable),
    }


# ------------------------------------------------------------------ comparing


def check_same(sides: Mapping[str, Side]) -> None:
    """Refuse sides that give different numbers."""
    (loss, slopes), *others = (side.found() for side in sides.values())
    for name, (other, found) in zip(list(sides)[1:], others, strict=True):
        np.testing.assert_allclose(other, loss, rtol=1e-5, err_msg=name)
        assert found.keys() == slopes.keys(), name
        for key, slope in slopes.items():
            np.testing.assert_allclose(found[key], slope, rtol=2e-4, atol=2e-5, err_msg=key)


def make_ours(make: Make, asked: object) -> Side | None:
    try:
        return make(asked)
    except PlanError as error:
        print(f"  {OURS}{asked}: {error}")
        return None


def compare(make: Make, peers: Mapping[str, Side], rounds: int) -> int:
    """Print peaks and times of all sides and the limits on Mithril's; return 0 if they are met."""
    sides = {f"{OURS}{asked or 'none'}": make_ours(make, asked) for asked in ASKED}
    beside = {name: peer.peak() for name, peer in peers.items()}
    sides |= {f"{OURS}at the peak of {name}": make_ours(make, f"{size} B")
              for name, size in beside.items()}  # fmt: skip
    contestants = {name: side for name, side in sides.items() if side is not None} | dict(peers)
    check_same(contestants)
    peaks = {name: side.peak() for name, side in contestants.items()}
    for name, size in peaks.items():
        print(f"  {name:<46} {size / 2**20:9.1f} MiB")
    times = interleave({name: side.step for name, side in contestants.items()}, rounds, warm_up=1)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    limits = []
    for name in peers:
        at_peak = f"{OURS}at the peak of {name}"
        if at_peak in times:
            limits.append(Limit(f"time {at_peak}", ratio(times, at_peak, name), SLACK))
        no_slower = [peaks[n] for n in times if n.startswith(OURS) and medians[n] <= medians[name]]
        share = min(no_slower, default=float("inf")) / peaks[name]
        limits.append(Limit(f"peak at the time of {name}", Estimate(share, share, share), SLACK))
    return report("recomputation", times, limits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    settle("benchmarks.recompute")
    heads = max(given.width // 64, 1)
    sizes = Sizes(given.layers, given.width, heads, 4 * given.width, given.context, given.batch)
    ours, theirs = (torch_ours, torch_peers) if given.backend == "torch" else (jax_ours, jax_peers)
    print(f"GPT {sizes}, vocabulary {VOCABULARY}, forward and backward on {given.backend}")
    backend = ml.NumpyBackend()
    _, params, _ = compile_side(sizes, backend, None)
    plain = {name.removeprefix("gpt."): x.numpy() for name, x in params.items()}
    return compare(ours(sizes), theirs(sizes, plain), given.rounds)


if __name__ == "__main__":
    sys.exit(main())
