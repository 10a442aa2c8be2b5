"""Matrices without a result, split batches, and second gradients, on every backend."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P, ops
from mithril.testing.cases_matrix import definite, spread
from mithril.types import DType

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE

ALL = pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
GOOD = definite(3, 3, 3).astype(np.float32)
SINGULAR, INDEFINITE, NAN = np.ones((3, 3)), -np.eye(3), np.full((3, 3), np.nan)
SIDES = np.ones((3, 3, 2), np.float32)
FUNCTIONS = {
    "cholesky": (ops.cholesky, INDEFINITE),
    "solve": (lambda x: mnp.solve(x, SIDES[: x.shape[0]]), SINGULAR * 0),
    "triangular_solve": (lambda x: mnp.triangular_solve(x, SIDES[: x.shape[0]]), SINGULAR * 0),
    "inv": (ops.inv, SINGULAR * 0),
    "eigh": (lambda x: ops.eigh(x)[1], NAN),
    "svd": (lambda x: ops.svd(x)[0], NAN),
    "det": (ops.det, NAN),
    "qr": (lambda x: ops.qr(x)[0], NAN),
}


@ALL
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_matrix_without_a_result_spoils_no_other(backend: str, name: str) -> None:
    backend, (function, bad) = opened(backend), FUNCTIONS[name]
    mixed = GOOD.copy()
    mixed[1] = bad
    found, expected = (function(backend.array(x)).numpy() for x in (mixed, GOOD))
    assert not np.isfinite(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]])


@ALL
@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_are_split_without_a_collective(backend: str, name: str) -> None:
    """Three matrices on two devices: what fills the last part up has no inverse."""
    backend, (function, _) = opened(backend, data=2), FUNCTIONS[name]
    compiled = ml.jit(function)
    x = backend.array(GOOD, sharding=P("data"))
    expected = function(ml.NumpyBackend().array(GOOD)).numpy()
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(compiled(x).numpy(), expected, rtol=rtol, atol=atol)
    assert not compiled.plan(x).collectives()


@ALL
def test_gradients_of_gradients(backend: str) -> None:
    def steep(x):
        slopes = ml.grad(lambda x: (ops.cholesky(x) ** 2 * 0.5).sum() + ops.det(x).sum())(x)
        return (slopes * slopes).sum()

    backend = opened(backend)
    dtype = "float64" if DType.float64 in backend.engine.dtypes else "float32"
    found, expected = (
        ml.jit(ml.grad(steep))(on.array(definite(2, 3, 3), dtype=dtype)).numpy()
        for on in (backend, ml.NumpyBackend())
    )
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@ALL
def test_an_empty_batch(backend: str) -> None:
    backend = opened(backend)
    x = backend.zeros(0, 3, 3)
    assert ops.inv(x).shape == ops.cholesky(x).numpy().shape == (0, 3, 3)
    assert [y.numpy().shape for y in ops.svd(x)] == [(0, 3, 3), (0, 3), (0, 3, 3)]


def test_names_of_numpy() -> None:
    x = ml.NumpyBackend().array(spread(3, 3))
    for name in mnp.linalg.__all__:
        assert getattr(mnp.linalg, name) is getattr(mnp, name)
    np.testing.assert_allclose((mnp.linalg.inv(x) @ x).numpy(), np.eye(3), *TOLERANCE["float32"])
    assert "svd" in dir(mnp.linalg)
    with pytest.raises(
        AttributeError, match=r"mithril\.numpy\.linalg has no 'choleski'; did you mean 'cholesky'"
    ):
        mnp.linalg.choleski  # noqa: B018 - asked for
