"""Products by a matrix that lies transposed: the reference BLAS is given a copy in rows."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.ops import convolution, einsum

mx = pytest.importorskip("mlx.core")

from mithril_mlx import blas  # noqa: E402

from tests.tolerances import TOLERANCE  # noqa: E402

ROWS = blas.ROWS_WORTH_A_COPY


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Have the library be the reference BLAS, and return the shapes of what is copied for it."""
    made: list[tuple[int, ...]] = []

    def copy(x: mx.array) -> mx.array:
        made.append(x.shape)
        return x + 0

    monkeypatch.setattr(blas, "_is_reference", lambda: True)
    monkeypatch.setattr(blas.mx, "contiguous", copy)
    return made


def multiply(rows: int, equation: str, shape: tuple[int, ...]) -> None:
    """Multiply [rows, 6] by another matrix, and compare with NumPy."""
    rng, backend = np.random.default_rng(0), ml.MLXBackend(device="cpu")
    x, y = (rng.standard_normal(size).astype(np.float32) for size in ((rows, 6), shape))
    found = einsum(equation, backend.array(x), backend.array(y)).numpy()
    np.testing.assert_allclose(found, np.einsum(equation, x, y), *TOLERANCE["float32"])


def test_a_transposed_operand_is_copied_for_many_rows(copies: list[tuple[int, ...]]) -> None:
    multiply(ROWS, "nd,hd->nh", (5, 6))
    assert copies == [(6, 5)]


def test_it_is_not_for_few_rows_or_if_it_lies_in_rows(copies: list[tuple[int, ...]]) -> None:
    multiply(ROWS - 1, "nd,hd->nh", (5, 6))
    multiply(ROWS, "nd,dh->nh", (6, 5))
    assert copies == []


def test_it_is_not_for_another_library(
    copies: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "_is_reference", lambda: False)
    multiply(ROWS, "nd,hd->nh", (5, 6))
    assert copies == []


def test_convolutions_multiply_by_a_copy_of_the_weight(copies: list[tuple[int, ...]]) -> None:
    rng, results = np.random.default_rng(0), []
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 8, 8), (4, 3, 3, 3)))
    for backend in (ml.MLXBackend(device="cpu"), ml.NumpyBackend()):
        image, weight = backend.array(x), backend.array(w)
        results.append(convolution(image, weight, padding=1).numpy())
    np.testing.assert_allclose(*results, *TOLERANCE["float32"])
    assert (1, 27, 4) in copies
