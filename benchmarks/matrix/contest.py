"""Who is compared in a row: Mithril's side, what a side promises, and how they are timed.

All sides start from the same parameters. Before anything is timed, the loss and the gradients of all
parameters of Mithril's model are compared with those of the plainest form by hand, in training, and
then the losses of the first calls of each side with Mithril's (float32 row of `tests/tolerances.py`).
The strongest of those by hand is found in a few rounds; it alone meets Mithril in the rounds that
count, so that caches and memory are shared by two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import megatron
from mithril.trees import flatten

from benchmarks.harness import interleave
from benchmarks.matrix.cases import FSDP, MICROBATCHES, PIPELINE, STEP, Row
from benchmarks.matrix.models import make_data, make_model, split_layers, statistics_of
from benchmarks.sides import Times
from benchmarks.training_cases import CHECKED, DECAY, RATE
from tests.tolerances import TOLERANCE

MITHRIL = "mithril"
FIRST, PEAK = "first call of ", "peak bytes of "
"""What the names of seconds of first calls and of counts of memory begin with, among times."""
RACE, FEWEST, MOST = 5, 9, 60
"""Rounds that find the strongest by hand, and the bounds of those that count."""

NEIGHBOURS, ROUNDING, SHARE = 8, 1e-6, 4.0
"""Of gradients that differ: draws of parameters near by, how near (as sums of some hundred products
in float32 are to each other in another order), and how many times as far from those by hand, by
norm, as the farthest of these a gradient may be."""

Arrays = dict[str, np.ndarray]
Gradients = tuple[float, Arrays]
Sides = dict[str, "Side"]


@dataclass(frozen=True, eq=False)
class Side:
    """One of those that are compared.

    Args:
        run: makes a call, and returns when all is computed.
        loss: makes a call, and returns its loss.
        peak: returns the most bytes alive while a call is made; None where nobody tells.
        first: seconds of planning and of the first call, compiling included.
    """

    run: Callable[[], object]
    loss: Callable[[], float]
    peak: Callable[[], int] | None
    first: float


def take_time(function: Callable[[], object]) -> float:
    """Return the seconds that a function takes."""
    before = time.perf_counter()
    function()
    return time.perf_counter() - before


# ------------------------------------------------------------------ Mithril


def annotate(model: ml.Model, row: Row, backend: ml.Backend) -> ml.Model:
    """Split a model over `tensor` after Megatron, or cut a GPT into stages, as the mesh has axes."""
    if "pipeline" in backend.mesh.names:
        return cut(model, backend.mesh.sizes["pipeline"])
    if "tensor" not in backend.mesh.names:
        return model
    if row.model == "mlp":
        column, line = ml.P("tensor", None), ml.P(None, "tensor")
        layers = range(split_layers(row.sizes))
        model.shard({f"layer{i}.weight": line if i % 2 else column for i in layers})
        return model
    megatron(model)
    if row.model == "llama":
        model.shard({"*.mlp.gate.weight": ml.P("tensor", None)})
    return model


def cut(model: ml.Model, stages: int) -> ml.Model:
    """Give each stage a block of a GPT; the first has what comes before, the last what is behind."""
    model.stage("*", stages - 1)
    for name in ("gpt.embed", "gpt.position"):
        model.stage(name, 0)
    for number in range(stages):
        model.stage(f"gpt.block{number}", number)
    return model


def options_of(row: Row) -> dict[str, Any]:
    """Return the options of `compile` and `train_step` that a parallelism asks for.

    Parameters rest split under FSDP. On PyTorch FSDP2 gathers them for the forward and again for the
    backward, as stage 3 of ZeRO does. What one gathers by hand in JAX, or GSPMD does, is kept for
    the backward by automatic differentiation, as stage 2 keeps it.
    """
    if row.parallelism == FSDP:
        return {"zero": 2 if row.backend == "jax" else 3}
    if row.parallelism == PIPELINE:
        size = row.sizes["batch"] // MICROBATCHES
        return {"pipeline": ml.PipelineOptions(schedule="1f1b", microbatch_size=size)}
    return {}


class Ours:
    """Mithril's side.

    Args:
        row: what is compared.
        backend: where it runs.
        wait: waits for handles of arrays; the identity where calls are not asynchronous.
    """

    def __init__(
        self, row: Row, backend: ml.Backend, wait: Callable[[Sequence[Any]], object]
    ) -> None:
        self._row, self._backend, self._wait = row, backend, wait
        split = ml.P("data") if "data" in backend.mesh.names else ml.P()
        self.batch = {n: backend.array(x, sharding=split) for n, x in make_data(row).items()}
        self._is_step = row.kind == STEP
        self.planning = take_time(self._plan)
        if self._is_step:
            self.state = self._call.init(seed=row.seed)
            self.params: Mapping[str, ml.Array] = self.state.params
        else:
            self.params = self._call.randomize_params(row.seed)
        self.start = {name: x.numpy() for name, x in self.params.items()}

    def _plan(self) -> None:
        row, shapes = self._row, {**self.batch, **statistics_of(self._row)}
        model = annotate(make_model(row), row, self._backend)
        self._call: Any
        if self._is_step:
            self._call = ml.train_step(
                model, self._backend, ml.optim.adamw(RATE, weight_decay=DECAY), shapes=shapes,
                metrics=(), **options_of(row),
            )  # fmt: skip
        else:
            self._call = ml.compile(
                model, self._backend, shapes=shapes, outputs=["loss"], inference=True
            )
            self.batch |= self._draw_statistics()

    def _draw_statistics(self) -> dict[str, ml.Array]:
        make = {"mean": self._backend.zeros, "variance": self._backend.ones}
        shapes = statistics_of(self._row)
        return {n: make[n.rsplit("_", 1)[1]](*shape) for n, shape in shapes.items()}

    def run(self) -> Mapping[str, ml.Array]:
        """Make a call, and wait for what it leaves."""
        if self._is_step:
            self.state, found = self._call(self.state, self.batch)
            self._wait([x.shards for x in self.state.params.values()])
        else:
            found = self._call.evaluate(self.params, self.batch)
            self._wait([found["loss"].shards])
        return found

    def loss(self) -> float:
        """Make a call, and return its loss."""
        return float(self.run()["loss"].item())

    def list_held(self) -> list[Any]:
        """Return the handles of all that is held between calls."""
        arrays: list[ml.Array] = []
        if self._is_step:
            flatten(self.state.optimizer, arrays)
            arrays += [*self.state.params.values(), *self.state.statistics.values()]
        else:
            arrays += self.params.values()
        arrays += self.batch.values()
        return [x.shards for x in arrays if x.shards is not None]

    def differentiate(self) -> Gradients:
        """Return the loss of the first parameters, and their gradients, in training."""
        row, backend = self._row, self._backend
        model = annotate(make_model(row), row, backend)
        inputs = {**self.batch, **self._draw_statistics()}
        params = self.state.params if self._is_step else self.params
        compiled = ml.compile(
            model, backend, shapes=inputs, outputs=["loss"], **options_of(row)
        )  # fmt: skip
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": backend.ones()})
        return float(outputs["loss"].item()), {n: x.numpy() for n, x in gradients.items()}


# ------------------------------------------------------------------ checks


def check_gradients(
    found: Gradients, differentiate: Callable[[Arrays], Gradients], start: Arrays
) -> None:
    """Refuse a loss and gradients that differ by more than the table of tolerances allows.

    A rectifier that is given what is next to 0 makes gradients jump where parameters differ by
    their rounding. Where those by hand do, the norms of what differs are compared with theirs.

    Args:
        found: Mithril's.
        differentiate: returns those by hand, of parameters.
        start: the parameters.

    Raises:
        AssertionError: they differ.
    """
    expected = differentiate(start)
    try:
        compare_gradients(found, expected)
    except AssertionError:
        near = [differentiate(one) for one in _draw_near(start)]
        if all(map(partial(_agree, expected), near)):
            raise
        compare_gradients((found[0], {}), (expected[0], {}))
        assert found[1].keys() == expected[1].keys()
        for name, slope in expected[1].items():
            one = found[1][name]
            if not _agree((0.0, {name: slope}), (0.0, {name: one})):
                jumps = max(float(np.linalg.norm(slopes[name] - slope)) for _, slopes in near)
                apart = float(np.linalg.norm(one - slope))
                assert apart <= SHARE * jumps, f"{name}: {apart} apart, {jumps} within rounding"


def _draw_near(start: Arrays) -> Iterator[Arrays]:
    """Yield parameters that differ from others by their rounding."""
    rng = np.random.default_rng(0)
    for _ in range(NEIGHBOURS):
        moved = {n: x * (1 + ROUNDING * rng.standard_normal(x.shape)) for n, x in start.items()}
        yield {n: x.astype(start[n].dtype) for n, x in moved.items()}


def _agree(expected: Gradients, found: Gradients) -> bool:
    try:
        compare_gradients(found, expected)
    except AssertionError:
        return False
    return True


def compare_gradients(found: Gradients, expected: Gradients) -> None:
    """Raise AssertionError where a loss or gradients differ from others."""
    rtol, atol = TOLERANCE["float32"]
    (loss, slopes), (expected_loss, expected_slopes) = found, expected
    np.testing.assert_allclose(loss, expected_loss, rtol, atol, err_msg="loss")
    assert slopes.keys() == expected_slopes.keys(), slopes.keys() ^ expected_slopes.keys()
    for name, slope in expected_slopes.items():
        np.testing.assert_allclose(slopes[name], slope, rtol, atol, err_msg=name)


def check_losses(sides: Mapping[str, Side]) -> None:
    """Refuse sides whose losses of the first calls differ from Mithril's."""
    losses = {name: [side.loss() for _ in range(CHECKED)] for name, side in sides.items()}
    for name, found in losses.items():
        np.testing.assert_allclose(losses[MITHRIL], found, *TOLERANCE["float32"], err_msg=name)


