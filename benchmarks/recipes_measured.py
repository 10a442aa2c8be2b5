"""Measured steps of what `auto_tune` chooses, against recipes that people split models by.

Ten of the models of `recipe_models`, widths and batches divided so often that a step is predicted to take
10 ms or more but no longer than need be (`--shrink`), on PyTorch on four ranks, perhaps behind a link of
limited speed (`network`), or on JAX on eight devices of one process. `auto_tune` measures what it finds and
chooses, in a process of its own, before anything is timed here; its strategy, what `auto_partition` finds by
prediction alone, and every recipe that applies are then compiled for the same backend, whose profile has to
be of this machine: measure it before with `mithril calibrate --backend B --mesh data=4` (8 on JAX).
Outputs are compared, and then a step of each, outputs and gradients, is timed in turn, until the last
rank has done its part. The limit is on the step of the choice over that of the best recipe.

Recipes that are predicted to take more than `--within` times the best of them are not timed, and are named.

    python -m benchmarks.recipes_measured --backend torch [--rate 1gbit] [--models gpt_small …]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import mithril as ml
import numpy as np
from mithril.cost.profiles.store import find_path
from mithril.errors import MithrilError
from mithril.plan import Plan
from mithril.plan.names import cotangent_name

from benchmarks.harness import (
    BLOCKS_KEPT,
    SURROUNDINGS,
    Limit,
    interleave,
    ratio,
    report,
    settle,
)
from benchmarks.network import behind, limit
from benchmarks.recipe_models import MODELS, make_case
from benchmarks.recipe_strategies import RECIPES, Inapplicable
from benchmarks.recipes import compile_recipe, compile_searched
from benchmarks.sides import Times, leave, times_of_job
from tests.tolerances import TOLERANCE

TEN = (
    "narrow_mlp", "wide_mlp", "autoencoder", "recommender", "cnn", "gpt_small", "llama", "many_heads",
    "recurrent", "moe_small",
)  # fmt: skip
OURS = TUNED, SEARCH = "auto_tune", "auto_partition"
MOST = 1.05
SHRINKS, LEAST_SECONDS = (16, 8, 4, 2, 1), 0.01
"""Sizes are divided by the first of these with which a step of the search takes so long: shorter ones
tell more of how processes are woken than of how a model is split."""
IDS = 32
"""Ids are below this number, which every vocabulary has."""
RANKS, DEVICES = 4, 8
MESHES = {
    "torch": ({"data": 2, "tensor": 2}, {"data": 4}),
    "jax": ({"data": 2, "tensor": 4}, {"data": 8}),
}
HOURS = 0.1
"""That a choice may take at most."""
PREDICTED = "predicted "
"""What the names of predictions begin with, among times."""


class Step:
    """A step of a compiled model: outputs, and gradients of one of them.

    Args:
        compiled: the model.
        output: whose gradients are taken.
        inputs: by name.
    """

    def __init__(
        self, compiled: ml.CompiledModel, output: str, inputs: Mapping[str, np.ndarray]
    ) -> None:
        backend, self._compiled = compiled.backend, compiled
        lies = {port.name: port.sharding.spec for port in compiled.plan.inputs}
        self._inputs = {
            name: backend.array(x, sharding=lies[name], dtype=str(x.dtype))
            for name, x in inputs.items()
        }
        self._params = compiled.randomize_params(seed=0)
        y = compiled.evaluate(self._params, self._inputs)[output]
        self.found = y.numpy()
        self._seeds = {output: backend.ones(*y.shape, sharding=lies[cotangent_name(output)])}
        self._is_jax = backend.name == "jax"

    def run(self) -> None:
        """Run once, until everything is there."""
        outputs, gradients = self._compiled.evaluate(self._params, self._inputs, self._seeds)
        if self._is_jax:
            import jax

            jax.block_until_ready([x.shards for x in (*outputs.values(), *gradients.values())])


def draw_inputs(model: str, seed: int, shrink: int) -> dict[str, np.ndarray]:
    """Return random inputs of a model."""
    rng = np.random.default_rng(seed)
    shapes = make_case(model, seed, shrink).shapes
    return {
        name: rng.integers(0, IDS, shape).astype(dtype)
        if dtype == "int32"
        else rng.standard_normal(shape).astype(dtype)
        for name, (shape, dtype) in shapes.items()
    }


def choose_shrink(model: str, backend: ml.Backend, seed: int) -> int:
    """Return by what sizes are divided; see `SHRINKS`."""
    for shrink in SHRINKS:
        plan = compile_searched(model, backend, seed, shrink).plan
        if plan.timeline().seconds >= LEAST_SECONDS:
            return shrink
    return SHRINKS[-1]


def compile_all(
    model: str, backend: ml.Backend, given: argparse.Namespace
) -> Iterator[tuple[str, ml.CompiledModel]]:
    """Yield the choice, the search and the recipes that apply, compiled."""
    case, chosen = make_case(model, given.seed, given.shrink), ml.Strategy.load(given.strategy)
    if os.environ.get("RANK", "0") == "0":
        print(f"{model}: sizes divided by {given.shrink}; chosen is {chosen}")
    yield (
        TUNED,
        ml.compile(
            case.model,
            backend,
            shapes=case.specs,
            outputs=[case.output],
            partition_strategy=chosen,
        ),
    )
    yield SEARCH, compile_searched(model, backend, given.seed, given.shrink)
    for recipe in given.recipes:
        try:
            yield recipe, compile_recipe(model, recipe, backend, given.seed, given.shrink, {})
        except (Inapplicable, MithrilError):
            continue


def make_steps(
    model: str, backend: ml.Backend, given: argparse.Namespace
) -> tuple[dict[str, Step], Times]:
    """Return the steps that are timed, checked to give the same, and predicted seconds of all."""
    compiled = dict(compile_all(model, backend, given))
    predicted = {name: one.plan.timeline().seconds for name, one in compiled.items()}
    most = given.within * min(s for name, s in predicted.items() if name not in OURS)
    inputs, output = draw_inputs(model, given.seed, given.shrink), make_case(model).output
    steps = {
        name: Step(one, output, inputs)
        for name, one in compiled.items()
        if name in OURS or predicted[name] <= most
    }
    rtol, atol = TOLERANCE["float32"]
    expected = steps[SEARCH].found
    scale = max(float(np.abs(expected).max()), 1.0)
    for name, step in steps.items():
        np.testing.assert_allclose(step.found / scale, expected / scale, rtol, atol, err_msg=name)
    if given.plans:
        for name in steps:
            print(f"{model}, {name}\n{describe(compiled[name].plan)}")
    return steps, {PREDICTED + name: [seconds] for name, seconds in predicted.items()}


def describe(plan: Plan) -> str:
    """Return how inputs and parameters lie, and what is exchanged."""
    lies = (f"{port.name} {port.sharding.spec}" for port in plan.inputs)
    rows = (f"{row.kind} {row.axes} {row.bytes} x{row.times}" for row in plan.collectives())
    return f"  {'; '.join(lies)}\n  {'; '.join(rows)}"


def judge(title: str, found: Times) -> int:
    """Print times and the verdict; return 0 if the choice is near enough to the best recipe."""
    times = {name: some for name, some in found.items() if not name.startswith(PREDICTED)}
    left = [n.removeprefix(PREDICTED) for n in found if n.startswith(PREDICTED)]
    for name in left:
        said = found[PREDICTED + name][0]
        took = f", takes {1e3 * median(times[name]):.2f} ms" if name in times else ", not timed"
        print(f"  {name}: predicted {1e3 * said:.2f} ms{took}")
    recipes = [name for name in times if name not in OURS]
    best = min(recipes, key=lambda name: median(times[name]))
    print(f"  {SEARCH} to {best}: {ratio(times, SEARCH, best)} x")
    return report(title, times, [Limit(f"{TUNED} to {best}", ratio(times, TUNED, best), MOST)])


# ------------------------------------------------------------------ running


def time_here(
    model: str, backend: ml.Backend, given: argparse.Namespace, ready: Callable[[], object]
) -> Times:
    """Return the times of a model's steps in this process, and what is predicted."""
    steps, predicted = make_steps(model, backend, given)

    def run(step: Step) -> Callable[[], object]:
        """Return a run that ends when all ranks have done their part: a step ends with the last."""

        def run_everywhere() -> None:
            step.run()
            ready()

        return run_everywhere

    runs = {name: run(step) for name, step in steps.items()}
    return {**interleave(runs, given.rounds, warm_up=2, ready=ready), **predicted}


