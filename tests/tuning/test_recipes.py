"""Recipes: what does not divide, or has no stages, is named."""

from __future__ import annotations

from typing import Any

import mithril as ml
import pytest
from mithril.tuning.config import AxisRole, Config, Role
from mithril.tuning.model import TunedModel
from mithril.tuning.recipes import make_by_recipe

from tests.tuning.models import H100, TOKENS, make_chain, make_gpt

GPT, CHAIN = (make_gpt(), TOKENS), (make_chain(8, 8), {"input": ml.TensorSpec((16, 8))})
LARGE = make_chain(150_000, 8, 8, 8), {"input": ml.TensorSpec((4, 150_000))}


@pytest.mark.parametrize(
    ("given", "role", "size", "options", "why"),
    [
        (GPT, Role.data, 7, {}, "samples do not divide among 7 devices"),
        (GPT, Role.context, 7, {}, "sequences do not divide among 7 devices"),
        (CHAIN, Role.context, 2, {}, "sequences do not divide among 2 devices"),
        (GPT, Role.tensor, 7, {}, "weights do not divide among 7 devices"),
        (CHAIN, Role.data, 2, {"has_experts": True}, "stacks of experts do not divide among 2 "),
        (CHAIN, Role.tensor, 2, {"splits_stream": True}, "sequences between layers do not divide"),
        (CHAIN, Role.pipeline, 4, {}, "model has 2 layers, which cannot be cut into 4 stages; use"),
        (
            LARGE,
            Role.pipeline,
            4,
            {},
            "4 layers cannot be cut into 4 stages of which each holds at most 74",
        ),
    ],
)
def test_it_says_why_there_is_none(
    given: tuple[ml.Model, dict[str, Any]], role: Role, size: int, options: Any, why: str
) -> None:
    model, shapes = given
    hardware = ml.Hardware.load(H100)
    tuned = TunedModel(model, shapes, hardware, ml.Precision(), "latency")
    found = make_by_recipe(tuned, Config((AxisRole(role.value, size, role),), **options))
    assert isinstance(found, str)
    assert found.startswith(why)
