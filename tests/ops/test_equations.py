"""einsum of any number of operands, with ellipses, as NumPy computes it."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

RNG = np.random.default_rng(0)
RTOL, ATOL = TOLERANCE["float32"]
GRID = ml.Mesh(data=2, tensor=2)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


ONE = [
    ("ij->ji", (3, 4)), ("ij", (3, 4)), ("ji", (3, 4)), ("ij->", (3, 4)), ("ij -> j", (3, 4)),
    ("ii", (3, 3)), ("ii->i", (3, 3)), ("iij->ji", (3, 3, 2)), ("iii->i", (3, 3, 3)),
    ("...ij->...ji", (2, 3, 4)), ("...ii", (2, 5, 3, 3)), ("i...->...", (3, 4, 2)),
    ("...", (2, 3)), ("->", ()),
]  # fmt: skip
SEVERAL = [
    ("ij,jk", (2, 3), (3, 4)), ("i,i", (3,), (3,)), ("i,j", (3,), (4,)), (",ij->ji", (), (2, 3)),
    ("ij,ij->", (3, 4), (3, 4)), ("ij,kl->il", (2, 3), (4, 5)), ("iij,j->i", (3, 3, 2), (2,)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("...i,...j->...ij", (2, 3), (2, 4)),
    ("a...,b...->ab...", (2, 1, 3), (4, 5, 3)), ("...i,j...->j...", (1, 3), (4, 5)),
    ("i,ij,j->", (3,), (3, 4), (4,)), ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
    ("ij,jk,ki", (2, 3), (3, 4), (4, 2)), ("...,...,...->...", (2, 3), (3,), (1, 3)),
    ("ab,cb,db,eb->acde", (2, 3), (4, 3), (3, 3), (2, 3)),
    ("bqhd,bkhd,bkhe->bqhe", (2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("mesh", [None, GRID], ids=["one device", "a mesh"])
@pytest.mark.parametrize("case", [*ONE, *SEVERAL], ids=lambda case: case[0])
def test_an_equation_is_that_of_numpy(case: tuple, mesh: ml.Mesh | None) -> None:
    equation, *shapes = case
    arrays = [floats(*shape) for shape in shapes]
    backend = ml.NumpyBackend(mesh)
    lying = P("data") if mesh else P()
    given = [backend.array(x, sharding=lying if x.ndim else P()) for x in arrays]
    expected = np.einsum(equation, *arrays)
    for run in (mnp.einsum, ml.jit(mnp.einsum, static="equation")):
        found = run(equation, *given)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("case", [ONE[1], ONE[7], ONE[10], *SEVERAL], ids=lambda case: case[0])
def test_gradients_of_equations(case: tuple) -> None:
    equation, *shapes = case
    arrays = [floats(*shape).astype(np.float64) for shape in shapes]
    weight = RNG.standard_normal(np.einsum(equation, *arrays).shape)
    backend = ml.NumpyBackend()
    given = [backend.array(x, dtype="float64") for x in (*arrays, weight)]
    count = tuple(range(len(arrays)))

    def loss(*operands: ml.Array) -> ml.Array:
        return (mnp.einsum(equation, *operands[:-1]) * operands[-1]).sum()

    slopes = ml.jit(ml.grad(loss, argnums=count))(*given)
    for position, slope in enumerate(slopes):
        # Products are linear in each operand: a difference of any length is exact.
        for place in np.ndindex(arrays[position].shape):
            moved = [x.copy() for x in arrays]
            moved[position][place] += 1
            change = np.einsum(equation, *moved) - np.einsum(equation, *arrays)
            np.testing.assert_allclose(slope.numpy()[place], (change * weight).sum(), atol=1e-9)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint8", "float16", "float64"])
@pytest.mark.parametrize("equation", ["ij->i", "ii->i", "ji", "ii"])
def test_one_operand_may_hold_anything_and_keeps_its_dtype(equation: str, dtype: str) -> None:
    x = np.array([[0, 1, 2], [3, 0, 0], [1, 1, 4]]).astype(dtype)
    found = mnp.einsum(equation, ml.NumpyBackend().array(x, dtype=dtype))
    expected = np.einsum(equation, x)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_dtypes_of_several_are_promoted() -> None:
    backend = ml.NumpyBackend()
    pairs = [("float32", "float64", "float64"), ("float16", "bfloat16", "float32")]
    for one, other, wanted in pairs:
        found = mnp.einsum(
            "i,i,i->i", *(backend.ones(3, dtype=dtype) for dtype in (one, one, other))
        )
        assert found.dtype == wanted


@pytest.mark.parametrize(
    ("equation", "shapes", "specs"),
    [
        ("...ij,...jk->...ik", [(4, 3, 4), (4, 4, 2)], [P("data"), P("data")]),
        ("ab,cb,db->acd", [(4, 3), (5, 3), (6, 3)], [P("data"), P(), P("tensor")]),
        ("bqhd,bkhd,bkhe->bqhe", [(4, 3, 2, 4), (4, 5, 2, 4), (4, 5, 2, 3)], [P("data")] * 3),
        ("ii->i", [(4, 4)], [P("data")]),
        ("ij->ji", [(4, 6)], [P("data", "tensor")]),
    ],
)
def test_what_is_split_alike_stays_so(
    equation: str, shapes: list[tuple[int, ...]], specs: list[P]
) -> None:
    backend = ml.NumpyBackend(GRID)
    given = [ml.TensorSpec(*item, sharding=spec) for *item, spec in zip(shapes, specs, strict=True)]
    plan = ml.jit(lambda *x: mnp.einsum(equation, *x), backend=backend).plan(*given)
    assert not plan.collectives()
    assert "data" in plan.outputs[0].sharding.split_axes
