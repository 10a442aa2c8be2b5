"""The engine outside a job: options, what it says of itself, arrays of MLX."""

from __future__ import annotations

import os
import subprocess
import sys

import mithril as ml
import mlx.core as mx
import numpy as np
import pytest
from mithril import P
from mithril.types import DType
from mithril_mlx import blas
from mithril_mlx.engine import MLXEngine
from mithril_mlx.options import MLXOptions
from mlx import optimizers

from tests.tolerances import TOLERANCE

MESH = ml.Mesh(data=2, tensor=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"device": "tpu"},
            "device='tpu' does not exist; did you mean 'gpu'?; known: 'cpu', 'gpu'",
        ),
        (
            {"executor": "workers"},
            "executor='workers' does not exist; known: 'auto', 'lockstep'",
        ),
        (
            {"memory_format": "chanels_last"},
            "memory_format='chanels_last' does not exist; did you mean 'channels_last'?; known: "
            "'channels_first', 'channels_last', 'channel_last'",
        ),
        (
            {"distributed_backend": "nccl"},
            "distributed_backend='nccl' does not exist; did you mean 'jaccl'?; known: 'jaccl', "
            "'mpi', 'ring'",
        ),
        (
            {"distributed_backend": "ring", "executor": "lockstep"},
            "distributed_backend='ring' does not go with executor='lockstep', which runs all "
            "devices in this process; leave one of them out",
        ),
        ({"jit": 1}, "jit=1 is neither True nor False; give one of them"),
        ({"timeout": 0}, "timeout=0 is no number of seconds above 0; give one, such as 300"),
    ],
)
def test_a_refused_option(options: dict, text: str) -> None:
    with pytest.raises(ml.OptionError) as caught:
        ml.MLXBackend(**options)
    assert str(caught.value) == text


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ml.BackendError) as caught:
        ml.MLXBackend(device="gpu")
    assert str(caught.value) == (
        "device='gpu' is not available; MLX finds no GPU on this machine; use device='cpu'"
    )


@pytest.mark.parametrize("library", ["ring", "jaccl"])
def test_a_job_that_is_not_there(library: str) -> None:
    with pytest.raises(ml.BackendError, match=f"distributed_backend='{library}' cannot join a job"):
        ml.MLXBackend(distributed_backend=library)


def test_a_host_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.setenv("MLX_HOSTFILE", "/nowhere/hosts.json")
    with pytest.raises(ml.BackendError, match=r"join a job \(MLX_HOSTFILE=/nowhere/hosts.json\): "):
        ml.MLXBackend(ml.Mesh(data=2))


def test_a_gpu_has_no_float64() -> None:
    """Said of the dtypes an engine has; there is no GPU to ask."""
    engine = MLXEngine(MESH, MLXOptions(), mx.Device(mx.gpu), None)
    assert engine.platform == "gpu"
    assert DType.float64 not in engine.dtypes
    assert "float64" in engine.dtype_remedy(DType.float64)


def test_jit_goes_through_mlx_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = []
    monkeypatch.setattr(mx, "compile", lambda function: rewritten.append(1) or function)
    for jit in (None, False, True):
        backend = ml.MLXBackend(jit=jit, device="cpu")
        x = backend.array([1.0, 2.0])
        assert (x + x).numpy().tolist() == [2.0, 4.0]
        assert len(rewritten) == (jit is True)


