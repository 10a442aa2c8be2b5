"""Updates of AdamW on MLX: shared numbers, and one compiled kernel where parameters are large."""

from __future__ import annotations

import shutil
from collections import Counter

import mithril as ml
import numpy as np
import pytest
from mithril import ops
from mithril_mlx import updates
from mithril_mlx.options import MLXOptions

from tests.tolerances import TOLERANCE

SHAPES = {"a": (3, 4), "b": (5,), "c": ()}


def update(p, g, m, v, rate, count):
    made = {n: ops.adamw_step(p[n], g[n], m[n], v[n], rate, count, weight_decay=0.1) for n in p}
    return tuple({n: made[n][i] for n in p} for i in range(3))


def trees(backend: ml.Backend) -> list[dict[str, ml.Array]]:
    rng = np.random.default_rng(0)
    return [
        {n: backend.array(rng.uniform(0.1, 1, s).astype(np.float32)) for n, s in SHAPES.items()}
        for _ in range(4)
    ]


def ops_of(compiles: bool) -> list[object]:
    """Return the ops of an update of three parameters."""
    plan = ml.jit(update).plan(*trees(ml.MLXBackend()), 0.1, 3)
    return [
        node.op for node in updates.share_numbers(plan.only_stage.program, compiles).graph.nodes
    ]


def test_numbers_are_computed_once() -> None:
    counts = Counter(op.name for op in ops_of(False))
    assert (counts["adamw_numbers"], counts["adamw_apply"], counts["adamw_step"]) == (1, 3, 0)


@pytest.mark.parametrize(
    ("compiles", "large", "expected"),
    [(True, 18, True), (True, 19, False), (False, 1, False)],
    ids=["large", "small", "not asked for"],
)
def test_large_parameters_are_updated_by_a_compiled_kernel(
    monkeypatch, compiles: bool, large: int, expected: bool
) -> None:
    monkeypatch.setattr(updates, "LARGE", large)
    found = {op.is_compiled for op in ops_of(compiles) if isinstance(op, updates.AdamWApply)}
    assert found == {expected}


@pytest.mark.parametrize("jit", [None, False])
def test_the_option_says_whether_it_is_compiled(jit: bool | None) -> None:
    has_compiler = shutil.which(updates.COMPILER) is not None
    engine = ml.MLXBackend(device="cpu", jit=jit).engine
    assert isinstance(engine.options, MLXOptions)
    assert engine._compiles_updates == (has_compiler and jit is None)


@pytest.mark.skipif(shutil.which(updates.COMPILER) is None, reason="there is no C++ compiler")
def test_a_compiled_update_is_the_same(monkeypatch) -> None:
    backend = ml.MLXBackend(device="cpu")
    plain = ml.jit(update, backend=backend)(*trees(backend), 0.1, 3)
    monkeypatch.setattr(updates, "LARGE", 1)
    compiled = ml.jit(update, backend=backend)(*trees(backend), 0.1, 3)
    for one, other in zip(plain, compiled, strict=True):
        for n, x in one.items():
            np.testing.assert_allclose(x.numpy(), other[n].numpy(), *TOLERANCE["float32"])
