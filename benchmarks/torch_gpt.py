"""One step of a GPT on PyTorch: outputs and gradients, against eager autograd, DDP and DTensor.

On one rank the other side is `loss.backward()` of an `nn.Module`. On 2 or 4 it is the same module in
`DistributedDataParallel`, against Mithril with the batch split, and through `parallelize_module`,
against Mithril with the blocks split alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import mithril as ml
import torch
import torch.distributed as dist
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from benchmarks import torch_by_hand
from benchmarks.harness import BLOCKS_KEPT, Limit, interleave, ratio, report, settle
from benchmarks.sides import (
    INPUTS,
    SIZES,
    VOCABULARIES,
    Data,
    Functions,
    Times,
    data_of,
    planned,
    sizes_of,
)
from benchmarks.torch_sides import (
    VERSION,
    Eager,
    Ours,
    check_sides,
    hand_in,
    in_job,
    take_over,
    together,
)

EAGER_LIMITS = {"256": 1.0, "64": 0.7}
DDP_LIMIT, DTENSOR_LIMIT, JIT_LIMIT = 0.95, 0.85, 1.0


def mithril_side(
    sizes: Sizes, vocabulary: int, mesh: ml.Mesh, data: Data, jit: bool = False
) -> Ours:
    """Return Mithril's side: the batch split over `data`, blocks over `tensor`."""
    backend = ml.TorchBackend(mesh, device="cpu", jit=jit)
    model = with_loss(gpt(vocabulary, sizes))
    if "tensor" in mesh.names:
        megatron(model)
    split = ml.P("data") if "data" in mesh.names else ml.P()
    inputs = {name: backend.array(x, sharding=split) for name, x in data.items()}
    return planned(Ours, model, backend, inputs)


def module_of(sizes: Sizes, vocabulary: int, params: Mapping[str, ml.Array]) -> torch_by_hand.Gpt:
    """Return the module, with Mithril's parameters."""
    return take_over(torch_by_hand.Gpt(vocabulary, sizes), params, "gpt.")


def alone(sizes: Sizes, vocabulary: int, jit: bool = False) -> Functions:
    """Return the contestants on one rank, after a check that they give the same numbers."""
    data = data_of(sizes, vocabulary)
    mithril = mithril_side(sizes, vocabulary, ml.Mesh(), data)
    given = tuple(torch.tensor(data[name], dtype=torch.int64) for name in INPUTS)
    eager = Eager(module_of(sizes, vocabulary, mithril.params), given)
    check_sides(mithril, eager, "gpt.")
    found: Functions = {"mithril": mithril.step, "eager": eager.step}
    if jit:
        compiled = mithril_side(sizes, vocabulary, ml.Mesh(), data, jit=True)
        check_sides(compiled, eager, "gpt.")
        found["mithril, jit"] = compiled.step
    return found


def spread(sizes: Sizes, vocabulary: int, ranks: int) -> Functions:
    """Return the contestants of a rank, after a check that they give the same numbers."""
    data = data_of(sizes, vocabulary)
    by_data = mithril_side(sizes, vocabulary, ml.Mesh(data=ranks), data)
    by_tensor = mithril_side(sizes, vocabulary, ml.Mesh(tensor=ranks), data)
    given = tuple(torch.tensor(data[name], dtype=torch.int64) for name in INPUTS)
    params = by_data.params
    mine = tuple(x.chunk(ranks)[dist.get_rank()] for x in given)
    ddp = Eager(DistributedDataParallel(module_of(sizes, vocabulary, params)), mine)
    devices = init_device_mesh("cpu", (ranks,))
    split = torch_by_hand.tensor_parallel(module_of(sizes, vocabulary, params), devices)
    dtensor = Eager(split, given)
    check_sides(by_data, ddp, "gpt.", is_split=True)
    check_sides(by_tensor, dtensor, "gpt.")
    return {
        "mithril, data": by_data.step, "DDP": ddp.step,
        "mithril, tensor": by_tensor.step, "DTensor": dtensor.step,
    }  # fmt: skip


def limits(times: Times, width: str) -> list[Limit]:
    """Return the limits on the contestants."""
    pairs = (
        ("mithril", "eager", EAGER_LIMITS[width]),
        ("mithril, jit", "mithril", JIT_LIMIT),
        ("mithril, data", "DDP", DDP_LIMIT),
        ("mithril, tensor", "DTensor", DTENSOR_LIMIT),
    )
    return [
        Limit(f"{of} to {to}", ratio(times, of, to), limit)
        for of, to, limit in pairs
        if {of, to} <= times.keys()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--width", choices=SIZES, default="256")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--jit", action="store_true", help="time jit=True too, on one rank")
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    settle("benchmarks.torch_gpt", BLOCKS_KEPT)
    sizes, vocabulary, warm_up = sizes_of(given.width, given.ranks), VOCABULARIES[given.width], 5
    if given.times:
        functions = spread(sizes, vocabulary, given.ranks)
        hand_in(interleave(functions, given.rounds, warm_up, ready=together), given.times)
        return 0
    if given.ranks == 1:
        times = interleave(alone(sizes, vocabulary, given.jit), given.rounds, warm_up)
    else:
        passed = ["--ranks", str(given.ranks), "--width", given.width]
        times = in_job(
            "benchmarks.torch_gpt", given.ranks, [*passed, "--rounds", str(given.rounds)]
        )
    title = f"GPT {sizes}, vocabulary {vocabulary}, {given.ranks} ranks, {VERSION}"
    return report(title, times, limits(times, given.width))


if __name__ == "__main__":
    sys.exit(main())
