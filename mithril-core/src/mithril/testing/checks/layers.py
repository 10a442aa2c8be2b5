"""Every layer, its gradients included, with a batch of an uneven size on the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import mithril as ml
from mithril import P
from mithril.testing.check import Check, Outcome
from mithril.testing.checks.models import Arrays, compare
from mithril.testing.layer_cases import CASES, Case, is_first_of_its_layer
from mithril.testing.levels import Level
from mithril.testing.target import Target, open_oracle


def list_layer_checks() -> Iterator[Check]:
    """Yield a check for every layer."""
    for case in filter(is_first_of_its_layer, CASES):
        name = type(case.layer).__name__
        yield Check("layers", name, partial(check_layer, name), Level.full, devices=2)


def check_layer(name: str, target: Target, level: Level) -> Outcome:
    """Compare all cases of a layer with NumPy on one device."""
    cases = [case for case in CASES if type(case.layer).__name__ == name]
    for case in cases:
        compare(evaluate(case, target.open_all()), evaluate(case, open_oracle()))
    return Outcome(note=f"{len(cases)} case{'s' * (len(cases) > 1)}")


def evaluate(case: Case, backend: ml.Backend) -> Arrays:
    """Return outputs and gradients of a layer, the batch split over the first axis of the mesh."""
    host = case.arrays("float32")
    compiled = ml.compile(
        case.model(), backend, shapes=host, inference=case.inference,
        differentiable=list(case.inputs),
    )  # fmt: skip
    params = {
        name: _draw(value.shape, 20 + number) / 2
        for number, (name, value) in enumerate(compiled.randomize_params(0).items())
    }
    placed = {name: backend.array(value) for name, value in params.items()}
    split = P(*backend.mesh.names[:1])
    given = {
        name: backend.array(value, sharding=P() if name in case.whole else split)
        for name, value in host.items()
    }
    outputs = compiled.evaluate(placed, given, seed=0)
    names = case.outputs or tuple(outputs)
    slopes = {name: _draw(outputs[name].shape, 10 + i) for i, name in enumerate(names)}
    outputs, gradients = compiled.evaluate(placed, given, slopes, seed=0)
    found = {**outputs, **{f"gradient of {name}": x for name, x in gradients.items()}}
    return {name: value.numpy() for name, value in found.items()}


def _draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
