"""What compile is told besides model and backend: each setting has an effect."""

from __future__ import annotations

import re

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.runtime import planner
from mithril.runtime.lru import LRUCache

from tests.tolerances import DIFFERENCES

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="input", output="hidden")
    model += ml.Gelu()(input="hidden", output="active")
    model += ml.Linear(4, name="down")(input="active", output="output")
    return model


def backend(**axes: int) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(axes))


# ------------------------------------------------------------------ differentiable


@pytest.mark.parametrize("mesh", [{}, {"data": 4}, {"data": 3}])
def test_gradients_of_inputs(mesh: dict[str, int]) -> None:
    on = ml.NumpyBackend(ml.Mesh(mesh), dtype="float64")
    compiled = ml.compile(mlp(), on, differentiable=["input"])
    params = compiled.randomize_params()
    wide = X.astype(np.float64)
    x = on.array(wide, sharding=P("data") if mesh else P())
    ones = np.ones((8, 4))
    _, gradients = compiled.evaluate(params, {"input": x}, {"output": ones})
    assert list(gradients) == [*params, "input"]
    assert gradients["input"].sharding == x.sharding
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(X.shape)
    up, down = (compiled.evaluate(params, {"input": wide + s * direction}) for s in (1e-6, -1e-6))
    slope = (up["output"].numpy() - down["output"].numpy()).sum() / 2e-6
    found = (gradients["input"].numpy() * direction).sum()
    rtol, atol = DIFFERENCES
    np.testing.assert_allclose(found, slope, rtol=rtol, atol=atol)


def test_integer_inputs_have_no_gradient() -> None:
    model = ml.Model()
    model |= ml.Embedding(4, 3)(input="tokens", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), differentiable=["tokens"])
    with pytest.raises(ml.GraphError, match="input 'tokens' has dtype int32; gradients need"):
        compiled.evaluate(
            compiled.randomize_params(),
            {"tokens": np.zeros(2, np.int32)},
            {"output": np.ones((2, 3), np.float32)},
        )


# ------------------------------------------------------------------ max_reshard_bytes


def meeting() -> ml.Model:
    """A weight and an activation split over one axis: the activation has to be gathered."""
    model = mlp()
    model.shard({"up.weight": P("data")})
    return model


def test_a_hidden_move_can_be_refused() -> None:
    on = backend(data=4)
    shapes = {"input": ml.TensorSpec((8, 4), sharding=P("data"))}
    moved = 8 * 4 * 4
    ml.compile(meeting(), on, shapes=shapes, max_reshard_bytes=1 << 20)
    with pytest.raises(ml.PlanError) as caught:
        ml.compile(meeting(), on, shapes=shapes, max_reshard_bytes=moved - 1)
    assert str(caught.value) == (
        "plan moves 'input' by all_gather over data, from P('data', None) to P(None, None) for "
        f"up.einsum; {moved} bytes, more than max_reshard_bytes={moved - 1}; split the two alike, "
        "or raise the limit"
    )


def test_what_is_kept_at_rest_is_no_hidden_move() -> None:
    model = mlp()
    model.at_rest({"*": P("data")})
    shapes = {"input": ml.TensorSpec((8, 4), sharding=P("data"))}
    compiled = ml.compile(model, backend(data=4), shapes=shapes, max_reshard_bytes=0)
    assert "all_gather" in {row.kind for row in compiled.plan.collectives()}


# ------------------------------------------------------------------ summary


def test_summary_before_and_after_the_shapes_are_known() -> None:
    model = mlp()
    model.shard({"up.weight": P("data")})
    compiled = ml.compile(model, backend(data=4))
    assert compiled.summary().endswith("no shapes are known yet")
    compiled.plan_for({"input": (8, 4)})
    text = compiled.summary()
    assert "4 parameters, 148 numbers" in text
    assert "up.weight: float32[16, 4] P('data', None), (4, 4) on each device" in text
    assert "Linear(dimension=4, name='down')" in text
    lone = ml.compile(ml.Linear(3), ml.NumpyBackend(), shapes={"input": (2, 2)})
    assert lone.summary().startswith("Linear(dimension=3): parameters weight, bias")


# ------------------------------------------------------------------ memory of plans


def test_old_plans_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "KEPT", 2)
    compiled = ml.compile(ml.Relu(), ml.NumpyBackend())
    for size in (1, 2, 3, 4, 5, 1):
        out = compiled.evaluate({}, {"input": -np.ones(size, np.float32)})["output"]
        np.testing.assert_array_equal(out, np.zeros(size))
    assert compiled.recompiles == 6, "the first was planned again"
    compiled.evaluate({}, {"input": np.ones(1, np.float32)})
    assert compiled.recompiles == 6


def test_recent_forgets_what_was_not_used_for_longest() -> None:
    recent: LRUCache[str, int] = LRUCache(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c"), len(recent)) == (1, None, 3, 2)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"differentiable": "input"},
            ml.OptionError,
            r"differentiable='input' is no list of inputs; give their names",
        ),
        (
            {"differentiable": ["inptu"]},
            ml.GraphError,
            "differentiable names 'inptu', which is no input; did you mean 'input'",
        ),
        (
            {"max_reshard_bytes": -1},
            ml.OptionError,
            "max_reshard_bytes=-1 is no number of bytes; give an integer of 0 or more",
        ),
        (
            {"pipeline_schedule": 3},
            ml.OptionError,
            "pipeline_schedule=3 is no pipeline schedule; give a name, such as '1f1b', the path of",
        ),
        (
            {"pipeline_schedule": "gpipe"},
            ml.OptionError,
            "^pipeline_schedule='gpipe' has no effect on a model without stages; .* leave it out$",
        ),
        (
            {"pipeline": ml.PipelineOptions(microbatch_size=2)},
            ml.OptionError,
            r"^pipeline=PipelineOptions\(microbatch_size=2\) has no effect on a model without",
        ),
        ({"max_reshard_bytes": 1.5}, ml.OptionError, "max_reshard_bytes=1.5 is no number"),
    ],
)
def test_mistakes(options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ml.compile(mlp(), ml.NumpyBackend(), **options)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            {"shedule": "gpipe"},
            "PipelineOptions has no option 'shedule'; did you mean 'schedule'?; options: 'schedule'",
        ),
        ({"schedule": 3}, "schedule=3 is no pipeline schedule; give a name, such as '1f1b'"),
        ({"schedule": ["F0", 1]}, "schedule=['F0', 1] is no pipeline schedule"),
        ({"most_held": 0}, "most_held=0 is no number of micro-batches above 0; give one"),
        ({"microbatch_size": 0}, "microbatch_size=0 is no number of samples above 0; give one"),
    ],
)
def test_options_of_pipelines(option: dict, text: str) -> None:
    with pytest.raises(ml.OptionError, match=re.escape(text)):
        ml.PipelineOptions(**option)
