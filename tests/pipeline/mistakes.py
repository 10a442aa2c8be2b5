"""What the tests of mistakes about stages and devices share."""

from __future__ import annotations

import re
from collections.abc import Callable

import mithril as ml
import pytest

from tests.pipeline.models import FEATURES, block, samples

Case = tuple[Callable[[], object], type[ml.MithrilError], str]
"""What is wrong, and the error and text that answer it."""
PIPE = ml.Mesh(pipeline=2)


def answered(case: Case) -> None:
    """Check that a mistake is answered with a kind of error and a text."""
    make, kind, text = case
    with pytest.raises(kind, match=re.escape(text)) as caught:
        make()
    assert "fault of Mithril" not in str(caught.value)


def run(model: ml.Model, mesh: ml.Mesh, batch: int = 8, **options: object) -> None:
    compiled = ml.compile(model, ml.NumpyBackend(mesh), **options)
    names = set(compiled.inputs)
    inputs = {name: x for name, x in samples(batch).items() if name in names}
    outputs = compiled.evaluate(compiled.randomize_params(), inputs)
    gradients = {name: x for name, x in outputs.items() if x.dtype.is_float}
    compiled.evaluate(compiled.randomize_params(), inputs, gradients)


def staged(*stages: int) -> ml.Model:
    model = ml.Model()
    for number, stage in enumerate(stages):
        model += ml.Linear(FEATURES, name=f"layer_{number}")
        model.stage(f"layer_{number}", stage)
    return model


def around(inner: ml.Model | ml.Layer) -> ml.Model:
    model = ml.Model()
    if isinstance(inner, ml.Model) and "targets" in inner.snapshot().input_ports:
        model |= ml.Pipeline([block(), block()])(input="input", output="h")
        model |= inner(input="h", targets="targets", loss="loss")
        return model
    model |= ml.Pipeline([block(), inner], microbatch_size=2)(input="input", output="output")
    return model
