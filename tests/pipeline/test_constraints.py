"""`ml.constrain` in stages that run micro-batches: the user's word is about devices, not time."""

from __future__ import annotations

from typing import Any

import mithril as ml
import pytest
from mithril import P
from mithril.errors import MeshError
from mithril.ir import Tensor
from mithril.models.initializers import fan_in_uniform
from mithril.models.trace_context import parameter

from tests.pipeline.models import FEATURES, compared, samples
from tests.profiles import quick

SPECS = [P("data"), P("data", "tensor"), P(None, "tensor"), P("tensor"), P()]


@ml.layer
def Pin(x: Tensor, *, spec: Any) -> Tensor:  # noqa: N802
    return ml.constrain(x, spec)


@ml.layer(parameters=("weight",))
def PinnedWeight(x: Tensor, *, spec: Any) -> Tensor:  # noqa: N802
    weight = parameter("weight", (FEATURES, FEATURES), fan_in_uniform(FEATURES))
    return x @ ml.constrain(weight, spec)


def stage(spec: P, where: str, name: str) -> ml.Model:
    model = ml.Model(name=name)
    model += ml.Linear(FEATURES, name="first")
    if where == "weight":
        model += PinnedWeight(spec=spec, name="pinned")
    if where == "value":
        model += Pin(spec=spec, name="pinned")
    if where == "loop":
        body = ml.Model()
        body |= ml.Linear(FEATURES, name="line")(input="x", output="h")
        body += Pin(spec=spec, name="pinned")
        body += ml.Tanh(name="act")
        model += ml.Repeat(body, 2, name="deep")
    model += ml.Gelu(name="act")
    model += ml.Linear(FEATURES, name="last")
    if where == "end":
        model += Pin(spec=spec, name="pinned")
    return model


def pipeline(spec: P, where: str) -> ml.Model:
    model = ml.Model()
    stages = [stage(spec, where, "one"), stage(spec, where, "two")]
    model |= ml.Pipeline(stages, microbatch_size=2, name="all")(input="input", output="y")
    model += ml.Linear(5, name="head")(output="logits")
    model += ml.CrossEntropy(name="end")(target="targets", output="loss")
    return model


def is_quick(where: str, spec: P) -> bool:
    return (where == "value" and spec == P("data")) or (where, spec) == ("loop", P(None, "tensor"))


@pytest.mark.parametrize("arrives", [None, P("data")], ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("where", ["value", "loop", "end", "weight"])
@quick(is_quick)
def test_stages_equal_one_device(where: str, spec: P, arrives: P | None) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2, pipeline=2))
    compiled = compared(pipeline(spec, where), backend, samples(16), spec=arrives)
    if where == "value":
        report = compiled.plan.specs["all.stage_0.pinned"]
        assert report.decided_by == "the user"
        assert [report.sharding.dims[d] for d in range(2)] == [spec.axes(0), spec.axes(1)]


@pytest.mark.slow
@pytest.mark.parametrize("arrives", [None, P("data")], ids=str)
def test_processes_of_torch_do_the_same(arrives: P | None) -> None:
    backend = ml.TorchBackend(ml.Mesh(data=2, pipeline=2), device="cpu")
    compared(pipeline(P("data"), "value"), backend, samples(16), spec=arrives, in_order=False)


def test_an_axis_that_the_mesh_lacks_is_told_as_the_user_wrote_it() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    with pytest.raises(MeshError) as caught:
        compared(pipeline(P("tensor"), "value"), backend, samples(16))
    text = str(caught.value)
    assert text.startswith("P('tensor') of tensor does not fit; mesh Mesh(pipeline=2) has no axis")
    assert "constrained at 'all.stage_0.pinned' (test_constraints.py:" in text
