"""What annotations mean on a mesh, and how they are given."""

from __future__ import annotations

import pytest
from mithril import models as ml
from mithril.errors import MeshError, OptionError, ShardingError
from mithril.mesh import Mesh, P
from mithril.models.annotations import Annotation, resolve
from mithril.models.trace import trace

from tests.models.evaluate import floats, integers

MESH_4 = Mesh.from_shape((4,))
MESH_4_2 = Mesh.from_shape((4, 2))
MESH_2_2 = Mesh.from_shape((2, 2))
MESH_2_2_2 = Mesh.from_shape((2, 2, 2))


def resolved(mesh: Mesh, spec, device_mesh=None, partition=None, rank: int = 2) -> P:
    wish = Annotation(spec, device_mesh, partition, " (x.py:1)")
    return resolve(wish, mesh, floats(*[8] * rank), "w").spec


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize(("mesh", "spec", "device_mesh", "partition", "expected"), [
    (MESH_4, (0, None), (4,), None, P("data", None)),
    (MESH_4, (None, 0), (4,), None, P(None, "data")),
    (MESH_4, (0, None), None, None, P("data", None)),
    (MESH_4, (0, None), (4, 1), None, P("data", None)),
    (MESH_2_2, (0, 1), (2, 2), None, P("data", "model")),
    (MESH_2_2, (1, 0), (2, 2), None, P("model", "data")),
    (MESH_2_2, (0, None), (2, 2), None, P("data", None)),
    (MESH_2_2, (0, 1), None, None, P("data", "model")),
    (MESH_4_2, (0, None), (1, 2), None, P("model", None)),  # the first usable one
    (MESH_4_2, (0, None), (4, 1), None, P("data", None)),
    (MESH_4_2, (0, None), (4,), None, P("data", None)),  # shorter: the leading dimensions
    (MESH_4_2, (0, 1), (4, 2), None, P("data", "model")),
    (MESH_4_2, (0, None), (4, 2), (False, True), P("model", None)),
    (MESH_4_2, (None, 0), None, (False, True), P(None, "model")),
    (MESH_2_2_2, (0, 1), (2, 2, 1), (True, True, False), P("data", "tensor")),
    (MESH_2_2_2, (1, 0), (2, 2, 1), (True, True, False), P("tensor", "data")),
    (MESH_2_2_2, (0, 1), (2, 1, 2), None, P("data", "pipeline")),
    (MESH_4_2, (None, None), (4, 2), None, P()),
    (MESH_4_2, P("model", None), None, None, P("model", None)),
    (MESH_4_2, P(("data", "model")), None, None, P(("data", "model"))),
    (Mesh(data=4, tensor=1, model=2), (0, 1), None, None, P("data", "model")),
    (MESH_4, (0, None), (2,), None, P("data.0")),  # the major part of an axis
    (MESH_4, (0, 1), (2, 2), None, P("data.0", "data.1")),  # another factorisation
    (MESH_2_2, (0, None), (4,), None, P(("data", "model"))),
    (MESH_4_2, (0, 1), (2, 4), None, P("data.0", ("data.1", "model"))),
    (Mesh(), (0, 5), (7, 3), None, P()),  # one device: ignored
    (Mesh(data=1), P("tensor"), None, None, P()),
])  # fmt: skip
def test_what_an_annotation_means(mesh, spec, device_mesh, partition, expected) -> None:
    assert resolved(mesh, spec, device_mesh, partition) == expected


@pytest.mark.parametrize(
    ("mesh", "spec", "device_mesh", "partition", "error", "text"),
    [
        (MESH_4, (0, None), (3,), None, MeshError, "device_mesh=(3,) of 'w' does not fit"),
        (MESH_2_2, (0, None), (8,), None, MeshError, "device_mesh=(8,) of 'w' does not fit"),
        (
            MESH_4,
            (0, 1),
            (4,),
            None,
            MeshError,
            "names usable mesh dimension 1, and there are 1 on mesh Mesh(data=4): 'data'",
        ),
        (MESH_4_2, (0, None), (4, 2), (False, False), MeshError, "there are 0 on mesh"),
        (
            MESH_4_2,
            (0, None),
            (4, 2, 1),
            (True,) * 4,
            MeshError,
            " has 3; give one flag per dimension",
        ),
        (
            MESH_4_2,
            (None, None, 0),
            None,
            None,
            ShardingError,
            "has 3 entries for float32[8, 8] of rank 2",
        ),
        (
            MESH_4_2,
            (0, None, None),
            (4, 2),
            None,
            ShardingError,
            "weight_shard_spec (0, None, None) of 'w' has 3 entries for float32[8, 8] of rank 2",
        ),
        (MESH_4_2, P(None, None, "data"), None, None, ShardingError, "has 3 entries"),
        (MESH_4_2, P("tensor"), None, None, MeshError, "has no axis 'tensor'"),
    ],
)
def test_what_a_mesh_cannot_hold(mesh, spec, device_mesh, partition, error, text: str) -> None:
    with pytest.raises(error) as caught:
        resolved(mesh, spec, device_mesh, partition)
    assert text in str(caught.value)


