"""Einsum on CPU devices: dimensions that belong together are one before the product."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.ops import Einsum
from mithril.types import DType, TensorType
from mithril_jax.kernels import kernels_on, linalg
from mithril_jax.kernels.linalg import join_letters

from tests.profiles import scaled
from tests.tolerances import TOLERANCE


def run(equation: str, x: np.ndarray, y: np.ndarray, platform: str = "cpu") -> np.ndarray:
    types = [TensorType(z.shape, DType(str(z.dtype))) for z in (x, y)]
    return np.asarray(kernels_on(platform)["einsum"](Einsum(equation), types)(x, y))


@pytest.mark.parametrize(
    ("equation", "groups"),
    [
        ("abz,aby->zy", ["ab", "z", "y"]),
        ("aby,zy->abz", ["ab", "y", "z"]),
        ("bgrst,bsgrd->btgd", ["b", "g", "r", "s", "t", "d"]),
        ("abc,abd->abcd", ["ab", "c", "d"]),
        ("ab,ba->", ["a", "b"]),
        ("i,j->ij", ["i", "j"]),
    ],
)
def test_letters_that_stand_together_everywhere_are_joined(equation, groups):
    assert join_letters(Einsum(equation).terms) == groups


@st.composite
def equations(draw) -> str:
    """Draw an equation: letters of the batch, contracted, of the left and of the right operand."""
    letters = iter("abcdefgh")
    batch, contracted, rows, columns = (
        [next(letters) for _ in range(draw(st.integers(0, 2)))] for _ in range(4)
    )
    terms = [batch + contracted + rows, batch + contracted + columns, batch + rows + columns]
    if draw(st.booleans()):
        terms = [draw(st.permutations(term)) for term in terms]
    left, right, result = ("".join(term) for term in terms)
    return f"{left},{right}->{result}"


@pytest.mark.slow
@given(equation=equations(), sizes=st.lists(st.integers(0, 3), min_size=8, max_size=8))
@settings(max_examples=scaled(60), deadline=None)
def test_products_are_those_of_numpy(equation, sizes):
    rng = np.random.default_rng(0)
    size_of = dict(zip("abcdefgh", sizes, strict=True))
    x, y = (
        rng.standard_normal([size_of[c] for c in term]).astype(np.float32)
        for term in Einsum(equation).terms[:2]
    )
    expected = np.einsum(equation, x, y)
    for platform in ("cpu", "gpu"):
        np.testing.assert_allclose(run(equation, x, y, platform), expected, *TOLERANCE["float32"])


def compile_gradient_of_weight() -> str:
    """Return what XLA makes of the gradient of a weight whose operand is computed elementwise."""
    shapes = [(4, 8, 16), (4, 8, 32)]
    x, y = (np.ones(shape, np.float32) for shape in shapes)
    types = [TensorType(shape, DType.float32) for shape in shapes]
    multiply = kernels_on("cpu")["einsum"](Einsum("abz,aby->zy"), types)

    def product(x, y):
        return multiply(x * x + 1.0, y)

    np.testing.assert_allclose(product(x, y), np.full((16, 32), 2.0 * math.prod((4, 8))))
    return jax.jit(product).lower(x, y).compile().as_text()


def test_gradients_of_weights_multiply_rows_of_what_is_computed_as_it_lies():
    text = compile_gradient_of_weight()
    assert "lhs_contracting_dims={1}, rhs_contracting_dims={0}" in text
    sums = re.findall(r"f32\[([\d,]+)\]\S* add\(", text)
    assert sums and not any(shape.startswith("16") for shape in sums)


def test_what_is_large_is_multiplied_without_a_copy(monkeypatch):
    monkeypatch.setattr(linalg, "MOST_TURNED", 4 * 8 * 16 - 1)
    text = compile_gradient_of_weight()
    assert "lhs_contracting_dims={0}" in text
    assert " copy(" not in text and " transpose(" not in text
