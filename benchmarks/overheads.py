"""What Mithril's own Python takes: one tiny layer, eager functions, and inputs that are NumPy arrays.

`evaluate` of a linear layer of 4 by 4, outputs and gradients of its parameters, against the same by
hand in the framework; the same of 24 layers, with the input as an array of NumPy, against a call by
hand that is given it, too; and functions that run at once on arrays of 64 by 64 that are there.
Nothing here takes time to compute, so what is counted is what stands around it. Checked first: the
same results.

    python -m benchmarks.overheads --backend jax
"""

from __future__ import annotations

import argparse
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np

from benchmarks.harness import BLOCKS_KEPT, Estimate, Limit, estimate, interleave, ratio, settle
from benchmarks.harness import report as print_report
from tests.tolerances import TOLERANCE

WIDTH, SIDE = 4, 64
DEPTHS = {"one layer": 1, "24 layers, NumPy inputs": 24}
LAYER_LIMITS = {"numpy": 1.15, "jax": 1.15, "torch": 1.0, "mlx": 1.0}
EAGER_LIMITS = {"numpy": 15.0, "jax": 60.0, "torch": 15.0}
"""Microseconds; nobody has said what MLX may take."""
EAGER: Mapping[str, Callable[[Any], object]] = {
    "x + x": lambda x: x + x,
    "x * 2.0": lambda x: operator.mul(x, 2.0),
    "x @ x": lambda x: x @ x,
}
OURS, THEIRS = "mithril, ", "by hand, "
IN_A_ROW = 50
"""Calls that are timed as one: after fewer the processor is still busy with what ran before."""

COMPUTES_BESIDE = ("jax", "mlx")
"""Backends whose results are waited for, by hand as by us."""

Weights = list[tuple[np.ndarray, np.ndarray]]
Step = Callable[[], Sequence[Any]]
"""Returns the output and all gradients, computed: of each layer's weight and bias in turn."""


@dataclass(frozen=True, slots=True)
class Case:
    """Layers one after another, as NumPy arrays.

    Args:
        weights: weight and bias of each.
        x: what enters the first.
        dy: the gradient of what leaves the last.
        is_numpy: whether the input is handed over as an array of NumPy each time.
    """

    weights: Weights
    x: np.ndarray
    dy: np.ndarray
    is_numpy: bool


