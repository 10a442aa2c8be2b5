"""16-bit floats are added up in float32 over devices, and rounded once, on every backend."""

from __future__ import annotations

from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.ops.collective import AllReduce
from mithril.plan import Issued
from mithril.types import DType

from tests.conformance.engines import BACKENDS, opened
from tests.mlx.jobs import mpirun
from tests.profiles import quick
from tests.runtime.scripts import launched, lines_of, script

NARROW = ["bfloat16", "float16"]
EVERYWHERE = ["numpy", *BACKENDS]
RANKS = 4


def make_terms(dtype: str, ranks: int = RANKS) -> np.ndarray:
    """Return numbers whose sums in float32 are exact, and in 16 bits are not."""
    drawn = np.random.default_rng(0).integers(-64, 64, (ranks, 8, 6)) * 2.0**-5
    drawn[0] += 256.0
    return drawn.astype(DType(dtype).numpy)


def round_once(terms: np.ndarray) -> np.ndarray:
    return terms.astype(np.float64).sum(axis=0).astype(terms.dtype)


def open_one(backend: str, ranks: int) -> ml.Backend:
    return (
        ml.NumpyBackend(ml.Mesh(data=ranks)) if backend == "numpy" else opened(backend, data=ranks)
    )


def test_16_bits_do_not_hold_these_sums() -> None:
    for dtype in NARROW:
        terms = make_terms(dtype)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        assert np.any(total != round_once(terms))


@quick(lambda backend, dtype: backend != "torch" or dtype == "bfloat16")
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("backend", EVERYWHERE)
def test_sums_are_rounded_once(backend: str, dtype: str) -> None:
    here, terms = open_one(backend, RANKS), make_terms(dtype)
    x = here.array(terms, sharding=P("data"))
    expected = round_once(terms)
    for spec in (P(), P("data")):  # an all_reduce, and a reduce_scatter
        found = ml.jit(lambda x: x.sum(axis=0), out_shardings=spec)(x)
        assert str(found.dtype) == dtype
        for shard in found.addressable_shards:
            np.testing.assert_array_equal(shard.data, expected[shard.index])


def make_model() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(6, name="down")(input="x", output="z")
    model |= ml.MeanSquaredError()(input="z", target="t", output="loss")
    return model


@quick(lambda backend: backend != "torch")
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_exchanged_in_float32_as_planned(backend: str) -> None:
    here = opened(backend, data=2)
    shapes = {
        name: ml.TensorSpec((8, n), "bfloat16", P("data")) for name, n in (("x", 4), ("t", 6))
    }
    compiled = ml.compile(make_model(), here, precision=ml.Precision("bfloat16"), shapes=shapes)
    params = compiled.randomize_params(seed=0)
    drawn = np.random.default_rng(0).standard_normal((8, 10))
    inputs = {
        "x": here.array(drawn[:, :4], dtype="bfloat16", sharding=P("data")),
        "t": here.array(drawn[:, 4:], dtype="bfloat16", sharding=P("data")),
    }
    seen: list[Issued] = []
    _, gradients = compiled.evaluate(params, inputs, {"loss": np.float32(1)}, observe=seen.append)
    assert {str(g.dtype) for g in gradients.values()} == {"bfloat16"}
    assert len(seen) > 0
    planned = [row for row in compiled.plan.collectives() if row.kind == AllReduce.name]
    width = 4 if here.engine.execution.adds_narrow else 2
    count = sum(g.size for g in gradients.values())
    assert sum(row.bytes for row in planned) == width * count + 4, "the loss is float32 anyway"
    issued = [(one.kind, one.axes, one.bytes) for one in seen]
    assert sorted(issued) == sorted((r.kind, r.axes, r.bytes) for r in compiled.plan.collectives())


JOB = """
sys.path.insert(0, sys.argv[2])
from tests.conformance.test_narrow_sums import NARROW, make_terms, round_once
backend = ml.open_backend(sys.argv[1], ml.Mesh(data=int(sys.argv[3])))

for dtype in NARROW:
    terms = make_terms(dtype, int(sys.argv[3]))
    x = backend.array(terms, sharding=P("data"))
    for spec in (P(), P("data")):
        found = ml.jit(lambda x: x.sum(axis=0), out_shardings=spec)(x)
        for shard in found.addressable_shards:
            np.testing.assert_array_equal(shard.data, round_once(terms)[shard.index])
print("equal", ml.process_index())
"""
ROOT = str(Path(__file__).parent.parent.parent)
"""Where the tests are found from."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", [b for b in BACKENDS if "lockstep" not in b.values[0]])
def test_sums_of_a_job_are_rounded_once(backend: str, tmp_path: Path) -> None:
    devices = "4" if backend == "jax" else "3"
    ranks = 2 if backend == "jax" else 3
    done = launched(backend, ranks, script(tmp_path, JOB), backend, ROOT, devices)
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        assert f"equal {rank}" in lines_of(rank, done.stdout)


@pytest.mark.slow
def test_sums_over_mpi_are_rounded_once(tmp_path: Path) -> None:
    done = mpirun(3, script(tmp_path, JOB), "mlx", ROOT, "3")
    assert done.returncode == 0, done.stderr
    assert all(f"equal {rank}" in done.stdout for rank in range(3))