# ------------------------------------------------------------------ times


def measure(
    sides: Mapping[str, Side],
    seconds: float,
    ready: Callable[[], object] = lambda: None,
    agree: Callable[[Any], Any] = lambda said: said,
) -> Times:
    """Return times of Mithril and of the strongest by hand, of first calls, and peak bytes.

    Args:
        sides: all of them, Mithril's among them.
        seconds: how long the rounds that count may take.
        ready: called before each call, which is not timed.
        agree: returns what the first of several ranks says.
    """
    race = interleave({n: side.run for n, side in sides.items()}, RACE, 2, ready=ready)
    middle = {name: statistics.median(samples) for name, samples in race.items()}
    ours = middle.pop(MITHRIL)
    strongest: str = agree(min(middle, key=lambda name: middle[name]))
    took = agree(ours + middle[strongest])
    rounds = max(FEWEST, min(MOST, int(seconds / took)))
    chosen = {MITHRIL: sides[MITHRIL], strongest: sides[strongest]}
    times = interleave({n: s.run for n, s in chosen.items()}, rounds, 1, ready=ready)
    first = {FIRST + name: [side.first] for name, side in chosen.items()}
    counts = {name: side.peak for name, side in chosen.items() if side.peak is not None}
    is_told = len(counts) == len(chosen)
    peaks = {PEAK + name: [float(count())] for name, count in counts.items()} if is_told else {}
    return {**times, **first, **peaks}