def draw(depth: int, is_numpy: bool) -> Case:
    """Return a case with random numbers."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 2

    weights = [(some(WIDTH, WIDTH), some(WIDTH)) for _ in range(depth)]
    return Case(weights, some(WIDTH, WIDTH), some(WIDTH, WIDTH), is_numpy)


# ------------------------------------------------------------------ sides


def with_mithril(backend: ml.Backend, case: Case) -> Step:
    """Return `evaluate` as a user calls it."""
    model = ml.Model()
    for i in range(len(case.weights)):
        last = i == len(case.weights) - 1
        model |= ml.Linear(WIDTH, name=f"l{i}")(input=f"x{i}", output="y" if last else f"x{i + 1}")
    compiled = ml.compile(model, backend, shapes={"x0": case.x.shape})
    params = {
        f"l{i}.{name}": backend.array(value)
        for i, pair in enumerate(case.weights)
        for name, value in zip(("weight", "bias"), pair, strict=True)
    }
    x = case.x if case.is_numpy else backend.array(case.x)
    seeds, is_beside = {"y": backend.array(case.dy)}, backend.name in COMPUTES_BESIDE

    def step() -> Sequence[Any]:
        outputs, gradients = compiled.evaluate(params, {"x0": x}, seeds)
        made = [outputs["y"], *gradients.values()]
        if is_beside:
            backend.engine.wait_for([array.shards for array in made])
        return made

    return step


def with_numpy(case: Case) -> Step:
    """Return a forward and backward as one writes them by hand."""

    def step() -> Sequence[Any]:
        held, x = [], case.x
        for weight, bias in case.weights:
            held.append(x)
            x = x @ weight.T
            x += bias
        gradients, dy = [], case.dy
        for i in reversed(range(len(held))):
            gradients += [dy.sum(0), dy.T @ held[i]]
            if i:
                dy = dy @ case.weights[i][0]
        return [x, *reversed(gradients)]

    return step


def with_jax(case: Case) -> Step:
    """Return a jitted `jax.vjp`."""
    import jax
    import jax.numpy as jnp

    def forward(weights: Any, x: Any) -> Any:
        for weight, bias in weights:
            x = x @ weight.T + bias
        return x

    @jax.jit
    def both(weights: Any, x: Any, dy: Any) -> Any:
        y, back = jax.vjp(lambda weights: forward(weights, x), weights)
        return y, back(dy)[0]

    weights, dy = jax.tree.map(jnp.asarray, (case.weights, case.dy))
    x = case.x if case.is_numpy else jnp.asarray(case.x)

    def step() -> Sequence[Any]:
        y, gradients = jax.block_until_ready(both(weights, x, dy))
        return [y, *(g for pair in gradients for g in pair)]

    return step


def with_torch(case: Case) -> Step:
    """Return eager layers under autograd."""
    import torch
    from torch.nn import functional

    weights = [[torch.tensor(w, requires_grad=True) for w in pair] for pair in case.weights]
    given, dy = torch.tensor(case.x), torch.tensor(case.dy)

    def step() -> Sequence[Any]:
        x = torch.from_numpy(case.x) if case.is_numpy else given
        for pair in weights:
            for w in pair:
                w.grad = None
            x = functional.linear(x, *pair)
        x.backward(dy)
        return [x.detach(), *(w.grad for pair in weights for w in pair)]

    return step


def with_mlx(case: Case) -> Step:
    """Return `mx.vjp`, computed at once; the gradients of a sum of products are those of its factors."""
    import mlx.core as mx

    weights = [mx.array(w) for pair in case.weights for w in pair]
    given, dy = mx.array(case.x), mx.array(case.dy)

    def step() -> Sequence[Any]:
        x = mx.array(case.x) if case.is_numpy else given

        def forward(*weights: Any) -> Any:
            y = x
            for i in range(0, len(weights), 2):
                y = mx.addmm(weights[i + 1], y, weights[i].T)
            return y

        (y,), gradients = mx.vjp(forward, weights, [dy])
        mx.eval(y, gradients)
        return [y, *gradients]

    return step


BY_HAND: dict[str, Callable[[Case], Step]] = {
    "numpy": with_numpy,
    "jax": with_jax,
    "torch": with_torch,
    "mlx": with_mlx,
}


def contestants(backend: ml.Backend) -> dict[str, Step]:
    """Return both sides of each case, after a check that they give the same."""
    sides: dict[str, Step] = {}
    for name, depth in DEPTHS.items():
        case = draw(depth, depth > 1)
        ours, theirs = with_mithril(backend, case), BY_HAND[backend.name](case)
        for mine, other in zip(ours(), theirs(), strict=True):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other), *TOLERANCE["float32"])
        sides |= {OURS + name: ours, THEIRS + name: theirs}
    return sides


def eager(backend: ml.Backend) -> dict[str, Callable[[], Any]]:
    """Return functions that run at once, each until its result is there."""
    x = backend.array(np.ones((SIDE, SIDE), np.float32))

    def run(function: Callable[[Any], Any]) -> Callable[[], Any]:
        if backend.name not in COMPUTES_BESIDE:
            return lambda: function(x)
        return lambda: backend.engine.wait_for([function(x).shards])

    return {name: run(function) for name, function in EAGER.items()}


# ------------------------------------------------------------------ running


def in_microseconds(seconds: Sequence[float]) -> Estimate:
    """Return times in microseconds."""
    return estimate([1e6 * one for one in seconds])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=tuple(BY_HAND), default="numpy")
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    settle("benchmarks.overheads", BLOCKS_KEPT)
    backend = ml.open_backend(given.backend)
    functions = {**contestants(backend), **eager(backend)}
    times = interleave(functions, given.rounds, warm_up=20, calls=IN_A_ROW)
    most = LAYER_LIMITS[given.backend]
    limits = [
        Limit(f"evaluate, {name}", ratio(times, OURS + name, THEIRS + name), most)
        for name in DEPTHS
    ]
    if given.backend in EAGER_LIMITS:
        most = EAGER_LIMITS[given.backend]
        limits += [Limit(name, in_microseconds(times[name]), most, "µs") for name in EAGER]
    return print_report(f"what stands around computing, {given.backend}", times, limits)


if __name__ == "__main__":
    sys.exit(main())
