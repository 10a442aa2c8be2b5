"""What an ejected program needs to run in a file of its own, besides the runtime library.

The source of these functions goes into such files, so only PyTorch, the standard library and
modules that are alike are imported here. Tensors in files are whole; each process cuts out its own
part of them.
"""

from __future__ import annotations

import argparse
import base64
import math
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from mithril_torch.launch.loopback import LOOPBACK, is_loopback
from mithril_torch.program.runtime_library.groups import release_groups

Box = tuple[slice, ...]
Run = Callable[[Sequence[torch.Tensor | None]], list[torch.Tensor | None]]


class Port(NamedTuple):
    """A tensor that goes into the program or comes out of it.

    `kind` is `input`, `parameter`, `output gradient`, `constant` or `seed` of what goes in,
    `output` or `gradient` of what comes out; `shape` is that of the whole tensor; `split` says for
    each dimension which mesh axes split it, major first; `axes` are the sizes of these, `ranks` the
    processes that have a part of it, in the order of the axes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    split: tuple[tuple[str, ...], ...]
    axes: Mapping[str, int]
    ranks: tuple[int, ...]


def main(
    size: int,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    load: Callable[[str, int], Run],
    arguments: Sequence[str] | None = None,
    constants: Mapping[str, str] | None = None,
) -> None:
    """Run one step from the command line."""
    options = read_arguments(arguments)
    rank, device = meet_others(size, options.device)
    wholes = tensors_for(inputs, options.tensors, options.seed, constants or {})
    run = load(device, rank)
    parts = [part_of(wholes[port.name], port, rank, device) for port in inputs]
    with torch.inference_mode():
        results = run(parts)
        found = {
            port.name: whole_of(result, port, size, device).cpu()
            for port, result in zip(outputs, results, strict=True)
        }
    if rank == 0:
        for port in outputs:
            print(describe(port, found[port.name]))
        if options.save:
            save(found, options.save)
    if dist.is_initialized():
        dist.barrier()
        release_groups()
        dist.destroy_process_group()


def read_arguments(arguments: Sequence[str] | None) -> Any:
    """Return what stands on the command line."""
    parser = argparse.ArgumentParser(description="Run one step of the program in this file.")
    parser.add_argument(
        "--tensors", help="a file by torch.save of a dict: whole inputs and parameters by name"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random tensors, and of dropout")
    parser.add_argument("--save", help="a file for the outputs and gradients, whole, by name")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    return parser.parse_args(arguments)


def meet_others(size: int, kind: str) -> tuple[int, str]:
    """Return this process's rank and device; the processes that torchrun started meet."""
    rank, world = (int(os.environ.get(name, d)) for name, d in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if world != size:
        start = f"torchrun --nproc-per-node {size}" if size > 1 else "python"
        sys.exit(f"the program is for {size} processes, not {world}; start it by {start}")
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if kind == "cuda" else kind
    if kind == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        return 0, device
    here, address = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "MASTER_ADDR"))
    if here == str(world) or (not here and is_loopback(address)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    kept_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not kept_by_agent,
        wait_for_workers=False,
    )
    # A restarted job must not read the addresses of the processes before it.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    mine = PrefixStore(f"step/{attempt}", store)
    library = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(library, store=mine, rank=rank, world_size=world)
    return rank, device