def test_messages_say_where_the_annotation_was_given() -> None:
    with pytest.raises(MeshError, match=r"\(x.py:1\)"):
        resolved(MESH_4, (0, 1), (3, 2))


# ------------------------------------------------------------------ given to layers


def specs(layer: ml.Layer) -> dict[str, object]:
    return {name: annotation.spec for name, annotation in layer.annotations.items()}


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ml.Linear(4, weight_shard_spec=(0, None)), {"weight": (0, None)}),
        (ml.Linear(4, weight_shard_spec=[0, None]), {"weight": (0, None)}),
        (ml.Linear(4, weight_shard_spec=[(0, None), None]), {"weight": (0, None)}),
        (ml.Linear(4, weight_shard_spec=[None]), {}),
        (ml.Linear(4), {}),
        (ml.Embedding(8, 4, weight_shard_spec=(0, None)), {"weight": (0, None)}),
        (ml.Conv2d(4, 3, weight_shard_spec=(0,)), {"weight": (0,)}),
        (
            ml.MultiHeadAttention(4, weight_shard_spec=[(0, 1), None, None]),
            {"q.weight": (0, 1), "k.weight": (0, 1), "v.weight": (0, 1)},
        ),
        (
            ml.MultiHeadAttention(4, weight_shard_spec=[(0, 1), (1, 0)]),
            {"q.weight": (0, 1), "k.weight": (0, 1), "v.weight": (0, 1), "o.weight": (1, 0)},
        ),
        (
            ml.MultiHeadAttention(4, weight_shard_spec=(0, None)),
            {"q.weight": (0, None), "k.weight": (0, None), "v.weight": (0, None)},
        ),
        (
            ml.FeedForward(4, weight_shard_spec=[(0, 1), (1, 0)]),
            {"up.weight": (0, 1), "down.weight": (1, 0)},
        ),
        (ml.FeedForward(4, weight_shard_spec=[None, (1, 0)]), {"down.weight": (1, 0)}),
        (
            ml.FeedForward(4, weight_shard_spec=((0, 1), (1, 0))),
            {"up.weight": (0, 1), "down.weight": (1, 0)},
        ),
        (
            ml.Linear(4, sharding={"weight": P("tensor"), "bias": P("tensor")}),
            {"weight": P("tensor"), "bias": P("tensor")},
        ),
    ],
)
def test_forms_of_weight_shard_spec(layer: ml.Layer, expected: dict[str, object]) -> None:
    assert specs(layer) == expected


