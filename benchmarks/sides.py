"""What the benchmarks on all frameworks share: Mithril's side, the sizes of the GPT, jobs of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes

SIZES = {
    "256": Sizes(layers=4, width=256, heads=4, hidden=1024, context=128, batch=8),
    "64": Sizes(layers=4, width=64, heads=4, hidden=256, context=32, batch=4),
}
VOCABULARIES = {"256": 1024, "64": 128}
INPUTS = ("tokens", "target")

Data = Mapping[str, np.ndarray]
Functions = dict[str, Callable[[], object]]
Times = dict[str, list[float]]


@dataclass(frozen=True, eq=False)
class Mithril:
    """Mithril's side of a comparison.

    Args:
        compiled: a model with the output `loss`.
        params: its parameters.
        inputs: its inputs, as the backend's arrays.
        one: the gradient of the loss.
    """

    compiled: ml.CompiledModel
    params: Mapping[str, ml.Array]
    inputs: Mapping[str, ml.Array]
    one: ml.Array

    def evaluate(self) -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        """Return outputs and gradients, perhaps before they are computed."""
        return self.compiled.evaluate(self.params, self.inputs, {"loss": self.one})


Side = TypeVar("Side", bound=Mithril)


def planned(
    kind: type[Side], model: ml.Model, backend: ml.Backend, inputs: Mapping[str, ml.Array]
) -> Side:
    """Return Mithril's side with random parameters, planned forward and backward."""
    compiled = ml.compile(model, backend, shapes=inputs)
    side = kind(compiled, compiled.randomize_params(0), inputs, backend.ones())
    side.evaluate()
    return side


def sizes_of(width: str, ranks: int) -> Sizes:
    """Return the sizes of the GPT: the small one has half a batch on one rank."""
    sizes = SIZES[width]
    return replace(sizes, batch=2) if width == "64" and ranks == 1 else sizes


def data_of(sizes: Sizes, vocabulary: int) -> Data:
    """Return the inputs of the GPT, the same on every rank."""
    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.context)
    return {name: rng.integers(0, vocabulary, shape).astype(np.int32) for name in INPUTS}


def times_of_job(
    command: Sequence[str], environment: Mapping[str, str], is_quiet: bool = False
) -> Times:
    """Return what rank 0 of a job leaves in the file named by its option `--times`.

    Args:
        command: what is started.
        environment: variables to set besides.
        is_quiet: whether what the job prints is kept for the error of one that fails.

    Raises:
        CalledProcessError: the job fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "times.json"
        subprocess.run(
            [*command, "--times", str(path)], env={**os.environ, **environment}, check=True,
            capture_output=is_quiet, text=True,
        )  # fmt: skip
        found: Times = json.loads(path.read_text(encoding="utf-8"))
        return found


def leave(times: Times, path: str) -> None:
    """Leave the times where `times_of_job` looks for them."""
    Path(path).write_text(json.dumps(times), encoding="utf-8")
