"""What `ml.profile` costs: a step of the GPT inside a profile against the same step without one.

The profile is opened anew in every round, and counts memory in the first of its steps. Opening and
closing it is no part of a step and is shown apart. What a call pays while no profile is open is
one look at an attribute, which is timed by itself.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable
from time import perf_counter

import mithril as ml
from mithril.cli.gpt import Sizes, gpt, with_loss

from benchmarks.harness import BLOCKS_KEPT, Limit, collector_off, estimate, ratio, report, settle
from benchmarks.sides import SIZES, VOCABULARIES, Mithril, data_of, planned

BACKENDS = {
    "numpy": ml.NumpyBackend,
    "torch": lambda mesh: ml.TorchBackend(mesh, device="cpu"),
    "jax": lambda mesh: ml.JaxBackend(mesh, platform="cpu"),
    "mlx": lambda mesh: ml.MLXBackend(mesh, device="cpu"),
}
LIMIT = 1.1
OFF_LIMIT = 0.01


def side(name: str, devices: int, sizes: Sizes, vocabulary: int) -> Mithril:
    """Return a step of the GPT, its batch split over the devices."""
    mesh = ml.Mesh(data=devices) if devices > 1 else ml.Mesh()
    backend = BACKENDS[name](mesh)
    split = ml.P("data") if devices > 1 else ml.P()
    data = data_of(sizes, vocabulary)
    inputs = {key: backend.array(x, sharding=split) for key, x in data.items()}
    return planned(Mithril, with_loss(gpt(vocabulary, sizes)), backend, inputs)


def waiting(mithril: Mithril) -> Callable[[], None]:
    """Return a step that ends when all it makes is there."""
    engine = mithril.compiled.backend.engine

    def step() -> None:
        outputs, gradients = mithril.evaluate()
        engine.wait_for([x.shards for x in (*outputs.values(), *gradients.values())])

    return step


def measure(mithril: Mithril, rounds: int, calls: int) -> dict[str, list[float]]:
    """Return the seconds of a step without and with a profile, and of opening and closing one."""
    step, backend = waiting(mithril), mithril.compiled.backend
    times: dict[str, list[float]] = {"off": [], "on": [], "open and close": []}
    with collector_off():
        for number in range(rounds + 1):
            started = perf_counter()
            for _ in range(calls):
                step()
            off = perf_counter() - started
            opened = perf_counter()
            with ml.profile(backend):
                started = perf_counter()
                for _ in range(calls):
                    step()
                on = perf_counter() - started
            beside = perf_counter() - opened - on
            if number:  # in the first round programs are written and compiled
                found = off / calls, on / calls, beside
                for samples, value in zip(times.values(), found, strict=True):
                    samples.append(value)
    return times


def cost_when_off() -> float:
    """Return what part of a small eager call the look for an open profile takes."""
    backend = ml.NumpyBackend()
    x = backend.ones(4)
    call = min(timeit.repeat(lambda: x + x, number=2000, repeat=5))
    look = min(timeit.repeat(lambda: backend.family.open_profile is None, number=2000, repeat=5))
    nothing = min(timeit.repeat(lambda: None, number=2000, repeat=5))
    return max(0.0, look - nothing) / call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--width", choices=SIZES, default="256")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=5, help="steps of a profile")
    given = parser.parse_args()
    if given.backend == "mlx":
        from benchmarks.mlx_sides import settle_mlx

        settle_mlx("benchmarks.profiling")
    else:
        settle("benchmarks.profiling", BLOCKS_KEPT if given.backend == "torch" else None)
    sizes, vocabulary = SIZES[given.width], VOCABULARIES[given.width]
    mithril = side(given.backend, given.devices, sizes, vocabulary)
    times = measure(mithril, given.rounds, given.calls)
    limits = [
        Limit("profile on to off", ratio(times, "on", "off"), LIMIT),
        Limit("off: of a call", estimate([cost_when_off()] * 5), OFF_LIMIT),
    ]
    title = f"{given.backend}, GPT {sizes}, vocabulary {vocabulary}, {given.devices} devices"
    return report(title, times, limits)


if __name__ == "__main__":
    sys.exit(main())
