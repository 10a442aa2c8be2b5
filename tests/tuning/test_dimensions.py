"""Families of dimensions: what is split together, found from the rules of the ops alone."""

from __future__ import annotations

import mithril as ml
from mithril.tuning.dimensions import Family, choose_families
from mithril.tuning.model import TunedModel
from mithril.tuning.recipes import find_batch, find_sequence

from tests.tuning.models import H100, TOKENS, make_gpt, make_mlp


def tune(model: ml.Model, **shapes: ml.TensorSpec) -> TunedModel:
    return TunedModel(model, shapes, ml.Hardware.load(H100), ml.Precision(), "throughput")


def family_of(tuned: TunedModel, name: str, dimension: int) -> Family:
    return next(f for f in tuned.families if f.parameters.get(name) == dimension)


def test_hidden_units_are_columns_of_one_weight_and_rows_of_the_next() -> None:
    tuned = tune(make_mlp(), x=ml.TensorSpec((8, 16)))
    hidden = family_of(tuned, "up.weight", 0)
    assert hidden.parameters == {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    assert hidden.size == 64
    assert hidden.bytes == 8 * 8 * 4  # the second product is a sum over them
    assert (hidden.sums, hidden.gradient_sums) == (1, 1)
    (chosen,) = choose_families(tuned.families, 4)
    assert chosen == hidden


def test_heads_hidden_units_and_vocabulary_of_a_transformer() -> None:
    tuned = tune(make_gpt(), **TOKENS)
    heads = family_of(tuned, "blocks.attn.q.weight", 1)
    assert heads.parameters == {
        "blocks.attn.q.weight": 1, "blocks.attn.k.weight": 1, "blocks.attn.v.weight": 1,
        "blocks.attn.o.weight": 2,
    }  # fmt: skip
    assert heads.size == 4  # that of the heads of keys and values
    hidden = family_of(tuned, "blocks.mlp.up.weight", 1)
    assert hidden.parameters == {
        "blocks.mlp.up.weight": 1, "blocks.mlp.gate.weight": 1, "blocks.mlp.down.weight": 2,
    }  # fmt: skip
    layers, width, ids = 4, 64, 16 * 32
    assert heads.sums == heads.gradient_sums == layers  # queries, keys and values read one input
    assert heads.bytes == heads.gradient_bytes == layers * ids * width * 4
    chosen = choose_families(tuned.families, 4)
    split = {name for family in chosen for name in family.parameters}
    assert split == {*heads.parameters, *hidden.parameters, "embed.weight", "head.weight"}
    assert not any(a.meets(b) for a in chosen for b in chosen if a is not b)
    assert choose_families(tuned.families, 8) and heads not in choose_families(tuned.families, 8)


def test_samples_and_tokens() -> None:
    tuned = tune(make_gpt(), **TOKENS)
    batch, sequence = find_batch(tuned), find_sequence(tuned)
    assert batch is not None and batch.inputs == {"ids": 0, "target": 0}
    assert sequence is not None and sequence.inputs == {"ids": 1, "target": 1}
    assert find_sequence(tune(make_mlp(), x=ml.TensorSpec((8, 16)))) is None


def test_experts_are_a_stack() -> None:
    model = ml.Model()
    model |= ml.MoE(num_experts=8, expert_dim=64, name="moe")(input="x", output="y")
    tuned = tune(model, x=ml.TensorSpec((8, 16, 32)))
    experts = family_of(tuned, "moe.experts.in.weight", 0)
    assert experts.is_stack
    assert experts.parameters.keys() >= {"moe.experts.out.weight", "moe.experts.in.bias"}
    layers = family_of(tune(make_gpt(), **TOKENS), "blocks.norm1.weight", 1)
    assert not layers.is_stack


def test_what_would_split_a_weight_twice_is_left_alone() -> None:
    model = ml.Model()
    model |= ml.Linear(16, name="square")(input="x", output="h")
    model |= ml.Add(name="add")(inputs=["x", "h"], output="y")
    tuned = tune(model, x=ml.TensorSpec((8, 16)))
    assert choose_families(tuned.families, 4) == []
