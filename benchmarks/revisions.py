"""The same steps by two revisions of Mithril, interleaved in one run: is the new one slower?

    python -m benchmarks.revisions 11ca6d4                  # against what is in the working tree
    python -m benchmarks.revisions 11ca6d4 --only numpy-mlp,torch-gpt-2 --rounds 100

Each case runs in two processes, one of which imports the packages of a checkout of the revision.
In each round both take a step, one after the other in random order; the times are theirs. The cases
use public names only, so that any two revisions can be compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import mithril as ml
import numpy as np
from mithril.cli.gpt import gpt, megatron, with_loss

from benchmarks.harness import (
    BLOCKS_KEPT,
    SURROUNDINGS,
    Limit,
    collector_off,
    interleave,
    ratio,
    report,
)
from benchmarks.numpy_mlp import SIZES as MLP_SIZES
from benchmarks.numpy_mlp import model as mlp
from benchmarks.sides import SIZES, VOCABULARIES, data_of, sizes_of

ROOT = Path(__file__).parent.parent
LIMIT = 1.0
ROUNDS = {"numpy-mlp": 400, "jax-gpt-1": 40, "jax-gpt-8": 40, "torch-gpt-1": 40, "torch-gpt-2": 40}
"""The cases, and how often each side takes a step."""


# ------------------------------------------------------------------ one side


def step_of(case: str) -> Callable[[], object]:
    """Return a function that takes one step of a case and waits for its results."""
    if case == "numpy-mlp":
        rng = np.random.default_rng(0)
        inputs = {
            "x": rng.standard_normal((128, MLP_SIZES[0]), dtype=np.float32),
            "target": rng.integers(0, MLP_SIZES[-1], 128).astype(np.int32),
        }
        return _step(mlp(MLP_SIZES), ml.NumpyBackend(), inputs, wait=lambda arrays: None)
    framework, _, devices = case.split("-")
    sizes, vocabulary = sizes_of("256", 1) if devices == "1" else SIZES["256"], VOCABULARIES["256"]
    model, split = with_loss(gpt(vocabulary, sizes)), ml.P() if devices == "1" else ml.P("data")
    if framework == "jax":
        mesh = ml.Mesh() if devices == "1" else ml.Mesh(data=4, tensor=2)
        if mesh.size > 1:
            megatron(model)
        backend, wait = ml.JaxBackend(mesh), _wait_for_jax
    else:
        mesh = ml.Mesh() if devices == "1" else ml.Mesh(data=int(devices))
        backend, wait = ml.TorchBackend(mesh, device="cpu"), _read_first
    data = data_of(sizes, vocabulary)
    given = {name: backend.array(x, sharding=split) for name, x in data.items()}
    return _step(model, backend, given, wait)


def _step(
    model: ml.Model, backend: ml.Backend, inputs: dict, wait: Callable[[list[ml.Array]], None]
) -> Callable[[], object]:
    compiled = ml.compile(model, backend, shapes=inputs)
    params, one = compiled.randomize_params(0), backend.ones()

    def step() -> None:
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": one})
        wait([outputs["loss"], *gradients.values()])

    return step


def _wait_for_jax(arrays: list[ml.Array]) -> None:
    import jax

    jax.block_until_ready([x.jax() for x in arrays])


def _read_first(arrays: list[ml.Array]) -> None:
    arrays[0].numpy()  # all results of a step are there at once


def serve(case: str) -> None:
    """Take a step for each line that comes in, and answer with the seconds it took."""
    step = step_of(case)
    step()
    with collector_off():
        print("ready", flush=True)
        for _ in sys.stdin:
            started = time.perf_counter()
            step()
            print(time.perf_counter() - started, flush=True)


# ------------------------------------------------------------------ both sides


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Have a revision in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "revision"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


@contextmanager
def side(tree: Path, case: str) -> Iterator[Callable[[], float]]:
    """Start a process with the packages of a tree; have a function that lets it take a step."""
    sources = [str(path) for path in sorted(tree.glob("mithril-*/src"))]
    environment = {
        **os.environ, **SURROUNDINGS, **BLOCKS_KEPT, "PYTHONPATH": os.pathsep.join(sources),
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.revisions", "--serve", case]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout, "both are pipes"
        first = process.stdout.readline()
        if first != "ready\n":
            raise SystemExit(f"{case} does not start in {tree}")

        def ask() -> float:
            print("step", file=process.stdin, flush=True)
            return float(process.stdout.readline())

        yield ask
        process.stdin.close()


def compare(case: str, old: Path, rounds: int) -> int:
    """Report the times of one case on both sides."""
    with ExitStack() as stack:
        asks = {
            "old": stack.enter_context(side(old, case)),
            "new": stack.enter_context(side(ROOT, case)),
        }
        answers: dict[str, list[float]] = {name: [] for name in asks}

        def ask(name: str) -> None:
            answers[name].append(asks[name]())

        interleave({name: partial(ask, name) for name in asks}, rounds, warm_up=5)
    times = {name: found[5:] for name, found in answers.items()}
    return report(case, times, [Limit("new to old", ratio(times, "new", "old"), LIMIT)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", help="what the working tree is compared with")
    parser.add_argument("--only", default=",".join(ROUNDS), help="cases, by commas")
    parser.add_argument("--rounds", type=int, help="steps of each side")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return 0
    if given.revision is None:
        parser.error("give the revision to compare with")
    with checkout(given.revision) as old:
        worst = 0
        for case in given.only.split(","):
            worst |= compare(case, old, given.rounds or ROUNDS[case])
    return worst


if __name__ == "__main__":
    sys.exit(main())
