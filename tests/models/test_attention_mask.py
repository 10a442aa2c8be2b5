"""Attention that is told what to see: masks of bools and floats, in every shape that broadcasts."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.errors import ShapeError

from tests.models.evaluate import random, run
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
BATCH, LENGTH, HEADS, SIZE = 3, 5, 2, 4
X = random(BATCH, LENGTH, HEADS * SIZE)
RNG = np.random.default_rng(7)


def model(**options: object) -> ml.Model:
    made = ml.Model()
    made |= ml.MultiHeadAttention(HEADS, **options)(input="x", mask="mask", output="y")
    return made


def expected(p: dict[str, np.ndarray], added: np.ndarray) -> np.ndarray:
    q, k, v = (
        (X @ p[f"{n}.weight"].T + p[f"{n}.bias"]).reshape(BATCH, LENGTH, HEADS, SIZE) for n in "qkv"
    )
    scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(SIZE) + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bhst,bthd->bshd", weights, v).reshape(X.shape)
    return mixed @ p["o.weight"].T + p["o.bias"]


def local(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n.removeprefix("multi_head_attention_0."): v for n, v in params.items()}


@pytest.mark.parametrize(
    "shape",
    [
        (LENGTH,),
        (LENGTH, LENGTH),
        (HEADS, LENGTH, LENGTH),
        (BATCH, 1, 1, LENGTH),
        (BATCH, HEADS, LENGTH, LENGTH),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["bools", "floats"])
def test_a_mask_hides_or_is_added(shape: tuple[int, ...], kind: str) -> None:
    if kind == "bools":
        mask = RNG.random(shape) < 0.6
        mask[..., 0] = True
        added = np.where(mask, 0.0, -np.inf)
    else:
        mask = added = RNG.standard_normal(shape).astype(np.float32)
    outputs, params = run(model(), x=X, mask=mask)
    np.testing.assert_allclose(outputs["y"], expected(local(params), added), rtol=RTOL, atol=ATOL)


def test_a_mask_and_causal_hide_together() -> None:
    mask = np.ones((BATCH, 1, 1, LENGTH), bool)
    mask[1, ..., 3:] = False
    outputs, params = run(model(causal=True), x=X, mask=mask)
    seen = np.tril(np.ones((LENGTH, LENGTH), bool)) & mask
    found = expected(local(params), np.where(seen, 0.0, -np.inf))
    np.testing.assert_allclose(outputs["y"], found, rtol=RTOL, atol=ATOL)


def test_padding_does_not_change_what_is_before_it() -> None:
    mask = np.ones((BATCH, 1, 1, LENGTH), bool)
    mask[..., 3:] = False
    other = X.copy()
    other[:, 3:] = 100.0
    first, _ = run(model(), x=X, mask=mask)
    second, _ = run(model(), x=other, mask=mask)
    np.testing.assert_array_equal(first["y"][:, :3], second["y"][:, :3])


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (np.ones((LENGTH, LENGTH - 1), bool), r"a mask bool\[1, 1, 5, 4\]; give booleans"),
        (np.ones((LENGTH, LENGTH), np.int32), r"a mask int32\[1, 1, 5, 5\]; give booleans"),
        (np.ones((1, 1, 1, LENGTH, LENGTH), bool), r"a mask bool\[1, 1, 1, 5, 5\]"),
    ],
)
def test_masks_that_do_not_fit(mask: np.ndarray, text: str) -> None:
    with pytest.raises(ShapeError, match=text + r".*'multi_head_attention_0'"):
        run(model(), x=X, mask=mask)
