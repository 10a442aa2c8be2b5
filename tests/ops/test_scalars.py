"""Every elementwise op runs on arrays without dimensions, in every dtype it takes."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.errors import ShapeError
from mithril.ir.op import registry
from mithril.ops.elementwise import Elementwise
from mithril.testing.cases import CASES
from mithril.types import DType, TensorType

from tests.tolerances import TOLERANCE

OPS: dict[str, tuple[Elementwise, int]] = {
    case.op.name: (case.op, len(case.arrays))
    for case in CASES
    if isinstance(case.op, Elementwise) and case.op.name in registry()
}
"""An op of each kind, and how many operands it takes."""
BACKEND = ml.NumpyBackend()


def test_there_is_a_case_of_every_elementwise_op() -> None:
    kinds = {
        name
        for name, kind in registry().items()
        if issubclass(kind, Elementwise) and kind.__module__.startswith("mithril.")
    }
    assert kinds <= {*OPS}


@pytest.mark.parametrize("name", OPS)
def test_scalars_are_computed_as_vectors_are(name: str) -> None:
    op, operands = OPS[name]
    taken = 0
    for dtype in DType:
        dtypes = [dtype] * operands if name != "where" else [DType.bool_, dtype, dtype]
        try:
            (result,) = op.infer([TensorType((3,), d) for d in dtypes])
        except ShapeError:
            continue  # an op of floats, say
        values = [np.array([0, 1, 1]).astype(d.numpy) for d in dtypes]
        with np.errstate(all="ignore"):
            (vector,) = BACKEND.run(op, [array(v, d) for v, d in zip(values, dtypes, strict=True)])
            expected = vector.numpy().astype(np.float64)
            rtol, atol = TOLERANCE.get(result.dtype, (0.0, 0.0))
            for place in range(3):
                scalars = [v[place : place + 1].reshape(()) for v in values]
                given = [array(v, d) for v, d in zip(scalars, dtypes, strict=True)]
                (found,) = BACKEND.run(op, given)
                assert (found.shape, found.dtype) == ((), result.dtype)
                near = {"rtol": rtol, "atol": atol, "equal_nan": True}
                np.testing.assert_allclose(
                    found.numpy().astype(np.float64), expected[place], **near
                )
        taken += 1
    assert taken, f"{name} takes no dtype"


def array(values: np.ndarray, dtype: DType) -> ml.Array:
    return BACKEND.array(values, dtype=dtype)