def test_device_mesh_may_be_a_number() -> None:
    layer = ml.Linear(4, weight_shard_spec=(0, None), device_mesh=4)
    assert layer.annotations["weight"].device_mesh == (4,)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: ml.Linear(4, weight_shard_spec="0"),
            OptionError,
            "weight_shard_spec is '0'; give for each",
        ),
        (
            lambda: ml.Linear(4, weight_shard_spec=(-1,)),
            OptionError,
            r"weight_shard_spec is \(-1,\)",
        ),
        (
            lambda: ml.Linear(4, weight_shard_spec=(0, 0)),
            OptionError,
            "uses a mesh dimension twice",
        ),
        (
            lambda: ml.Linear(4, weight_shard_spec=[(0,), (1,)]),
            OptionError,
            "Linear takes 1 weight specs, .* gives a spec for weight 2",
        ),
        (lambda: ml.Relu(weight_shard_spec=(0,)), OptionError, "Relu has no weights"),
        (lambda: ml.Linear(4, device_mesh=(4,)), OptionError, r"device_mesh=\(4,\) has no effect"),
        (lambda: ml.Linear(4, device_mesh_partition=(True,)), OptionError, "has no effect"),
        (
            lambda: ml.Linear(
                4, weight_shard_spec=(0,), device_mesh=(4, 2), device_mesh_partition=(True,)
            ),
            OptionError,
            r"device_mesh_partition is \(True,\); give 2 values",
        ),
        (
            lambda: ml.Linear(4, weight_shard_spec=(0,), device_mesh_partition=(1, 0)),
            OptionError,
            "give values True or False, one per dimension of device_mesh",
        ),
        (
            lambda: ml.Linear(4, weight_shard_spec=(0,), device_mesh=(4, 0)),
            MeshError,
            "positive integers",
        ),
        (
            lambda: ml.Linear(4, sharding=P("tensor")),
            OptionError,
            "give a mapping from parameter to spec",
        ),
        (
            lambda: ml.Linear(4, sharding={"wieght": P("tensor")}),
            OptionError,
            "no parameter 'wieght' to shard; .*did you mean 'weight'?",
        ),
        (
            lambda: ml.Linear(4, bias=False, sharding={"bias": P()}),
            OptionError,
            "no parameter 'bias'",
        ),
        (
            lambda: ml.Linear(4, sharding={"weight": ("tensor",)}),
            OptionError,
            "give a partition spec",
        ),
        (
            lambda: ml.Linear(4, sharding={"weight": P()}, weight_shard_spec=(0,)),
            OptionError,
            "both sharding and weight_shard_spec",
        ),
    ],
)
def test_sharding_options_are_checked_when_a_layer_is_made(make, error, text: str) -> None:
    with pytest.raises(error, match=text):
        make()


# ------------------------------------------------------------------ model.shard


def attention_model() -> ml.Model:
    block = ml.Model(name="block0")
    block |= ml.MultiHeadAttention(2, name="attn")(input="x", output="y")
    model = ml.Model()
    model += block
    model += ml.Linear(4, sharding={"weight": P("data")}, name="head")(output="logits")
    return model


def annotated(model: ml.Model) -> dict[str, object]:
    traced = trace(model, {"x": floats(1, 2, 4)})
    return {name: annotation.spec for name, annotation in traced.annotations.items()}


def test_patterns_match_full_names_and_the_last_wins() -> None:
    model = attention_model()
    model.shard({"*.attn.*.weight": P("tensor", None)})
    model.shard({"*.attn.o.weight": P(None, "tensor")})
    assert annotated(model) == {
        "block0.attn.q.weight": P("tensor", None), "block0.attn.k.weight": P("tensor", None),
        "block0.attn.v.weight": P("tensor", None), "block0.attn.o.weight": P(None, "tensor"),
        "head.weight": P("data"),
    }  # fmt: skip


def test_a_pattern_beats_the_annotation_of_a_layer() -> None:
    model = attention_model()
    model.shard({"head.weight": P("tensor")})
    assert annotated(model) == {"head.weight": P("tensor")}


def test_patterns_of_a_nested_model_speak_of_its_own_names_and_come_first() -> None:
    inner, model = attention_model(), ml.Model()
    inner.shard({"head.*": P("tensor"), "block0.attn.q.weight": P("tensor")})
    model += inner
    model.shard({"*.q.weight": P("data")})
    assert annotated(model) == {
        "model_0.head.weight": P("tensor"), "model_0.head.bias": P("tensor"),
        "model_0.block0.attn.q.weight": P("data"),
    }  # fmt: skip


def test_patterns_reach_layers_added_later_and_values() -> None:
    model = ml.Model()
    model.shard({"hid*": P("data"), "x": P("data"), "relu_0": P("tensor")})
    model |= ml.Linear(4)(input="x", output="hidden")
    model += ml.Relu()(output="y")
    traced = trace(model, {"x": floats(2, 3)})
    found = {value.name: annotation.spec for value, annotation in traced.value_annotations.items()}
    assert found == {"x": P("data"), "hidden": P("data"), "y": P("tensor")}


def test_a_shared_parameter_is_reached_by_each_of_its_names() -> None:
    shared, model = ml.Linear(4), ml.Model()
    model |= shared(input="x", output="h")
    model |= shared(input="h", output="y")
    model.shard({"linear_1.weight": P("tensor")})
    traced = trace(model, {"x": floats(2, 4)})
    assert {n: a.spec for n, a in traced.annotations.items()} == {"linear_0.weight": P("tensor")}


