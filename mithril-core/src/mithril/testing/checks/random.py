"""Random numbers are NumPy's bit for bit, whatever the mesh: runs can be repeated anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import mithril as ml
from mithril import P
from mithril.testing.check import Check, Mismatch, Outcome
from mithril.testing.compare import describe_difference
from mithril.testing.levels import Level
from mithril.testing.target import Target, open_oracle

SHAPE = (10, 7)
RATE = 0.3


def _dropout(backend: ml.Backend, seed: int) -> np.ndarray:
    ones = backend.ones(*SHAPE, sharding=P(*backend.mesh.names[:2]))
    compiled = ml.compile(ml.Dropout(rate=RATE), backend)
    return compiled.evaluate({}, {"input": ones}, seed=seed)["output"].numpy()


def _parameters(backend: ml.Backend, seed: int) -> np.ndarray:
    compiled = ml.compile(ml.Linear(7), backend, shapes={"input": (3, 10)})
    return next(x.numpy() for n, x in compiled.randomize_params(seed).items() if "weight" in n)


def _uniform(backend: ml.Backend, seed: int) -> np.ndarray:
    return backend.rand(*SHAPE, seed=seed, sharding=P(*backend.mesh.names[:2])).numpy()


def _integers(backend: ml.Backend, seed: int) -> np.ndarray:
    return backend.randint(0, 1000, SHAPE, seed=seed, sharding=P(*backend.mesh.names[:2])).numpy()


DRAWN: dict[str, Callable[[ml.Backend, int], np.ndarray]] = {
    "Dropout": _dropout,
    "parameters": _parameters,
    "uniform": _uniform,
    "integers": _integers,
}


def list_random_checks() -> Iterator[Check]:
    """Yield a check for each way to draw numbers."""
    for name in DRAWN:
        yield Check("random", name, partial(check_drawn, name), Level.smoke)


def check_drawn(name: str, target: Target, level: Level) -> Outcome:
    """Draw with two seeds on one device and on the mesh; compare with NumPy."""
    expected = [DRAWN[name](open_oracle(), seed) for seed in (3, 4)]
    for backend in (target.open(), target.open_all()):
        for seed, wanted in zip((3, 4), expected, strict=True):
            found = DRAWN[name](backend, seed)
            difference = describe_difference(found, wanted)
            if difference:
                distinct = len(np.unique(found))
                raise Mismatch(
                    f"seed {seed} on {backend.mesh!r}: {difference}; {distinct} distinct values "
                    f"of {found.size}, where NumPy has {len(np.unique(wanted))}"
                )
    return Outcome(note="two seeds, one device and the mesh")