def tensors_for(
    ports: Sequence[Port], path: str | None, seed: int, constants: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return the whole tensors that go in: those of a file, or random ones.

    Gradients of outputs are ones unless the file has others; a seed is that of the command line. A
    constant is what this file says, if it is not too large to stand in it.
    """
    given = {} if path is None else torch.load(path, map_location="cpu", weights_only=True)
    known = {port.name for port in ports}
    unknown = sorted(set(given) - known)
    if unknown:
        sys.exit(f"{path} has '{unknown[0]}', which the program does not take; it takes {known}")
    found = {}
    for port in ports:
        if port.name not in given and path is not None and port.kind in ("input", "parameter"):
            sys.exit(f"{path} has no {port.kind} '{port.name}'")
        if port.name in given:
            x = given[port.name]
        elif port.kind != "constant":
            x = make_tensor(port, seed)
        elif port.name in constants:
            x = read_constant(port, constants[port.name])
        else:
            sys.exit(f"constant '{port.name}' is too large for this file; give it by --tensors")
        if (tuple(x.shape), x.dtype) != (port.shape, port.dtype):
            sys.exit(
                f"{port.kind} '{port.name}' in {path} is {x.dtype}{list(x.shape)}; the program "
                f"takes {port.dtype}{list(port.shape)}"
            )
        found[port.name] = x
    return found


def read_constant(port: Port, text: str) -> torch.Tensor:
    """Return a constant that is written out in this file."""
    values = bytearray(zlib.decompress(base64.b64decode(text)))
    if not values:
        return torch.empty(port.shape, dtype=port.dtype)
    return torch.frombuffer(values, dtype=port.dtype).reshape(port.shape)


def make_tensor(port: Port, seed: int) -> torch.Tensor:
    """Return a tensor for who gave none: the same on all processes."""
    if port.kind == "seed":
        return torch.tensor(seed, dtype=port.dtype)
    if port.kind == "output gradient":
        return torch.ones(port.shape, dtype=port.dtype)
    random = torch.Generator().manual_seed(seed + zlib.crc32(port.name.encode()))
    if not port.dtype.is_floating_point:
        return torch.randint(0, 2, port.shape, generator=random).to(port.dtype)
    x = torch.randn(port.shape, generator=random)
    if port.kind == "parameter" and x.dim() > 1:
        x /= math.sqrt(x.shape[-1])
    return x.to(port.dtype)


def box_of(port: Port, rank: int) -> Box:
    """Return which part of the whole tensor a process holds; the last parts may be smaller."""
    place, where = port.ranks.index(rank), dict[str, int]()
    for axis in reversed(list(port.axes)):
        place, where[axis] = divmod(place, port.axes[axis])
    box = []
    for size, axes in zip(port.shape, port.split, strict=True):
        start, stop = 0, size
        for axis in axes:
            size = -(-size // port.axes[axis])
            start = min(start + where[axis] * size, stop)
            stop = min(start + size, stop)
        box.append(slice(start, stop))
    return tuple(box)


def local_shape(port: Port) -> list[int]:
    """Return the common size of the parts."""
    sizes = zip(port.shape, port.split, strict=True)
    return [-(-size // math.prod(port.axes[axis] for axis in axes)) for size, axes in sizes]


def part_of(whole: torch.Tensor, port: Port, rank: int, device: str) -> torch.Tensor | None:
    """Cut this process's part out of a whole tensor, with zeros behind it up to the common size.

    None if the tensor is on other processes only.
    """
    if rank not in port.ranks:
        return None
    part = whole[box_of(port, rank)]
    if list(part.shape) == local_shape(port):
        return part.contiguous().to(device)
    padded_part = whole.new_zeros(local_shape(port))
    padded_part[tuple(slice(size) for size in part.shape)] = part
    return padded_part.to(device)


def whole_of(part: torch.Tensor | None, port: Port, size: int, device: str) -> torch.Tensor:
    """Join the parts of all processes to a whole tensor; all of them call this together."""
    if not any(port.split) and len(port.ranks) == size and part is not None:
        return part
    if part is None:
        part = torch.zeros(local_shape(port), dtype=port.dtype, device=device)
    if part.numel() == 0:
        return part.new_empty(port.shape)
    # Bytes, as some libraries know few types; of one element PyTorch keeps any stride.
    row = torch.as_strided(part.contiguous(), (part.numel(),), (1,)).view(torch.uint8)
    rows = [torch.empty_like(row) for _ in range(size)]
    dist.all_gather(rows, row)
    whole = part.new_empty(port.shape)
    for rank in port.ranks:
        box = box_of(port, rank)
        true_sizes = tuple(slice(cut.stop - cut.start) for cut in box)
        whole[box] = rows[rank].view(part.dtype).view(part.shape)[true_sizes]
    return whole


def describe(port: Port, whole: torch.Tensor) -> str:
    """Return an output in one line: a scalar itself, of others the norm."""
    if whole.dim() == 0:
        return f"{port.name} {whole.item():.8g}"
    norm = whole.to(torch.float64).norm().item()
    return f"{port.name} {list(port.shape)} norm {norm:.8g}"


def save(tensors: Mapping[str, torch.Tensor], path: str) -> None:
    """Write tensors to a file, which is complete as soon as it is there."""
    partial_file = Path(f"{path}.{os.getpid()}.part")
    torch.save({name: x.clone() for name, x in tensors.items()}, partial_file)
    partial_file.replace(path)
