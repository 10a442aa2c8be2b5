"""Models for the tests of placement and pipelines, and their comparison with one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import mithril as ml
import numpy as np

from tests.tolerances import TOLERANCE

Given = Mapping[str, np.ndarray]
Opened = Callable[[ml.Mesh], ml.Backend]
FEATURES = 8


def block(hidden: int = 12, name: str | None = None) -> ml.Model:
    """Return a residual block: norm, two linear layers, addition."""
    model = ml.Model(name=name)
    model |= ml.LayerNorm()(input="x", output="normed")
    model |= ml.FeedForward(hidden)(input="normed", output="changed")
    model |= ml.Add()(inputs=["x", "changed"], output="y")
    return model


def head(classes: int = 5) -> ml.Model:
    """Return the end of a classifier: a linear layer and its loss."""
    model = ml.Model()
    model |= ml.Linear(classes)(input="y", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="targets", output="loss")
    return model


def followed(first: ml.Model, second: ml.Model) -> ml.Model:
    """Return a block with a head behind it."""
    model = ml.Model()
    model |= first(x="x", y="y")
    model |= second(y="y", targets="targets", loss="loss")
    return model


def classifier(stages: int, **options: Any) -> ml.Model:
    """Return a pipeline of blocks that ends in a loss."""
    parts = [block() for _ in range(stages - 1)]
    model = ml.Model()
    pipeline = ml.Pipeline([*parts, followed(block(), head())], **options)
    model |= pipeline(input="input", targets="targets", output="loss")
    return model


def stacked() -> ml.Model:
    """Return a loop that is cut over two stages, a layer before it and the loss behind."""
    model = ml.Model()
    model |= ml.Linear(FEATURES, name="first")(input="input", output="h")
    model |= ml.Repeat(block(), 4, name="deep")(input="h", output="y")
    model |= head()(y="y", targets="targets", loss="loss")
    model.stage("first", 0)
    model.stage("deep", [0, 1])
    return model


def samples(batch: int, classes: int = 5) -> dict[str, np.ndarray]:
    """Return inputs of the classifier."""
    rng = np.random.default_rng(batch)
    return {
        "input": rng.standard_normal((batch, FEATURES)).astype(np.float32),
        "targets": rng.integers(0, classes, batch).astype(np.int32),
    }


def compared(
    model: ml.Model,
    backend: ml.Backend,
    inputs: Given,
    gradients: Mapping[str, Any] | None = None,
    *,
    spec: ml.P | None = None,
    seed: int = 3,
    observed: bool = True,
    in_order: bool = True,
    device: int | None = None,
    differentiable: tuple[str, ...] = (),
    **options: Any,
) -> ml.CompiledModel:
    """Compare a model on a backend with one device of NumPy's, and what is carried out with the plan.

    Args:
        model: the model.
        backend: where it runs.
        inputs: by name.
        gradients: of outputs; those of all float outputs are ones by default.
        spec: how the inputs arrive.
        seed: of dropout.
        observed: whether the backend tells what it carries out as the plan lists it.
        in_order: whether in the order of the plan.
        device: that of this process, where it tells only what that takes part in.
        differentiable: inputs whose gradients are compared, too.
        options: of `ml.compile`.
    """
    alone = ml.compile(model, ml.NumpyBackend(), differentiable=differentiable)
    params = alone.randomize_params(1)
    expected = alone.evaluate(params, inputs, seed=seed)
    if gradients is None:
        floats = {k: v for k, v in expected.items() if v.dtype.is_float}
        gradients = {k: np.ones(v.shape, v.dtype.numpy) for k, v in floats.items()}
    _, slopes = alone.evaluate(params, inputs, gradients, seed=seed)

    compiled = ml.compile(model, backend, differentiable=differentiable, **options)
    own = compiled.randomize_params(1)
    placed: dict[str, Any] = dict(inputs)
    if spec is not None:
        placed = {name: backend.array(value, sharding=spec) for name, value in inputs.items()}
    issued: list[tuple[str, tuple[str, ...], int]] = []
    note = issued.append
    outputs = compiled.evaluate(own, placed, seed=seed)
    equal(outputs, expected)
    observe = (lambda told: note(told.row)) if observed else None
    outputs, found = compiled.evaluate(own, placed, gradients, seed=seed, observe=observe)
    equal(outputs, expected)
    equal(found, slopes)
    assert {name: found[name].sharding for name in own} == {n: x.sharding for n, x in own.items()}
    planned = list(compiled.plan.list_issued(device))
    if in_order:
        assert not observed or issued == planned
    else:
        assert not observed or Counter(issued) == Counter(planned)
    return compiled


def equal(found: Mapping[str, ml.Array], expected: Mapping[str, ml.Array]) -> None:
    """Assert that arrays are equal to those of one device."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        rtol, atol = TOLERANCE[str(value.dtype)] if value.dtype.is_float else (0, 0)
        np.testing.assert_allclose(
            found[name].numpy(), value.numpy(), rtol=rtol, atol=atol, err_msg=name
        )
