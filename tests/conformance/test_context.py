"""Attention over split sequences on every installed backend equals NumPy's plain one on one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.runtime.test_context import EXCHANGE, HOW, SEQUENCE, B, agree, block, floats, step
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@quick(lambda backend, how: backend != "jax" or how == "ulysses")
@quick(lambda backend, how, causal: backend != "jax" or causal == (how == "ring"))
@quick(lambda backend, how, causal: how != "all_gather" or causal)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_block_on_split_sequences(backend: str, how: str, causal: bool) -> None:
    """11 positions over 4 devices, two heads of keys and values; gradients included."""
    _, expected = step(block(None, causal=causal), ml.NumpyBackend())
    compiled, found = step(block(how, causal=causal), opened(backend, seq=4), SEQUENCE)
    agree(found, expected)
    kinds = {row.kind for row in compiled.plan.collectives()}
    assert EXCHANGE[how] in kinds


@quick(lambda backend, how: backend != "jax" or how == "ring")
@pytest.mark.parametrize("how", HOW)
def test_padding_is_hidden_by_a_mask(backend: str, how: str) -> None:
    """A row of the batch sees five positions, so that whole blocks are hidden from it."""
    mask = (np.arange(11) < np.array([[5], [11]])).reshape(B, 1, 1, 11)
    model = block(how, name="masked", causal=True)
    _, expected = step(model, ml.NumpyBackend(), mask=mask)
    _, found = step(model, opened(backend, data=2, seq=2), P("data", "seq"), mask=mask)
    agree(found, expected)


@pytest.mark.parametrize("how", HOW)
def test_rows_that_see_nothing_are_zeros(backend: str, how: str) -> None:
    q, k, v = (floats(B, 6, 2, 4, seed=seed) for seed in range(3))
    seen = np.random.default_rng(4).random((1, 1, 6, 6)) < 0.5
    seen[..., 2, :] = False

    def attend(q: object, k: object, v: object, mask: object) -> object:
        return ops.attention(q, k, v, mask=mask, context_parallel=how)

    on = opened(backend, seq=2)
    places = (SEQUENCE, SEQUENCE, SEQUENCE, P())
    found = ml.jit(attend, backend=on, in_shardings=places)(q, k, v, seen).numpy()
    expected = ml.jit(attend, backend=ml.NumpyBackend())(q, k, v, seen).numpy()
    assert not found[:, 2].any()
    np.testing.assert_allclose(found, expected, *TOLERANCE["float32"])


@quick(lambda backend, how: backend != "jax" or how == "ulysses")
@pytest.mark.parametrize("how", HOW)
def test_small_floats(backend: str, how: str) -> None:
    arrays = [floats(B, 12, 4, 4, seed=seed) for seed in range(3)]

    def attend(*qkv: object) -> object:
        q, k, v = (ops.cast(x, "bfloat16") for x in qkv)
        return ops.cast(ops.attention(q, k, v, causal=True, context_parallel=how), "float32")

    on = opened(backend, seq=4)
    found = ml.jit(attend, backend=on, in_shardings=(SEQUENCE,) * 3)(*arrays)
    expected = ml.jit(attend, backend=ml.NumpyBackend())(*arrays)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), *TOLERANCE["bfloat16"])


@quick(lambda backend: backend != "jax")
def test_many_axes(backend: str) -> None:
    """Batch, sequence and heads over an axis each, on eight devices."""
    q, k, v = (floats(4, 10, 4, 4, seed=seed) for seed in range(3))

    def loss(q: object, k: object, v: object) -> object:
        return ops.sum(ops.attention(q, k, v, causal=True, context_parallel="ring") ** 2)

    spec = P("data", "seq", "tensor")
    on = opened(backend, data=2, seq=2, tensor=2)
    slopes = ml.jit(ml.grad(loss, argnums=(0, 1, 2)), backend=on, in_shardings=(spec,) * 3)
    expected = ml.jit(ml.grad(loss, argnums=(0, 1, 2)), backend=ml.NumpyBackend())(q, k, v)
    for found, slope in zip(slopes(q, k, v), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), slope.numpy(), *TOLERANCE["float32"])