def test_a_pattern_that_matches_nothing_lists_near_names() -> None:
    model = attention_model()
    model.shard({"block0.atn.q.weight": P("tensor")})
    with pytest.raises(ShardingError, match=(
        r"pattern 'block0.atn.q.weight' of model.shard \(test_annotations.py:\d+\) matches no "
        r"parameter or value; near names: 'block0.attn.q.weight'"
    )):  # fmt: skip
        trace(model, {"x": floats(1, 2, 4)})


@pytest.mark.parametrize("rules", [{"*": "tensor"}, {3: P()}, {"*": None}])
def test_shard_takes_patterns_and_partition_specs(rules) -> None:
    model = attention_model()
    before = model.snapshot()
    with pytest.raises(ShardingError, match="give a name pattern and a partition spec"):
        model.shard(rules)
    assert model.snapshot() is before


# ------------------------------------------------------------------ at rest


def kept(model: ml.Model, **types) -> dict[str, object]:
    traced = trace(model, types or {"x": floats(1, 2, 4)})
    return {name: annotation.spec for name, annotation in traced.at_rest.items()}


def test_at_rest_is_a_mapping_of_its_own() -> None:
    model = attention_model()
    before = annotated(model)
    model.at_rest({"*.q.*": P("data"), "head.weight": P(None, "data")})
    assert annotated(model) == before
    assert kept(model) == {
        "block0.attn.q.weight": P("data"), "block0.attn.q.bias": P("data"),
        "head.weight": P(None, "data"),
    }  # fmt: skip
    model.shard({"head.weight": P("tensor")})
    assert kept(model)["head.weight"] == P(None, "data")


def test_the_last_pattern_at_rest_wins_and_beats_the_layer() -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="a", at_rest={"weight": P("data")})(input="x", output="h")
    model |= ml.Linear(4, name="b", at_rest=P("data"))(input="h", output="y")
    assert kept(model) == {"a.weight": P("data"), "b.weight": P("data"), "b.bias": P("data")}
    model.at_rest({"*.weight": P("tensor")})
    model.at_rest({"b.weight": P(None, "tensor")})
    assert kept(model) == {
        "a.weight": P("tensor"), "b.weight": P(None, "tensor"), "b.bias": P("data"),
    }  # fmt: skip


def test_rules_at_rest_of_a_nested_model_come_before_those_around_it() -> None:
    inner = attention_model()
    inner.at_rest({"head.*": P("data")})
    model = ml.Model()
    model |= inner(x="x")
    model.at_rest({"*.head.bias": P("tensor")})
    assert kept(model) == {"model_0.head.weight": P("data"), "model_0.head.bias": P("tensor")}


def test_a_shared_parameter_rests_by_each_of_its_names() -> None:
    shared, model = ml.Linear(4), ml.Model()
    model |= shared(input="x", output="h")
    model |= shared(input="h", output="y")
    model.at_rest({"linear_1.weight": P("data")})
    assert kept(model, x=floats(2, 4)) == {"linear_0.weight": P("data")}


def test_only_parameters_rest() -> None:
    model = attention_model()
    model.at_rest({"block0.attn": P("data")})
    with pytest.raises(ShardingError, match=(
        r"pattern 'block0.attn' of model.at_rest \(test_annotations.py:\d+\) matches no parameter; "
        r"near names: 'block0.attn"
    )):  # fmt: skip
        trace(model, {"x": floats(1, 2, 4)})


def test_the_model_of_the_mixed_guide() -> None:
    model = ml.Model()
    model |= ml.Embedding(
        vocab_size=512, embedding_dim=64, weight_shard_spec=(0, None), device_mesh=(1, 2)
    )(input="input", output="embedding")
    model += ml.Linear(dimension=32, weight_shard_spec=(0, 1), device_mesh=(4, 2))(
        input="embedding", output="hidden1"
    )
    model += ml.Relu()(input="hidden1", output="hidden1_act")
    model += ml.Linear(dimension=16, weight_shard_spec=(0, None), device_mesh=(4, 1))(
        input="hidden1_act", output="output"
    )
    traced = trace(model, {"input": integers(16, 32)})
    types = {value.name: value.type for value in traced.graph.inputs}
    found = {n: resolve(a, MESH_4_2, types[n], n).spec for n, a in traced.annotations.items()}
    assert found == {
        "embedding_0.weight": P("model", None),
        "linear_0.weight": P("data", "model"),
        "linear_1.weight": P("data", None),
    }