def test_a_step_is_computed_once_it_has_been_built(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    compute = mx.async_eval
    monkeypatch.setattr(mx, "async_eval", lambda x: asked.append(len(x)) or compute(x))
    backend = ml.MLXBackend(MESH)
    compiled = ml.compile(ml.Linear(4), backend, shapes={"input": (4, 8)})
    params = compiled.randomize_params()
    x = np.ones((4, 8), np.float32)
    compiled.evaluate(params, {"input": x}, {"output": np.ones((4, 4), np.float32)})
    assert len(asked) == 1


# ------------------------------------------------------------------ arrays of MLX


def test_arrays_of_mlx_go_in_and_come_out() -> None:
    alone = ml.MLXBackend()
    theirs = mx.arange(6.0).reshape(2, 3)
    ours = alone.array(theirs)
    assert np.shares_memory(np.asarray(ours.mlx()), np.asarray(theirs))
    assert (ours * 2).mlx().tolist() == [[0, 2, 4], [6, 8, 10]]
    spread = ml.MLXBackend(MESH).array(theirs, sharding=P("data", "tensor"))
    assert [shard.data.shape for shard in spread.addressable_shards] == [(1, 2), (1, 1)] * 2
    assert spread.mlx().tolist() == theirs.tolist()


@pytest.mark.parametrize("dtype", ["bool_", "int8", "int64", "uint32", "bfloat16", "float16"])
def test_dtypes_are_kept(dtype: str) -> None:
    theirs = mx.array([1, 0, 3]).astype(getattr(mx, dtype))
    ours = ml.MLXBackend().array(theirs)
    assert str(ours.dtype) == dtype.rstrip("_")
    assert ours.mlx().dtype == theirs.dtype
    assert ours.numpy().astype(np.float32).tolist() == theirs.astype(mx.float32).tolist()


@pytest.mark.parametrize("mesh", [ml.Mesh(), MESH], ids=str)
def test_an_optimizer_of_mlx_trains(mesh: ml.Mesh) -> None:
    backend = ml.MLXBackend(mesh)
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model += ml.Gelu()
    model += ml.Linear(3, name="down")(output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    if mesh.size > 1:
        model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    rng = np.random.default_rng(0)
    inputs = {
        "x": mx.array(rng.standard_normal((6, 5), dtype=np.float32)),
        "target": mx.array(rng.integers(0, 3, 6).astype(np.int32)),
    }
    compiled = ml.compile(
        model, backend, shapes={"x": (6, 5), "target": ml.TensorSpec((6,), "int32")}
    )
    params = compiled.randomize_params(seed=1).mlx()
    assert all(isinstance(x, mx.array) for x in params.values())
    optimizer = optimizers.AdamW(learning_rate=0.05)
    losses = []
    for _ in range(20):
        outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
        params = optimizer.apply_gradients(slopes.mlx(), params)
        losses.append(float(outputs["loss"]))
    assert losses[-1] < 0.3 * losses[0]


def test_writing_in_place_changes_one_side_only() -> None:
    backend = ml.MLXBackend()
    theirs = mx.arange(3.0)
    ours = backend.array(theirs)
    theirs += 5
    assert ours.numpy().tolist() == [0, 1, 2]
    mine = ours.mlx()
    mine[0] = 7
    mine += 1
    assert ours.numpy().tolist() == [0, 1, 2]
    unused = ml.grad(lambda x, y: backend.sum(x * x), argnums=1)
    x, y = backend.array([1.0, 2.0]), backend.array(3.0)
    zero = unused(x, y).mlx()
    zero += 5
    assert unused(x, y).item() == 0, "constants of programs are nobody's to change"


@pytest.mark.parametrize("shape", [(2, 0, 3), (4, 0, 64), (0, 3)], ids=str)
def test_norms_of_nothing_have_gradients_of_zero(shape: tuple[int, ...]) -> None:
    backend = ml.MLXBackend()
    for layer in (ml.LayerNorm(), ml.RMSNorm()):
        compiled = ml.compile(layer, backend, shapes={"input": shape})
        x = np.zeros(shape, np.float32)
        for _ in range(5):
            params = compiled.randomize_params()
            (name,) = compiled.outputs
            _, slopes = compiled.evaluate(params, {"input": x}, {name: x})
            assert all(not slope.numpy().any() for slope in slopes.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_silu_is_nothing_far_below(dtype: str) -> None:
    backend = ml.MLXBackend(dtype=dtype)
    x = backend.array([-np.inf, -1000.0, -100.0, 0.0, 3.0])
    numpy = ml.NumpyBackend(dtype=dtype)
    expected = numpy.silu(numpy.array([-np.inf, -1000.0, -100.0, 0.0, 3.0]))
    rtol, atol = TOLERANCE[dtype]
    found = backend.silu(x).numpy().astype(np.float64)
    np.testing.assert_allclose(found[1:], expected.numpy().astype(np.float64)[1:], rtol, atol)
    assert abs(found[0]) < atol


# ------------------------------------------------------------------ which BLAS


def test_the_blas_in_use_is_told() -> None:
    code = "from mithril_mlx.blas import library_in_use; print(library_in_use())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if sys.platform == "darwin":
        assert done.stdout == "Accelerate\n"
    elif "LD_PRELOAD" in os.environ:
        assert os.environ["LD_PRELOAD"].partition(".so")[0] in done.stdout
    else:
        assert done.stdout.startswith("reference BLAS of the mlx package")


@pytest.mark.parametrize(
    ("file", "title"),
    [
        ("/usr/lib/libopenblasp-r0.3.21.so", "OpenBLAS"),
        ("/opt/libmkl_rt.so.3", "MKL"),
        ("/opt/libblis.so.4", "BLIS"),
        ("/usr/lib/libblas.so.3", "BLAS"),
    ],
)
def test_a_library_is_told_by_its_name(
    file: str, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas.sys, "platform", "linux")
    monkeypatch.setattr(blas, "_file_of", lambda symbol: file)
    assert blas.library_in_use() == f"{title} ({file})"
    monkeypatch.setattr(blas, "_file_of", lambda symbol: None)
    assert blas.library_in_use().startswith("reference BLAS of the mlx package")
