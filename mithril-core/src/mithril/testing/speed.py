"""How fast a backend runs a few programs, beside the NumPy engine in lockstep on the same mesh.

The figures are for the author to read; nothing passes or fails by them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

import mithril as ml
import mithril.numpy as mnp
from mithril import ops
from mithril.testing.target import Target, open_oracle

RUNS = 5
WIDTH = 512


@dataclass(frozen=True)
class Speed:
    """Milliseconds of one run, the median of a few.

    Args:
        name: what runs.
        devices: on how many devices.
        milliseconds: on the backend; not a number where it raises an error.
        numpy: of the NumPy engine on a mesh of the same size.
        error: what the backend raises.
    """

    name: str
    devices: int
    milliseconds: float
    numpy: float
    error: str = ""


def measure_speed(target: Target) -> list[Speed]:
    """Measure a few programs on one device, and a training step on the mesh, too."""
    rows = []
    for name, prepare in PROGRAMS.items():
        for mesh in (None, target.mesh) if name in ON_A_MESH and target.mesh.size > 1 else (None,):
            reference = _time(prepare(open_oracle(mesh)))
            size = 1 if mesh is None else mesh.size
            try:
                own, error = _time(prepare(target.open(mesh))), ""
            except Exception as raised:  # whatever a plugin raises; checks say more of it
                own, error = float("nan"), type(raised).__name__
            rows.append(Speed(name, size, own, reference, error))
    return rows


def describe_speed(rows: list[Speed]) -> list[str]:
    """Return the lines of the table.

    >>> print(*describe_speed([Speed("softmax", 1, 2.0, 4.0)]), sep=chr(10))
    speed                    devices         ms   numpy ms   ratio
      softmax                      1       2.00       4.00    0.50
    """
    if not rows:
        return []
    return [f"{'speed':<24} devices         ms   numpy ms   ratio", *map(_describe, rows)]


def _describe(row: Speed) -> str:
    if row.error:
        return f"  {row.name:<22} {row.devices:>7} {row.error}"
    ratio = row.milliseconds / row.numpy
    return (
        f"  {row.name:<22} {row.devices:>7} {row.milliseconds:>10.2f} {row.numpy:>10.2f} "
        f"{ratio:>7.2f}"
    )


def _time(run: Callable[[], object]) -> float:
    """Return the milliseconds of a call, the first ones left out: they compile."""
    run(), run()

    def measure() -> Iterator[float]:
        for _ in range(RUNS):
            start = perf_counter()
            run()
            yield 1e3 * (perf_counter() - start)

    return statistics.median(measure())


def _matmul(backend: ml.Backend) -> Callable[[], object]:
    x = backend.array(_floats(WIDTH, WIDTH))
    function = ml.jit(lambda x: x @ x)
    return lambda: function(x).numpy()


def _elementwise(backend: ml.Backend) -> Callable[[], object]:
    x = backend.array(_floats(WIDTH, WIDTH))
    function = ml.jit(lambda x: mnp.tanh(x * 2.0 + 1.0) * x - mnp.exp(-x))
    return lambda: function(x).numpy()


def _softmax(backend: ml.Backend) -> Callable[[], object]:
    x = backend.array(_floats(WIDTH, WIDTH))
    function = ml.jit(ops.softmax)
    return lambda: function(x).numpy()


def _tiny(backend: ml.Backend) -> Callable[[], object]:
    compiled = ml.compile(ml.Linear(4), backend, shapes={"input": (2, 3)}, inference=True)
    params = compiled.randomize_params(0)
    x = backend.array(_floats(2, 3))

    def run() -> object:
        return compiled.evaluate(params, {"input": x})["output"].numpy()

    return run


def _training(backend: ml.Backend) -> Callable[[], object]:
    from mithril.testing.checks.models import EXAMPLES, prepare_step

    return prepare_step(EXAMPLES["GPT"], backend)


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


PROGRAMS: dict[str, Callable[[ml.Backend], Callable[[], object]]] = {
    f"matmul {WIDTH}": _matmul,
    f"elementwise {WIDTH}": _elementwise,
    f"softmax {WIDTH}": _softmax,
    "one small layer": _tiny,
    "GPT training step": _training,
}
ON_A_MESH = frozenset({"one small layer", "GPT training step"})