def open_backend(given: argparse.Namespace) -> ml.Backend:
    """Return the backend, with the measured profile of this machine and the link that is asked for."""
    mesh = ml.Mesh(MESHES[given.backend][given.mesh])
    if given.backend == "jax":
        return ml.open_backend("jax", mesh)
    # Processes of a job take no stored profile by themselves: each could have one of its own.
    profile = find_path("torch", "cpu", RANKS)
    if not profile.exists():
        sys.exit("no profile of four ranks: run `mithril calibrate --backend torch --mesh data=4`")
    backend = ml.TorchBackend(mesh, device="cpu", hardware=profile)
    backend.hardware = behind(backend.hardware, given.rate, RANKS)
    return backend


def tune(given: argparse.Namespace) -> int:
    """Choose a strategy by `auto_tune`, and leave it and by what sizes are divided."""
    model, backend = given.models[0], open_backend(given)
    shrink = given.shrink or choose_shrink(model, backend, given.seed)
    case = make_case(model, given.seed, shrink)
    chosen = ml.auto_tune(
        case.model,
        backend,
        input_shapes=case.specs,
        outputs=[case.output],
        tuning_budget_hours=HOURS,
        measure=True,
    )
    chosen.save(given.strategy)
    leave({"shrink": [shrink]}, given.times)
    return 0


