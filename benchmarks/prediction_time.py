"""Step time as plans predict it, against the clock; and the order of twelve strategies of a GPT.

A step is outputs and gradients. All cases run in turn, round by round, each until its results are
there; the least time of a case counts, which is what it takes where nothing else runs. On PyTorch
several devices are a pool of processes, on JAX devices of one process; both share the cores of the
machine, and their profile has to be of as many devices at work: measure it before with
`mithril calibrate --backend B --mesh data=2`, and so for data=4, and for one device without `--mesh`.

A machine that others share is faster at one time than at another. The products whose time stands
in a profile run between the steps, on the most devices that were calibrated, as these leave no core
idle; every prediction is made for the machine as it is now: as many times longer as they take now.
The factor is printed.

The order is judged by Kendall's tau: of all pairs of strategies, the share that is in the right
order less the share that is not (Kendall, "A New Measure of Rank Correlation", 1938).
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.cost import Hardware
from mithril.cost.calibrate import prepare_reference
from mithril.engine import Engine

from benchmarks.harness import BLOCKS_KEPT, SURROUNDINGS, interleave, settle
from benchmarks.prediction_cases import MODELS, STRATEGIES, Case, make_case

IN_A_ROW = 20
"""How often the products run one after another: the first find caches as steps have left them."""
LIMIT, WORST, LEAST_TAU = 0.20, 2.0, 0.7
DEVICES = 4
"""The most that a strategy has."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A step's time.

    Args:
        predicted: seconds, on the machine as it is now.
        measured: seconds.
    """

    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


# ------------------------------------------------------------------ twelve strategies of a GPT


def gpt_case(
    mesh: Mapping[str, int],
    *,
    at_rest: bool = False,
    split: Collection[str] = (),
    schedule: str | None = None,
    microbatches: int = 1,
    scale: int = 1,
) -> Case:
    """Return the GPT, trained in one way.

    Args:
        mesh: the devices, by axis.
        at_rest: whether parameters are kept split over `data`.
        split: what is split over `tensor`: `attention`, `mlp`.
        schedule: of a pipeline.
        microbatches: of a pipeline.
        scale: divides the batch.
    """
    sizes, vocabulary = Sizes(4, 256, 4, 1024, 128, 16 // scale), 1024
    model = with_loss(gpt(vocabulary, sizes))
    column, row = ml.P("tensor", None), ml.P(None, "tensor")
    if "attention" in split:
        model.shard({"*.attn.o.weight": row, **{f"*.attn.{x}.weight": column for x in "qkv"}})
    if "mlp" in split:
        model.shard({"*.mlp.up.weight": column, "*.mlp.down.weight": row})
    if at_rest:
        model.at_rest({"*.weight": ml.P("data")})
    options = None
    if schedule is not None:
        stages = {"embed": 0, "position": 0, "norm": 1, "head": 1}
        stages |= {f"block{n}": n // 2 for n in range(sizes.layers)}
        for name, stage in stages.items():
            model.stage(f"gpt.{name}", stage)
        model.stage("cross_entropy_0", 1)
        size = sizes.batch // microbatches
        options = ml.PipelineOptions(schedule=schedule, microbatch_size=size)
    ids = np.random.default_rng(0).integers(0, vocabulary, (sizes.batch, sizes.context), np.int32)
    return Case(model, mesh, {"tokens": ids, "target": ids}, "loss", pipeline=options)


WAYS: Mapping[str, Callable[..., Case]] = {
    name: lambda scale, mesh=mesh, options=options: gpt_case(mesh, scale=scale, **options)
    for name, mesh, options in (
        ("one device", {}, {}),
        ("data 2", {"data": 2}, {}),
        ("data 2, at rest", {"data": 2}, {"at_rest": True}),
        ("data 4, at rest", {"data": 4}, {"at_rest": True}),
        ("tensor 2", {"tensor": 2}, {"split": ("attention", "mlp")}),
        ("tensor 2, mlp", {"tensor": 2}, {"split": ("mlp",)}),
        ("tensor 2, attention", {"tensor": 2}, {"split": ("attention",)}),
        ("tensor 4", {"tensor": 4}, {"split": ("attention", "mlp")}),
        ("gpipe 2, 1 part", {"pipeline": 2}, {"schedule": "gpipe", "microbatches": 1}),
        ("gpipe 2, 2 parts", {"pipeline": 2}, {"schedule": "gpipe", "microbatches": 2}),
        ("1f1b 2, 4 parts", {"pipeline": 2}, {"schedule": "1f1b", "microbatches": 4}),
        ("1f1b 2, 16 parts", {"pipeline": 2}, {"schedule": "1f1b", "microbatches": 16}),
    )
}


# ------------------------------------------------------------------ measuring


class Calibrated:
    """A machine that was calibrated, and how fast it is now.

    Args:
        engine: whose devices multiply.
        seconds: what the products took at least when it was calibrated.
    """

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.seconds, self.least = seconds, math.inf
        self._run = prepare_reference(engine)

    def run(self) -> None:
        """Run the products often enough in a row to tell, as calibration does."""
        for _ in range(IN_A_ROW):
            started = time.perf_counter()
            self._run()
            self.least = min(self.least, time.perf_counter() - started)


class Backends:
    """Backends by mesh, each opened once.

    Args:
        name: `torch` or `jax`.
        profiles: of as many devices as they were measured with; none for what is stored.
    """

    def __init__(self, name: str, profiles: Sequence[Hardware] = ()) -> None:
        self.name = name
        self._profiles = {h.calibration.devices if h.calibration else 1: h for h in profiles}
        self._opened: dict[tuple[tuple[str, int], ...], ml.Backend] = {}

    def open(self, mesh: Mapping[str, int]) -> ml.Backend:
        """Return the backend of a mesh."""
        key = tuple(mesh.items())
        if key not in self._opened:
            made = ml.Mesh(**mesh)
            known = [n for n in self._profiles if n <= made.size] or list(self._profiles)
            given = {"hardware": self._profiles[max(known)]} if known else {}
            if self.name == "torch":
                given["device"] = "cpu"
            self._opened[key] = ml.open_backend(self.name, made, **given)
        return self._opened[key]

    def find_calibrated(self) -> Calibrated | None:
        """Return the largest engine that was opened and whose own profile was measured."""
        for one in sorted(self._opened.values(), key=lambda one: one.mesh.size, reverse=True):
            made = one.hardware.calibration
            if made is not None and made.devices == one.mesh.size:
                return Calibrated(one.engine, made.reference_seconds)
        return None


class Step:
    """A step of a case, compiled.

    Args:
        case: what runs.
        backend: where.
    """

    def __init__(self, case: Case, backend: ml.Backend) -> None:
        self.compiled = case.compile(backend)
        self._params = self.compiled.randomize_params()
        split = ml.P("data") if "data" in case.mesh else ml.P()
        self._inputs = {
            name: backend.array(x, sharding=split, dtype=str(x.dtype))
            for name, x in case.inputs.items()
        }
        y = self.compiled.evaluate(self._params, self._inputs)[case.output]
        self._gradients = {case.output: backend.ones(*y.shape, sharding=y.sharding)}
        self._is_jax = backend.name == "jax"

    def run(self) -> None:
        """Run once, until everything is there."""
        outputs, gradients = self.compiled.evaluate(self._params, self._inputs, self._gradients)
        made = [*outputs.values(), *gradients.values()]
        if self._is_jax:
            import jax

            jax.block_until_ready([x.shards for x in made])

    def predict(self) -> float:
        """Return the predicted seconds."""
        return self.compiled.plan.timeline().seconds


def time_cases(cases: Mapping[str, Case], backends: Backends, rounds: int) -> dict[str, Timed]:
    """Return the times of cases, which run in turn."""
    steps = {name: Step(case, backends.open(case.mesh)) for name, case in cases.items()}
    runs: dict[str, Callable[[], object]] = {name: step.run for name, step in steps.items()}
    calibrated = backends.find_calibrated()
    if calibrated is not None:
        runs["products"] = calibrated.run
    times = interleave(runs, rounds)
    slower = 1.0 if calibrated is None else calibrated.least / calibrated.seconds
    print(f"  products take {slower:.3f} of what they took when calibrated")
    return {name: Timed(step.predict() * slower, min(times[name])) for name, step in steps.items()}


# ------------------------------------------------------------------ judging


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau of two rankings, ties being neither right nor wrong.

    >>> kendall([(1, 10), (2, 20), (3, 15)])
    0.3333333333333333
    """
    signs = [np.sign((a[0] - b[0]) * (a[1] - b[1])) for a, b in itertools.combinations(pairs, 2)]
    return float(sum(signs) / len(signs))


