"""A training step on JAX as Mithril runs it and as one writes it by hand, ready to be compared.

Both sides are jitted once, get arrays that lie on the devices already, and wait for every array
they return. A side's compile time is that of its first call after `jax.clear_caches()`: tracing,
lowering, XLA, and one step. Planning is not part of it, and nothing is read from a cache on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np

from benchmarks.harness import Estimate, Limit, interleave, ratio
from benchmarks.numpy_mlp import check_equal
from benchmarks.sides import Functions, Mithril

COMPILED = "/jax/core/compile/backend_compile_duration"
MESHES = {1: ml.Mesh(), 8: ml.Mesh(data=4, tensor=2)}
STEP_LIMITS = {1: 1.0, 8: 0.95}
COMPILE_LIMIT = 1.2
MEMORY_LIMIT = 1.0
VERSION = f"JAX {version('jax')}"


class Ours(Mithril):
    """Mithril's side."""

    def step(self) -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        """Return outputs and gradients."""
        outputs, gradients = self.evaluate()
        jax.block_until_ready([x.shards for x in (*outputs.values(), *gradients.values())])
        return outputs, gradients

    @property
    def executable(self) -> Any:
        """What `evaluate` runs. It is nobody's business but that of a benchmark."""
        assert self.compiled._evaluator.latest is not None
        return self.compiled._evaluator.latest.executable

    def in_order(self, handles: Mapping[str, Any], one: Any) -> list[Any]:
        """Return arguments of the program; what is neither parameter nor input is the gradient."""
        return [handles.get(port.name, one) for port in self.executable.program.inputs]

    def temporary_bytes(self) -> int:
        """Return how much memory XLA takes besides arguments and results."""
        handles = {name: x.shards for name, x in {**self.params, **self.inputs}.items()}
        return _temporary_bytes(self.executable.jitted, *self.in_order(handles, self.one.shards))


@dataclass(frozen=True, eq=False)
class ByHand:
    """The side written by hand.

    Args:
        function: jitted; returns the loss and the gradients of its first argument.
        arguments: parameters, and then inputs.
    """

    function: Any
    arguments: tuple[Any, ...]

    def step(self) -> tuple[jax.Array, Any]:
        """Return loss and gradients."""
        found: tuple[jax.Array, Any] = jax.block_until_ready(self.function(*self.arguments))
        return found

    def temporary_bytes(self) -> int:
        """Return how much memory XLA takes besides arguments and results."""
        return _temporary_bytes(self.function, *self.arguments)


def _temporary_bytes(function: Any, *arguments: Any) -> int:
    size: int = function.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    return size


def plain(params: Mapping[str, ml.Array], prefix: str = "") -> dict[str, jax.Array]:
    """Return parameters as whole arrays of JAX on its first device."""
    return {name.removeprefix(prefix): jnp.asarray(x.numpy()) for name, x in params.items()}


def check_sides(mithril: Ours, by_hand: ByHand, prefix: str = "") -> None:
    """Refuse sides that give different numbers, or gradients that lie differently on devices."""
    found, (loss, slopes) = mithril.step(), by_hand.step()
    named = {f"{prefix}{name}": slope for name, slope in slopes.items()}
    check_equal(found, (np.asarray(loss), {name: np.asarray(x) for name, x in named.items()}))
    for name, slope in named.items():
        lies, expected = found[1][name].shards.sharding, slope.sharding
        assert lies.is_equivalent_to(expected, slope.ndim), f"{name}: {lies}, {expected}"


# ------------------------------------------------------------------ what is compared


def compile_times(functions: Functions, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of first calls, of every function in every round."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        return interleave({name: _afresh(f) for name, f in functions.items()}, rounds, warm_up=1)
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def _afresh(function: Callable[[], object]) -> Callable[[], None]:
    """Return a function that compiles before it runs, and fails if it did not."""

    def first_call() -> None:
        compiles = []

        def count(event: str, seconds: float, **_: object) -> None:
            if event == COMPILED:
                compiles.append(seconds)

        jax.clear_caches()
        jax.monitoring.register_event_duration_secs_listener(count)
        function()
        jax.monitoring.unregister_event_duration_listener(count)
        assert compiles, "nothing was compiled: what was timed is no first call"

    return first_call


def compare(
    what: str, mithril: Ours, by_hand: ByHand, step_limit: float, rounds: int, compiles: int
) -> tuple[dict[str, list[float]], list[Limit]]:
    """Return times of steps and first calls, and the limits on them and on temporary memory.

    Args:
        what: the model's name, for the report.
        mithril: one side.
        by_hand: the other side.
        step_limit: how long a step may take, by hand being 1.
        rounds: how often both take a step.
        compiles: how often both are compiled.
    """
    sides: Functions = {"mithril": mithril.step, "by hand": by_hand.step}
    times = interleave(sides, rounds)
    first = compile_times({f"{name}, first call": f for name, f in sides.items()}, compiles)
    memory = mithril.temporary_bytes() / by_hand.temporary_bytes()
    limits = [
        Limit(f"step of the {what}", ratio(times, "mithril", "by hand"), step_limit),
        Limit("compile", ratio(first, *first), COMPILE_LIMIT),
        Limit("temporary memory", exactly(memory), MEMORY_LIMIT),
    ]
    return {**times, **first}, limits


def exactly(number: float) -> Estimate:
    """Return a number that is the same in every run; no slack is given to it."""
    return Estimate(number, number, number)