def run_rank(given: argparse.Namespace) -> int:
    """Take the times of a rank of a job, and leave them."""
    from benchmarks.torch_sides import hand_in, together

    hand_in(time_here(given.models[0], open_backend(given), given, together), given.times)
    return 0


def run_model(model: str, given: argparse.Namespace) -> Times:
    """Return the times of a model's steps, chosen and timed in processes behind the same link."""
    passed = ["--models", model, "--backend", given.backend, "--rounds", given.rounds]
    passed += ["--seed", given.seed, "--mesh", given.mesh, "--within", given.within]
    passed += ["--recipes", *given.recipes, *(["--plans"] if given.plans else [])]
    passed += [] if given.rate is None else ["--rate", given.rate]
    with limit(given.rate) as inside, TemporaryDirectory() as folder:
        module, strategy = "benchmarks.recipes_measured", Path(folder) / "strategy.json"
        passed += ["--strategy", strategy]
        shrink = [] if given.shrink is None else ["--shrink", given.shrink]
        command = [*inside, sys.executable, "-m", module, "--tune", *map(str, [*passed, *shrink])]
        shrunk = int(times_of_job(command, {})["shrink"][0])
        passed += ["--shrink", shrunk]
        if given.backend == "torch":
            from benchmarks.torch_sides import in_job

            return in_job(module, RANKS, [*map(str, passed)], inside)
        given = argparse.Namespace(**vars(given) | {"shrink": shrunk, "strategy": strategy})
        return time_here(model, open_backend(given), given, lambda: None)


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--mesh", type=int, choices=(0, 1), default=0, help="two axes, or one")
    parser.add_argument("--rate", help="of the link between ranks, such as 1gbit; none without")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(TEN))
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0, help="of sizes and data")
    parser.add_argument("--shrink", type=int, help="divides widths and batches")
    parser.add_argument("--within", type=float, default=2.0, help="times the best prediction")
    parser.add_argument("--plans", action="store_true", help="print how each one splits")
    # Where a rank of a job leaves its times, and what a process that tunes is told.
    parser.add_argument("--times", help=argparse.SUPPRESS)
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    parser.add_argument("--tune", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = read(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    if "device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    kept = {name: value for name, value in SURROUNDINGS.items() if name.startswith("MALLOC")}
    settle("benchmarks.recipes_measured", {**kept, **BLOCKS_KEPT}, surroundings={})
    if given.times:
        return tune(given) if given.tune else run_rank(given)
    failed = 0
    for model in given.models:
        where = f"{given.backend}, link {given.rate or 'not limited'}"
        found = run_model(model, given)
        mesh = ", ".join(f"{n}={s}" for n, s in MESHES[given.backend][given.mesh].items())
        failed += judge(f"step of {model} on {mesh}, {where}", found)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
