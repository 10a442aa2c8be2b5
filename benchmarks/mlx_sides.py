"""A training step on MLX as Mithril runs it and as one writes it by hand, ready to be compared.

Both sides get arrays that are computed already, and have their loss and all gradients computed. On
several ranks every process of one job holds all contestants, so that they exchange data over the
same ring in the same minute.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mithril as ml
import mlx.core as mx
import numpy as np
from mithril_mlx.blas import library_in_use
from mlx.utils import tree_flatten

from benchmarks.harness import BLOCKS_KEPT, settle
from benchmarks.mlx_by_hand import Params, Step
from benchmarks.sides import Mithril, Times, leave, times_of_job
from tests.tolerances import TOLERANCE

VERSION = f"MLX {version('mlx')}, {library_in_use()}"
LIMIT = 1.0
ROOT = Path(__file__).parent.parent
RANK = "MLX_RANK"


class Ours(Mithril):
    """Mithril's side."""

    def step(self) -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        """Return outputs and gradients."""
        outputs, gradients = self.evaluate()
        mx.eval([x.shards for x in (*outputs.values(), *gradients.values())])
        return outputs, gradients


@dataclass(frozen=True, eq=False)
class ByHand:
    """The side written by hand.

    Args:
        function: returns the loss and the gradients of its first argument.
        params: the parameters.
        inputs: the further arguments.
    """

    function: Step
    params: Params
    inputs: tuple[mx.array, mx.array]

    def step(self) -> tuple[mx.array, Params]:
        """Return loss and gradients."""
        found = self.function(self.params, *self.inputs)
        mx.eval(found)
        return found


def plain(params: Mapping[str, ml.Array], prefix: str = "") -> Params:
    """Return parameters as MLX's arrays."""
    return {name.removeprefix(prefix): mx.array(x.numpy()) for name, x in params.items()}


def check_sides(mithril: Ours, by_hand: ByHand, prefix: str = "", is_split: bool = False) -> None:
    """Refuse sides that give different numbers.

    Args:
        mithril: one side.
        by_hand: the other side.
        prefix: what only Mithril's names of parameters begin with.
        is_split: whether each rank of the other side gives the loss of its part of the batch.
    """
    rtol, atol = TOLERANCE["float32"]
    (outputs, gradients), (loss, tree) = mithril.step(), by_hand.step()
    slopes: Params = dict(tree_flatten(tree))  # average_gradients takes names apart
    if is_split:
        loss = mx.distributed.all_sum(loss) / mx.distributed.init().size()
    np.testing.assert_allclose(outputs["loss"].numpy(), np.asarray(loss), rtol, atol)
    assert gradients.keys() == {f"{prefix}{name}" for name in slopes}
    for name, slope in slopes.items():
        found = gradients[f"{prefix}{name}"].numpy()
        np.testing.assert_allclose(found, np.asarray(slope), rtol, atol, err_msg=name)


# ------------------------------------------------------------------ surroundings


def settle_mlx(module: str) -> None:
    """Start a benchmark anew as `settle` does, on OpenBLAS if the system has it.

    The BLAS that MLX brings along on Linux takes so long that little else is measured. `LD_PRELOAD`
    stays as it is where the environment sets it, even if to nothing.
    """
    found = ctypes.util.find_library("openblas") if sys.platform == "linux" else None
    settle(module, {**BLOCKS_KEPT, **({"LD_PRELOAD": found} if found else {})})


def in_job(script: Path, ranks: int, arguments: list[str], inside: Sequence[str] = ()) -> Times:
    """Run a benchmark's file under `mithril launch` and return the times of rank 0.

    Args:
        script: the file.
        ranks: how many processes.
        arguments: of the file.
        inside: what the command begins with, such as that of `network.limit`.
    """
    launch = [*inside, str(Path(sys.executable).with_name("mithril")), "launch", "--backend", "mlx"]
    command = [*launch, "-n", str(ranks), str(script), *arguments]
    return times_of_job(command, {"PYTHONPATH": str(ROOT)})


def hand_in(times: Times, path: str) -> None:
    """Leave the times of rank 0 for whoever started the job, and end together."""
    if os.environ[RANK] == "0":
        leave(times, path)
    together()


def together() -> None:
    """Wait until all ranks have come here, so that none is timed while others still work."""
    mx.eval(mx.distributed.all_sum(mx.ones(1)))