def report_cases(found: Mapping[str, Timed]) -> bool:
    """Print predictions beside measurements; return whether they are near enough."""
    _print_rows(found)
    errors = [abs(one.ratio - 1) for one in found.values()]
    worst = max(max(one.ratio, 1 / one.ratio) for one in found.values())
    print(
        f"median error {100 * statistics.median(errors):.1f} %, limit {100 * LIMIT:.0f} %; "
        f"worst factor {worst:.2f}, limit {WORST}"
    )
    return statistics.median(errors) <= LIMIT and worst <= WORST


def report_order(found: Mapping[str, Timed]) -> bool:
    """Print strategies by their measured times; return whether they are in the right order."""
    _print_rows(dict(sorted(found.items(), key=lambda item: item[1].measured)))
    tau = kendall([(one.predicted, one.measured) for one in found.values()])
    print(f"Kendall's tau {tau:.2f}, at least {LEAST_TAU}")
    return tau >= LEAST_TAU


def _print_rows(found: Mapping[str, Timed]) -> None:
    for name, one in found.items():
        print(
            f"  {name:<22} {1e3 * one.predicted:>9.2f} {1e3 * one.measured:>9.2f}  {one.ratio:.3f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.prediction time")
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=int, default=1, help="divides the batches")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--no-order", action="store_true", help="leave out the twelve strategies")
    parser.add_argument("--hardware", nargs="*", default=[], help="profiles; by default one's own")
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    # Memory is kept, and threads are as many as they were when the machine was calibrated.
    kept = {name: value for name, value in SURROUNDINGS.items() if name.startswith("MALLOC")}
    settle("benchmarks.prediction", {**kept, **BLOCKS_KEPT}, surroundings={})
    backends = Backends(given.backend, [Hardware.load(x) for x in given.hardware])
    cases = {
        f"{model}, {strategy}": make_case(model, strategy, given.scale)
        for model in given.models
        for strategy in STRATEGIES
    }
    print(f"a step on {given.backend}: ms predicted, ms measured, ratio")
    is_good = not cases or report_cases(time_cases(cases, backends, given.rounds))
    if not given.no_order:
        print("strategies of one GPT, the fastest first")
        ways = {name: make(given.scale) for name, make in WAYS.items()}
        is_good &= report_order(time_cases(ways, backends, given.rounds))
    return int(not is_good)
