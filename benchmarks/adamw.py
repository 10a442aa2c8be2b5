"""The update of AdamW alone: a GPT's or a Llama's parameters, against the optimisers of frameworks.

Mithril's side is a function of trees under `ml.jit` with `ops.adamw_step` for every parameter; old
parameters and moments are given up. On PyTorch the other side is `torch.optim.AdamW`, fused and
foreach, on JAX `optax.adamw` in one jitted function that is given the same, and on MLX
`mlx.optimizers.AdamW` under `mx.compile` and without. Gradients stay the same. Checked first: the
same parameters after three updates.

An update is as fast as memory is, and where arrays lie in it differs from process to process, by up
to a tenth of the time of either side. So all sides are timed in several processes, and what counts
of each is the median of its rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
from mithril import ops

from benchmarks.harness import BLOCKS_KEPT, Limit, interleave, ratio, report, settle
from benchmarks.sides import Times, leave, times_of_job
from tests.tolerances import TOLERANCE

LIMITS = {"torch": 1.0, "jax": 1.0, "mlx": 0.95}
RATE, DECAY = 1e-3, 0.01
Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, np.ndarray]


def gpt(layers: int = 4, width: int = 256, vocabulary: int = 1024, context: int = 128) -> Shapes:
    """Return the shapes of a GPT's parameters."""
    shapes: Shapes = {"embed": (vocabulary, width), "position": (context, width)}
    for i in range(layers):
        shapes |= {f"{i}.{name}": (width, width) for name in "qkvo"}
        shapes |= {f"{i}.{name}.bias": (width,) for name in "qkvo"}
        shapes |= {f"{i}.{name}": (width,) for name in ("gain1", "bias1", "gain2", "bias2")}
        shapes |= {f"{i}.in": (4 * width, width), f"{i}.in.bias": (4 * width,)}
        shapes |= {f"{i}.out": (width, 4 * width), f"{i}.out.bias": (width,)}
    return shapes | {"gain": (width,), "bias": (width,), "head": (vocabulary, width)}


