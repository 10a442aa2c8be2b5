"""What is decided or summed over all micro-batches, behind them: the values of one device."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.ir import Tensor

from tests.tolerances import TOLERANCE

OVER_THE_BATCH: dict[str, Callable[[Tensor], Tensor]] = {
    "any": lambda x: ops.any(x > 0.5, 0),
    "all": lambda x: ops.all(x > -1.0),
    "argmax": lambda x: ops.argmax(x, 0),
    "top_k": lambda x: ops.top_k(x, 3, 0)[1],
    "cumsum": lambda x: ops.cumsum(x, 0),
    "cumprod": lambda x: ops.cumprod(x, 0, reverse=True),
    "prod": lambda x: ops.prod(x, 0),
}


@ml.layer
def OverTheBatch(input: Tensor, *, op: str) -> Tensor:  # noqa: N802
    return OVER_THE_BATCH[op](input)


@pytest.mark.parametrize("axes", [{"pipeline": 2}, {"data": 2, "pipeline": 2}], ids=str)
@pytest.mark.parametrize("op", OVER_THE_BATCH)
def test_ops_along_the_batch_see_all_micro_batches(op: str, axes: dict[str, int]) -> None:
    model = ml.Model()
    stages = [ml.Linear(6, name="first"), ml.Linear(6, name="last")]
    model |= ml.Pipeline(stages, microbatch_size=2)(input="input", output="h")
    model |= OverTheBatch(op=op)(input="h", output="y")
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    found = []
    for mesh, spec in ((ml.Mesh(), P()), (ml.Mesh(axes), P("data") if "data" in axes else P())):
        backend = ml.NumpyBackend(mesh)
        shapes = {"input": ml.TensorSpec(x.shape, sharding=spec)}
        compiled = ml.compile(model, backend, shapes=shapes, inference=True)
        given = {"input": backend.array(x, sharding=spec)}
        found.append(compiled.evaluate(compiled.randomize_params(seed=0), given)["y"].numpy())
    np.testing.assert_allclose(found[1], found[0], *TOLERANCE["float32"])
