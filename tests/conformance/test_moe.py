"""The mixture of experts on several devices of every installed backend equals NumPy's on one."""

from __future__ import annotations

from itertools import product

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.models.test_moe import FEATURES, HIDDEN, MODES, check_all_to_one, trained
from tests.profiles import quick
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
RTOL, ATOL = TOLERANCE["float32"]
LAYOUTS = {
    "one device": ({}, P(), {}),
    "experts with the data": ({"data": 4}, P("data"), {"device_mesh": (4,)}),
    "an axis of their own": (
        {"data": 2, "expert": 4},
        P(("data", "expert")),
        {"device_mesh": (2, 4), "device_mesh_partition": (False, True)},
    ),
    "data parallel": ({"data": 2}, P("data"), {}),
}


QUICK = {
    ("experts with the data", "capacity"), ("an axis of their own", "dropless"),
    ("data parallel", "reroute"),
}  # fmt: skip
"""Each layout and each mode once, as XLA takes seconds for each."""


@quick(lambda backend: backend != LOCKSTEP)
@quick(lambda layout, mode: (layout, mode) in QUICK)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_equals_one_device(backend: str, mode: str, layout: str) -> None:
    axes, spec, options = LAYOUTS[layout]
    one, _ = trained(ml.MoE(8, HIDDEN, **MODES[mode]), ml.NumpyBackend(), P())
    layer = ml.MoE(8, HIDDEN, **MODES[mode], **options)
    found, _ = trained(layer, opened(backend, **axes), spec)
    assert set(found) == set(one)
    for name, value in one.items():
        np.testing.assert_allclose(found[name], value, rtol=RTOL, atol=ATOL, err_msg=name)


@quick(lambda backend: backend != "jax")
def test_all_tokens_may_want_one_expert(backend: str) -> None:
    check_all_to_one(opened(backend), {}, P())
    check_all_to_one(opened(backend, data=4), {"device_mesh": (4,)}, P("data"))


@quick(lambda backend: backend != "jax")
def test_an_empty_batch(backend: str) -> None:
    for options, shape in product(({}, {"capacity_factor": None}), ((0, 3), (2, 0))):
        x = np.zeros((*shape, FEATURES), np.float32)
        compiled = ml.compile(ml.MoE(8, HIDDEN, **options), opened(backend))
        outputs, slopes = compiled.evaluate(
            compiled.randomize_params(), {"input": x}, {"output": x}
        )
        assert outputs["output"].shape == x.shape
        assert not outputs["tokens_per_expert"].numpy().any()
        assert not any(slope.numpy().any() for slope in slopes.values())