def llama(layers: int = 6, width: int = 384, vocabulary: int = 2048, groups: int = 2) -> Shapes:
    """Return the shapes of a Llama's parameters: six heads in groups, no biases."""
    shapes: Shapes = {"embed": (vocabulary, width)}
    for i in range(layers):
        shapes |= {f"{i}.{name}": (width, width) for name in "qo"}
        shapes |= {f"{i}.{name}": (groups * width // 6, width) for name in "kv"}
        shapes |= {f"{i}.gain1": (width,), f"{i}.gain2": (width,)}
        shapes |= {f"{i}.gate": (1024, width), f"{i}.up": (1024, width), f"{i}.down": (width, 1024)}
    return shapes | {"gain": (width,), "head": (vocabulary, width)}


MODELS = {"gpt": gpt, "llama": llama}


def draw(shapes: Shapes) -> tuple[Arrays, Arrays]:
    """Return parameters and gradients."""
    rng = np.random.default_rng(0)
    first, second = (
        {
            name: rng.standard_normal(shape).astype(np.float32) * 0.1
            for name, shape in shapes.items()
        }
        for _ in range(2)
    )
    return first, second


# ------------------------------------------------------------------ sides


@dataclass(frozen=True, eq=False)
class Side:
    """Who updates.

    Args:
        step: updates once, and comes back when all is computed.
        read: returns the parameters.
    """

    step: Callable[[], object]
    read: Callable[[], Arrays]


def update(params: Any, gradients: Any, first: Any, second: Any, count: Any) -> tuple[Any, ...]:
    """Return parameters, moments and the number of updates after one more."""
    count = count + 1
    made = {
        name: ops.adamw_step(
            p, gradients[name], first[name], second[name], RATE, count, weight_decay=DECAY
        )
        for name, p in params.items()
    }
    return *({name: results[i] for name, results in made.items()} for i in range(3)), count


def on_mithril(name: str, params: Arrays, gradients: Arrays) -> Side:
    """Return Mithril's side."""
    backend = ml.open_backend(name)
    own, given = ({n: backend.array(x) for n, x in tree.items()} for tree in (params, gradients))
    zeros = [{n: backend.zeros(*x.shape) for n, x in params.items()} for _ in range(2)]
    state: list[Any] = [own, *zeros, backend.array(np.int32(0))]
    run = ml.jit(update, backend=backend, donate=(0, 2, 3))

    def step() -> None:
        state[:] = run(state[0], given, *state[1:])
        backend.engine.wait_for([x.shards for tree in state[:3] for x in tree.values()])

    return Side(step, lambda: {n: x.numpy() for n, x in state[0].items()})


def on_torch(params: Arrays, gradients: Arrays, **how: bool) -> Side:
    """Return the side of `torch.optim`."""
    import torch

    own = {n: torch.tensor(x, requires_grad=True) for n, x in params.items()}
    for n, x in own.items():
        x.grad = torch.tensor(gradients[n])
    optimizer = torch.optim.AdamW(own.values(), lr=RATE, weight_decay=DECAY, **how)
    return Side(optimizer.step, lambda: {n: x.detach().numpy() for n, x in own.items()})


def on_jax(params: Arrays, gradients: Arrays) -> Side:
    """Return the side of optax."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adamw(RATE, weight_decay=DECAY)
    own, given = (jax.tree.map(jnp.asarray, tree) for tree in (params, gradients))
    state: list[Any] = [own, optimizer.init(own)]

    def apply(params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    run = jax.jit(apply, donate_argnums=(0, 1))

    def step() -> None:
        state[:] = jax.block_until_ready(run(*state, given))

    return Side(step, lambda: {n: np.asarray(x) for n, x in state[0].items()})


def on_mlx(params: Arrays, gradients: Arrays, *, is_compiled: bool) -> Side:
    """Return the side of `mlx.optimizers`."""
    import mlx.core as mx
    from mlx import optimizers

    own, given = ({n: mx.array(x) for n, x in tree.items()} for tree in (params, gradients))
    optimizer = optimizers.AdamW(RATE, weight_decay=DECAY, bias_correction=True)
    optimizer.init(own)
    captured = [optimizer.state]

    def apply(params: Any, gradients: Any) -> Any:
        return optimizer.apply_gradients(gradients, params)

    run = mx.compile(apply, inputs=captured, outputs=captured) if is_compiled else apply
    state = [own]

    def step() -> None:
        state[0] = run(state[0], given)
        mx.eval(state, optimizer.state)

    return Side(step, lambda: {n: np.array(x) for n, x in state[0].items()})


OTHERS: dict[str, dict[str, Callable[[Arrays, Arrays], Side]]] = {
    "torch": {
        "fused": lambda p, g: on_torch(p, g, fused=True),
        "foreach": lambda p, g: on_torch(p, g, foreach=True),
    },
    "jax": {"optax": on_jax},
    "mlx": {
        "mlx, compiled": lambda p, g: on_mlx(p, g, is_compiled=True),
        "mlx": lambda p, g: on_mlx(p, g, is_compiled=False),
    },
}


def contestants(backend: str, shapes: Shapes) -> dict[str, Side]:
    """Return all sides, after a check that three updates give the same parameters."""
    params, gradients = draw(shapes)
    sides = {"mithril": on_mithril(backend, params, gradients)}
    sides |= {name: make(params, gradients) for name, make in OTHERS[backend].items()}
    for side in sides.values():
        for _ in range(3):
            side.step()
    expected = sides["mithril"].read()
    for name, side in sides.items():
        for parameter, x in side.read().items():
            np.testing.assert_allclose(
                x, expected[parameter], *TOLERANCE["float32"], err_msg=f"{name}: {parameter}"
            )
    return sides


def take_times(backend: str, shapes: Shapes, rounds: int) -> Times:
    """Return the times of all sides in this process."""
    sides = contestants(backend, shapes)
    return interleave({name: side.step for name, side in sides.items()}, rounds, warm_up=5)


def in_processes(backend: str, model: str, rounds: int, processes: int) -> Times:
    """Return the medians of all sides in several processes, one after another."""
    command = [sys.executable, "-m", "benchmarks.adamw", "--backend", backend, "--model", model]
    found: Times = {}
    for _ in range(processes):
        for name, samples in times_of_job([*command, "--rounds", str(rounds)], {}).items():
            found.setdefault(name, []).append(statistics.median(samples))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=tuple(OTHERS), default="torch")
    parser.add_argument("--model", choices=tuple(MODELS), default="gpt")
    parser.add_argument("--rounds", type=int, default=30, help="in each process")
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--times", help="of one process, for the one that started it")
    given = parser.parse_args()
    settle("benchmarks.adamw", BLOCKS_KEPT)
    shapes = MODELS[given.model]()
    if given.times:
        leave(take_times(given.backend, shapes, given.rounds), given.times)
        return 0
    times = in_processes(given.backend, given.model, given.rounds, given.processes)
    limits = [
        Limit(f"mithril to {name}", ratio(times, "mithril", name), LIMITS[given.backend])
        for name in OTHERS[given.backend]
    ]
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    title = f"AdamW of {given.model}, {len(shapes)} parameters, {size / 1e6:.1f} M, {given.backend}"
    return report(f"{title}; a sample is the median of a process", times, limits)


if __name__ == "__main__":
    sys.exit(main())
