"""PyTorch's tensors with Mithril's arrays, and the other way round."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P
from torch.utils.data import DataLoader, TensorDataset

from tests.jax.models import mlp
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
GRID = ml.Mesh(data=2, tensor=2)
OPENED = {
    "one device": ml.TorchBackend,
    "lockstep": lambda: ml.TorchBackend(GRID, executor="lockstep"),
    "workers": lambda: ml.TorchBackend(GRID),
}
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int8,
    torch.uint8, torch.int32, torch.int64, torch.uint32,
)  # fmt: skip


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


@pytest.fixture(params=list(OPENED))
def backend(request: pytest.FixtureRequest) -> ml.Backend:
    return OPENED[request.param]()


# ------------------------------------------------------------------ in


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_keep_dtype_and_values_both_ways(backend: ml.Backend, dtype: torch.dtype) -> None:
    theirs = torch.arange(10).reshape(5, 2).to(dtype)
    for placement in ({}, {"sharding": P(backend.mesh.names)}):
        again = backend.array(theirs, **placement).torch()
        assert again.dtype == dtype
        assert torch.equal(again, theirs)


def test_one_device_shares_memory_both_ways() -> None:
    backend = ml.TorchBackend()
    theirs = torch.zeros(4)
    ours = backend.array(theirs)
    assert ours.torch().data_ptr() == theirs.data_ptr()
    result = ours + 1
    assert result.torch().data_ptr() == result.shards.data_ptr()
    moved = theirs.reshape(2, 2).t()
    assert backend.array(moved).torch().data_ptr() != theirs.data_ptr()  # not contiguous


@pytest.mark.parametrize(
    "theirs",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0)[::2],
        torch.complex(torch.zeros(3), torch.ones(3)).conj().imag,
        torch.zeros(0, 3),
        torch.tensor(2.0),
    ],
    ids=["transposed", "expanded", "strided", "negated", "empty", "scalar"],
)
def test_tensors_of_any_form(backend: ml.Backend, theirs: torch.Tensor) -> None:
    close((backend.array(theirs) + 1).torch(), theirs + 1)


def test_a_tensor_is_laid_out_and_cast_as_asked_for(backend: ml.Backend) -> None:
    theirs = torch.arange(10.0).reshape(5, 2)
    ours = backend.array(theirs, sharding=P(backend.mesh.names), dtype="int32")
    assert ours.sharding.split_axes == backend.mesh.names
    assert ours.dtype == "int32"
    close(ours.torch(), theirs)
    assert backend.array(theirs).sharding.is_replicated


def test_gradients_do_not_flow_into_arrays(backend: ml.Backend) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 3))
    assert not backend.array(weight).torch().requires_grad
    parts = [weight] * len(backend.engine.local_devices)
    close(backend.from_local_shards(parts), np.ones((4, 3)))


def test_from_local_shards_keeps_the_dtype_of_tensors() -> None:
    backend = ml.TorchBackend(GRID, executor="lockstep")
    parts = [torch.full((1, 2), device // 2, dtype=torch.bfloat16) for device in range(4)]
    whole = backend.from_local_shards(parts, sharding=P("data"))
    assert whole.dtype == "bfloat16"
    close(whole.torch().float(), [[0, 0], [1, 1]])


def test_eager_functions_take_tensors(backend: ml.Backend) -> None:
    x = backend.ones(4, 4, sharding=P(backend.mesh.names))
    y = torch.arange(16.0).reshape(4, 4)
    close(backend.matmul(x, y), np.ones((4, 4)) @ y.numpy())
    close(x + y, y + 1)
    close(y + x, y + 1)


def test_a_model_takes_batches_of_a_loader(backend: ml.Backend) -> None:
    compiled, inputs = mlp(backend)
    params = compiled.randomize_params()
    x = inputs["x"].torch()
    expected = compiled.evaluate(params, inputs)["y"]
    loader = DataLoader(TensorDataset(x), batch_size=8)
    for (batch,) in loader:
        close(compiled.evaluate(params, {"x": batch})["y"], expected)
        weights = params.torch()
        outputs, slopes = compiled.evaluate(weights, {"x": batch}, {"y": torch.ones(8, 4)})
        close(outputs["y"], expected)
        assert slopes["up.weight"].shape == (16, 6)


@pytest.mark.parametrize(
    ("theirs", "error", "text"),
    [
        (torch.ones(2, device="meta"), ml.BackendError, r"float32\[2\] has no values: it is on"),
        (torch.eye(2).to_sparse(), ml.BackendError, r"layout torch.sparse_coo, and Mithril's .*to_dense"),
        (torch.ones(2, dtype=torch.complex64), ml.ShapeError, "complex64"),
        (torch.ones(2, dtype=torch.uint64), ml.BackendError, "uint64, in which PyTorch cannot comp"),
    ],
    ids=["meta", "sparse", "complex", "uint64"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["one device", "lockstep"])
def test_tensors_that_are_refused(name, theirs, error, text) -> None:
    with pytest.raises(error, match=text):
        OPENED[name]().array(theirs)


def test_a_traced_tensor_is_refused() -> None:
    backend = ml.TorchBackend()
    with pytest.raises(ml.BackendError, match=r"traced by torch.func or torch.compile; pass it in"):
        torch.func.grad(lambda x: backend.array(x).torch().sum())(torch.ones(3))


# ------------------------------------------------------------------ out


def test_a_result_is_a_tensor_that_autograd_takes(backend: ml.Backend) -> None:
    x = backend.array(np.arange(5.0, dtype=np.float32), sharding=P(backend.mesh.names))
    found = (x * 2).torch()
    assert not found.is_inference()
    weight = torch.ones(5, requires_grad=True)
    (weight * found).sum().backward()
    close(weight.grad, np.arange(5.0) * 2)


def test_parameters_without_a_size_are_refused(backend: ml.Backend) -> None:
    compiled = ml.compile(ml.Linear(4), backend)
    with pytest.raises(ml.BackendError, match="'bias' has no size yet"):
        compiled.randomize_params()["bias"].torch()


def test_dlpack(backend: ml.Backend) -> None:
    x = backend.array(
        np.arange(10.0, dtype=np.float32).reshape(5, 2), sharding=P(backend.mesh.names)
    )
    for ours in (x, x + 1):
        host = ours.numpy()
        np.testing.assert_array_equal(np.from_dlpack(ours), host)
        np.testing.assert_array_equal(torch.from_dlpack(ours).numpy(), host)
    assert x.__dlpack_device__() == torch.empty(0).__dlpack_device__()


def test_dlpack_on_one_device_shares_memory() -> None:
    x = ml.TorchBackend().ones(3)
    assert torch.from_dlpack(x).data_ptr() == x.shards.data_ptr()


def test_a_missing_method_is_named() -> None:
    with pytest.raises(AttributeError, match=r"backend 'torch' has no attribute 'tensor'"):
        ml.TorchBackend().ones(2).tensor()


def test_workers_cannot_call_a_kernel_of_the_user() -> None:
    doubled = ml.define_op(
        "interop.doubled",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"torch": lambda x: x * 2},
    )
    text = "^ops 'interop.doubled' have kernels of their own for 'torch', which worker processes"
    with pytest.raises(ml.BackendError, match=text):
        doubled(OPENED["workers"]().ones(4))
    assert doubled(OPENED["lockstep"]().ones(2)).numpy().tolist() == [2, 2]
