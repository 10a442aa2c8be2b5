"""Few queries over a cache of keys that is split: no cache is gathered, results are one device's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P, ops

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE

ALL = [pytest.param("numpy"), *BACKENDS]
B, H = 2, 4
Arrays = Sequence[np.ndarray]


def floats(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operands(queries: int, keys: int, groups: int = H) -> Arrays:
    shapes = [(B, queries, H, 8), (B, keys, groups, 8), (B, keys, groups, 6)]
    return [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def on_mesh(backend: str, **axes: int) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(axes)) if backend == "numpy" else opened(backend, **axes)


def check(
    backend: ml.Backend, spec: P, arrays: Arrays, masks: Arrays = (), **options: object
) -> np.ndarray:
    """Compare output and gradients with one device; no keys or values are gathered."""

    def attend(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        given = {"mask": mask[0]} if mask else {}
        return ops.attention(q, k, v, **given, **options)

    def loss(*args: Any) -> Any:
        return mnp.sum(mnp.sin(attend(*args)))

    places = (P(), spec, spec, *(P() for _ in masks))
    slopes = ml.grad(loss, argnums=(0, 1, 2))
    outs = []
    for on, shardings in ((ml.NumpyBackend(), None), (backend, places)):
        forward = ml.jit(attend, backend=on, in_shardings=shardings)
        both = ml.jit(slopes, backend=on, in_shardings=shardings)
        outs.append([x.numpy() for x in (forward(*arrays, *masks), *both(*arrays, *masks))])
        rows = [*forward.plan(*arrays, *masks).collectives()]
        rows += both.plan(*arrays, *masks).collectives()
        assert {row.kind for row in rows} <= {"all_reduce"}
    for expected, found in zip(*outs, strict=True):
        np.testing.assert_allclose(found, expected, *TOLERANCE["float32"])
    return outs[1][0]


CASES: Mapping[str, tuple[int, int, int, dict[str, object]]] = {
    "one query": (1, 16, 4, {}),
    "some queries, causal, uneven, grouped heads": (3, 18, 2, {"causal": True}),
    "one head of keys, a window": (3, 19, 1, {"causal": True, "sliding_window": 4}),
}


@quick(lambda backend, case: backend in ("numpy", "torch in lockstep") or case.startswith("some"))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ALL)
def test_split_keys_are_not_gathered(backend: str, case: str) -> None:
    queries, keys, groups, options = CASES[case]
    check(on_mesh(backend, x=4), P(None, "x"), operands(queries, keys, groups), **options)


@quick(lambda backend: backend in ("numpy", "torch in lockstep"))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ALL)
def test_padding_between_parts_is_not_seen(backend: str, causal: bool) -> None:
    """10 keys over 2 x 2 devices leave padding behind the second part already."""
    mesh, spec = on_mesh(backend, x=2, y=2), P(None, ("x", "y"))
    check(mesh, spec, operands(3, 10), causal=causal)


@quick(lambda backend, kind: backend in ("numpy", "torch in lockstep") or kind == "booleans")
@pytest.mark.parametrize("kind", ["booleans", "floats"])
@pytest.mark.parametrize("backend", ALL)
def test_masks_and_rows_that_see_nothing(backend: str, kind: str) -> None:
    """A row sees keys of one device alone, and another one none at all."""
    seen = np.random.default_rng(7).random((B, 1, 3, 19)) < 0.5
    seen[0, 0, 1] = False
    seen[1, 0, 2] = np.arange(19) < 3
    added = np.where(seen, floats(*seen.shape, seed=8), -np.inf).astype(np.float32)
    mask = seen if kind == "booleans" else added
    found = check(on_mesh(backend, x=4), P(None, "x"), operands(3, 19, 2), [mask])
    assert not found[0, 1].any()


@quick(lambda backend: backend in ("numpy", "torch in lockstep"))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", ALL)
def test_small_floats(backend: str, dtype: str) -> None:
    def attend(*qkv: Any) -> Any:
        q, k, v = (ops.cast(x, dtype) for x in qkv)
        return ops.cast(ops.attention(q, k, v, causal=True), "float32")

    on, arrays = on_mesh(backend, x=4), operands(2, 18, 2)
    places = (P(), P(None, "x"), P(None, "x"))
    found = ml.jit(attend, backend=on, in_shardings=places)(*arrays)
    expected = ml.jit(attend, backend=ml.NumpyBackend())(*arrays)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), *TOLERANCE[dtype])


@ml.layer
def Attend(q: Any, k: Any, v: Any) -> Any:  # noqa: N802 - a layer
    return ops.attention(q, k, v)


@pytest.mark.parametrize("backend", ALL)
def test_what_is_sent_is_what_the_plan_says(backend: str) -> None:
    """A statistic, and the output with its weight; of a cache 48 times as large, nothing."""
    model, on = ml.Model(), on_mesh(backend, x=4)
    model |= Attend()(q="q", k="k", v="v", output="y")
    compiled = ml.compile(model, on)
    q, k, v = operands(1, 48)
    split = [on.array(x, sharding=P(None, "x")) for x in (k, v)]
    inputs = {"q": q, "k": split[0], "v": split[1]}
    issued: list[Any] = []
    compiled.evaluate({}, inputs, observe=lambda told: issued.append(told.row))
    rows = [("all_reduce", ("x",), 4 * B * H), ("all_reduce", ("x",), 4 * B * H * 7)]
    assert issued == rows == list(compiled.plan.list_issued())
