"""Stages of every kind on every installed backend equal NumPy's one device."""

from __future__ import annotations

import mithril as ml
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.pipeline.models import block, compared, followed, head, samples, stacked
from tests.pipeline.test_exchange import MaskedMean, deep
from tests.profiles import quick

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def loops() -> ml.Model:
    model = ml.Model()
    model |= ml.Pipeline([deep(0.3), followed(deep(0.0), head())], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    return model


def masked() -> ml.Model:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="h")
    model |= MaskedMean()(input="h", keep="targets", output="loss")
    return model


@quick(lambda backend: backend != "jax")
@pytest.mark.parametrize("make", [loops, masked, stacked], ids=lambda make: make.__name__)
def test_a_ragged_batch_through_stages(backend: str, make) -> None:
    options = {} if make is not stacked else {"pipeline": ml.PipelineOptions(microbatch_size=2)}
    on = opened(backend, data=2, pipeline=2)
    compared(make(), on, samples(7), spec=P("data"), observed=False, **options)


@quick(lambda backend: backend != "jax")
def test_stacks_at_rest(backend: str) -> None:
    model = loops()
    model.at_rest({"*weight": P("data")})
    on = opened(backend, data=2, pipeline=2)
    compared(model, on, samples(8), spec=P("data"), observed=False)
