"""Tensors of one element, which PyTorch calls contiguous whatever their stride is."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
import torch
from mithril import P
from mithril_torch.eject import standalone
from mithril_torch.program.runtime_library.exchange_layout import flatten_elements

DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.float64, torch.int8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [0, 1, 3])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_elements_in_a_row_have_stride_1(dtype: torch.dtype, stride: int, rank: int) -> None:
    x = torch.ones(8, dtype=dtype).as_strided((1,) * rank, (stride,) * rank, 2)
    row = flatten_elements(x)
    assert row.stride() == (1,)
    assert row.view(torch.uint8).view(dtype).tolist() == [1]


@pytest.fixture(scope="module")
def pool() -> ml.Backend:
    return ml.TorchBackend(ml.Mesh(data=2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_strided_element_is_fetched(pool: ml.Backend, dtype: str) -> None:
    x = pool.array(np.arange(3.0), dtype=dtype)
    matrix = pool.array(np.arange(6.0).reshape(1, 6), dtype=dtype)
    assert x[::3].numpy().tolist() == [0]
    assert matrix.T[1].numpy().tolist() == [1]
    assert mnp.broadcast_to(x.sum(), (1, 1)).numpy().tolist() == [[3]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_a_strided_element_is_exchanged(pool: ml.Backend, dtype: str) -> None:
    values = np.array([[1, 0, 1], [0, 1, 0]])
    x = pool.array(values, dtype=dtype, sharding=P("data"))
    gather = ml.jit(lambda x: x[:, ::3], out_shardings=P())
    assert gather(x).numpy().astype(int).tolist() == [[1], [0]]


@pytest.mark.parametrize("spec", [P(), P("data")])
def test_a_head_without_slopes_has_a_gradient_of_zeros(pool: ml.Backend, spec: P) -> None:
    model = ml.Model()
    model |= ml.Linear(3, name="first")(input="x", output="p")
    model |= ml.Linear(1, name="second")(input="x", output="q")
    x = pool.ones(8, 4, sharding=spec)
    compiled = ml.compile(model, pool)
    _, gradients = compiled.evaluate(compiled.randomize_params(0), {"x": x}, {"p": pool.ones(8, 3)})
    assert not gradients["second.bias"].numpy().any()
    assert gradients["first.bias"].numpy().tolist() == [8.0] * 3


def test_an_ejected_file_joins_strided_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(rows: list[torch.Tensor], row: torch.Tensor) -> None:
        for place in rows:
            place.copy_(row)

    monkeypatch.setattr(standalone.dist, "all_gather", gather)
    port = standalone.Port("y", "output", (2,), torch.float32, (("x",),), {"x": 2}, (0, 1))
    part = torch.tensor(3.0).expand(1)
    assert standalone.whole_of(part, port, 2, "cpu").tolist() == [3, 3]
