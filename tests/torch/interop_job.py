"""What every rank of a job of four runs under torchrun for `test_interop_job`; asserts say the rest.

Its only argument is a folder; rank 0 writes the losses of a training there. What is refused is
printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import mithril as ml
import numpy as np
import torch
from mithril import P
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tests.jax.models import mlp, small_gpt
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])
GRID = ml.Mesh(data=2, tensor=2)


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


def refused(call: Callable[[], object]) -> None:
    """Print what an error says."""
    try:
        call()
    except ml.MithrilError as error:
        print(f"{error}\n", end="")
    else:
        raise AssertionError("nothing was refused")


def arrays(backend: ml.Backend) -> None:
    whole = torch.arange(35.0).reshape(5, 7)
    ours = backend.array(whole.requires_grad_(), sharding=P("data", "tensor"))
    rows, columns = ours.sharding.box(RANK, (5, 7))
    close(ours.torch(), whole.detach()[rows, columns])
    close(torch.from_dlpack(ours), whole.detach()[rows, columns])
    found = (ours * 2).torch()
    assert not found.is_inference()
    close(found, 2 * whole.detach()[rows, columns])
    local = whole.detach()[rows, columns]
    again = backend.from_local_shards([local], shape=(5, 7), sharding=P("data", "tensor"))
    close(again.numpy(), whole.detach())


def dtensors(backend: ml.Backend) -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    whole = torch.arange(35.0).reshape(5, 7)
    for placements, spec in {
        (Shard(0), Shard(1)): P("data", "tensor"),
        (Replicate(), Shard(0)): P("tensor", None),
        (Shard(1), Replicate()): P(None, "data"),
        (Replicate(), Replicate()): P(None, None),
    }.items():
        ours = backend.array(distribute_tensor(whole, grid, placements))
        assert ours.sharding.spec == spec, ours.sharding
        close(ours.numpy(), whole)
    even = distribute_tensor(torch.arange(8.0), grid, (Shard(0), Shard(0)))
    ours = backend.array(even)
    assert ours.sharding.spec == P(("data", "tensor"))
    assert ours.torch().data_ptr() == even.to_local().data_ptr()
    # Cut in another way, partial, or over another mesh: gathered.
    flat = init_device_mesh("cpu", (4,))
    partial = DTensor.from_local(torch.ones(3), grid, (Partial(), Replicate()))
    for theirs, expected in (
        (distribute_tensor(torch.arange(5.0), grid, (Shard(0), Shard(0))), torch.arange(5.0)),
        (distribute_tensor(whole, flat, (Shard(0),)), whole),
        (partial, torch.full((3,), 2.0)),
    ):
        ours = backend.array(theirs)
        assert ours.sharding.is_replicated
        close(ours.torch(), expected)
    laid_out = backend.array(distribute_tensor(whole, flat, (Shard(0),)), sharding=P("data"))
    assert laid_out.sharding.spec == P("data", None)
    close(laid_out.numpy(), whole)
    close(
        (backend.ones(5, 7) + distribute_tensor(whole, grid, (Shard(0), Shard(1)))).numpy(),
        whole + 1,
    )
    half = grid["columns"]  # each rank sees two of the four
    part = distribute_tensor(whole, half, (Shard(0),))
    refused(lambda: backend.array(part))
    alone = ml.TorchBackend()
    close(alone.array(part).numpy(), whole)
    two = DTensor.from_local(torch.ones(3), DeviceMesh("cpu", [0, 1]), (Replicate(),))
    if RANK < 2:
        close(alone.array(two), np.ones(3))
    else:
        refused(lambda: alone.array(two))


def training(backend: ml.Backend) -> None:
    compiled, inputs = small_gpt(backend)
    module = compiled.as_module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        whole = {name: torch.from_numpy(x.numpy()) for name, x in inputs.items()}
        loss = module(**(inputs if step % 2 else whole))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    if RANK == 0:
        (FOLDER / "losses.json").write_text(json.dumps(losses))


def parts(backend: ml.Backend) -> None:
    """Parameters, outputs and their gradients are this rank's parts."""
    layer = ml.Linear(5, sharding={"weight": P("tensor", None)})
    compiled = ml.compile(
        layer, backend, shapes={"input": ml.TensorSpec((6, 3), sharding=P("data"))}
    )
    module = compiled.as_module()
    x = torch.arange(18.0).reshape(6, 3)
    found = module(x)
    assert module.weight.shape == (3 if RANK % 2 == 0 else 2, 3)
    params = compiled.randomize_params()
    rows = backend.array(x, sharding=P("data"))
    expected = compiled.evaluate(params, {"input": rows})["output"]
    close(found.detach(), expected.torch())
    assert found.shape[0] == 3  # the rows of this rank
    found.backward(torch.ones_like(found))
    close(module.weight.grad, np.tile(x.sum(0), (len(module.weight), 1)))
    before = found.detach().sum()
    torch.save(module.state_dict(), FOLDER / f"state{RANK}.pt")
    other = compiled.as_module(compiled.randomize_params(1))
    other.load_state_dict(torch.load(FOLDER / f"state{RANK}.pt", weights_only=True))
    close(other(x).detach().sum(), before)


def gradients_of_inputs(backend: ml.Backend) -> None:
    compiled, _ = mlp(backend)
    x = torch.arange(48.0).reshape(8, 6).requires_grad_()
    module = compiled.as_module()
    module(x).sum().backward()
    split = ml.compile(
        ml.Relu(), backend, shapes={"input": ml.TensorSpec((8, 6), sharding=P("data"))}
    )
    refused(lambda: split.as_module()(x).sum().backward())
    whole = distribute_tensor(x, init_device_mesh("cpu", (4,)), (Shard(0),))
    refused(lambda: module(whole))
    close(module(whole.detach()).detach(), module(x).detach())


def main() -> None:
    backend = ml.TorchBackend(GRID)
    for check in (arrays, dtensors, training, parts, gradients_of_inputs):
        check(backend)
        torch.distributed.barrier()
    print(f"rank {RANK} is done")


main()
