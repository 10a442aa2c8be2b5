"""Batches that do not divide into micro-batches: the last ones are smaller, or empty."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.pipeline.models import classifier, compared, samples

SIZES = [
    (batch, replicas, size)
    for batch in (1, 3, 5, 7, 10)
    for replicas in (1, 2, 4)
    for size in (1, 2, 3)
    if size <= -(-batch // replicas)
]


@pytest.mark.parametrize(("batch", "replicas", "size"), SIZES)
def test_a_batch_that_does_not_divide(batch: int, replicas: int, size: int) -> None:
    """Into any micro-batches, of which the last ones of some replicas may be empty."""
    backend = ml.NumpyBackend(ml.Mesh(data=replicas, pipeline=2))
    model = classifier(2, microbatch_size=size)
    compared(model, backend, samples(batch), {"loss": np.float32(1)}, spec=P("data"))
