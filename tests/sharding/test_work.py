"""A deeper model of equal blocks asks for nothing new: what planning computes stays the same."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import mithril as ml
import pytest
from mithril import P
from mithril.sharding.eliminate import Steps
from mithril.sharding.narrow import minimise

SHALLOW, DEEP = 6, 12


def model(blocks: int, at_rest: bool) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(16, name="first")(input="input", output="x0")
    for i in range(blocks):
        block = ml.Model(name=f"block{i}")
        block |= ml.LayerNorm(name="norm")(input="x", output="even")
        block += ml.FeedForward(hidden_dim=64, name="mlp")(input="even", output="thought")
        block += ml.Add()(inputs=["x", "thought"], output="y")
        model |= block(x=f"x{i}", y=f"x{i + 1}")
    model.shard({"*.mlp.up.weight": P("tensor", None), "*.mlp.down.weight": P(None, "tensor")})
    if at_rest:
        model.at_rest({"*.weight": P("data")})
    return model


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is computed: entries and steps of tables, prices of collectives, options."""
    counts: Counter[str] = Counter()

    def observe(domains, tables):
        steps = Steps()
        found, work = minimise(domains, tables, steps=steps), steps.work
        counts.update(entries=work.entries, steps=work.steps, compared=work.compared)
        return found

    def count(module: str, name: str) -> None:
        original = getattr(import_module(module), name)

        def counting(*arguments, **options):
            counts[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(import_module(module), name, counting)

    monkeypatch.setattr(import_module("mithril.sharding.choose"), "minimise", observe)
    count("mithril.sharding.reshard", "price_collective")
    count("mithril.sharding.option", "_option")
    count("mithril.sharding.alternatives", "_compare")
    return counts


def plan(blocks: int, at_rest: bool, done: Counter[str]) -> Counter[str]:
    done.clear()
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=4))
    x = ml.TensorSpec((8, 16), "float32", P("data"))
    ml.compile(model(blocks, at_rest), backend, shapes={"input": x})
    return Counter(done)


@pytest.mark.parametrize("at_rest", [False, True])
def test_twice_the_blocks_are_looked_up(at_rest: bool, done: Counter[str]) -> None:
    small, large = plan(SHALLOW, at_rest, done), plan(DEEP, at_rest, done)
    for name in ("entries", "price_collective", "_option", "_compare"):
        assert large[name] == small[name] > 0, name
    for name in ("steps", "compared"):
        assert small[name] < large[name] <= 2 * small[name], name
