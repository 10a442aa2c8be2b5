"""Peak memory as plans predict it, against what PyTorch allocates or XLA says of its program.

On PyTorch every process runs steps under `torch.profiler` with `profile_memory`, which sees each
allocation and release of PyTorch's allocator; what is held before the step is added: parameters and
inputs (`benchmarks.torch_sides.count_peak`). What the libraries below take for themselves (packed
matrices of BLAS) it does not see. On JAX a program's memory is that of `memory_analysis()` of the
compiled program: arguments, outputs and temporaries, less what shares memory. Of a plan of several
programs it is the most, over all their runs, of the buffers that are alive on the first device and
of what the program takes besides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mithril as ml

from benchmarks.prediction_cases import MODELS, STRATEGIES, Case, make_case

LIMIT = 0.10
"""How far off the median prediction may be."""
Sizes = tuple[int, int]
"""Predicted and measured bytes of the fullest device."""


# ------------------------------------------------------------------ PyTorch


def measure_torch(case: Case) -> Sizes:
    """Return predicted and measured peak of this process's device."""
    import torch

    from benchmarks.torch_sides import count_peak

    backend = ml.TorchBackend(ml.Mesh(**case.mesh), device="cpu")
    step = _Step(case, backend)
    step.run()

    def list_held() -> list[torch.Tensor]:
        return [x.shards for x in step.arrays if x.shards is not None]

    with torch.no_grad():
        most = count_peak(step.run, list_held)
    device = backend.engine.process_index
    return step.predicted(device), most


def torch_rank(scale: int, chosen: Sequence[str], path: str) -> int:
    """Measure what a rank of a job can, and leave the sizes of rank 0 in a file."""
    import torch.distributed as dist

    found = {name: measure_torch(make_case(*name.split(", "), scale)) for name in chosen}
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    if dist.get_rank() == 0:
        most = {name: max((one[name] for one in gathered), key=lambda x: x[1]) for name in chosen}
        Path(path).write_text(json.dumps(most), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def all_of_torch(scale: int, models: Sequence[str]) -> dict[str, Sizes]:
    """Return the sizes of every case, those of several devices from a job of as many ranks."""
    found = {f"{m}, one device": measure_torch(make_case(m, "one device", scale)) for m in models}
    several = [f"{m}, {s}" for m in models for s in STRATEGIES[1:]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sizes.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "benchmarks.prediction", "memory", "--backend", "torch", "--scale", str(scale),
            "--rank-file", str(path), "--cases", *several,
        ]  # fmt: skip
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True)
        found |= {n: tuple(x) for n, x in json.loads(path.read_text(encoding="utf-8")).items()}
    return found


# ------------------------------------------------------------------ JAX


def measure_jax(case: Case) -> Sizes:
    """Return predicted and measured peak of the first device."""
    backend = ml.JaxBackend(ml.Mesh(**case.mesh))  # before JAX is asked for anything
    before = held_on(0)
    step = _Step(case, backend)
    measured = watch_jax(step.run)[0] - before  # by the plan that is asked below
    return step.predicted(0), measured


def watch_jax(run: Callable[[], object]) -> dict[int, int]:
    """Return the most bytes that lie on devices of JAX while something runs.

    That is what is alive when a program starts, with its results and temporaries; of the devices of
    a program, which do the same, the first one stands for all.

    Args:
        run: runs programs of Mithril.
    """
    import jax
    from mithril_jax.engine import JaxExecutable

    most: dict[int, int] = {}
    known: dict[JaxExecutable, int] = {}
    call = JaxExecutable.__call__

    def watched(self: JaxExecutable, inputs: Any, observe: Any = None) -> Any:
        first = self.program.mesh.flat[0]
        if self not in known:
            analysis = self.memory(inputs)
            made = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
            known[self] = analysis.temp_size_in_bytes + made
        most[first] = max(most.get(first, 0), held_on(first) + known[self])
        return jax.block_until_ready(call(self, inputs, observe))

    JaxExecutable.__call__ = watched  # type: ignore[method-assign]
    try:
        run()
    finally:
        JaxExecutable.__call__ = call  # type: ignore[method-assign]
    return most


def held_on(device: int) -> int:
    """Return the bytes of the buffers that are alive on a device of JAX."""
    import jax

    parts = [
        shard.data
        for x in jax.live_arrays()
        for shard in x.addressable_shards
        if shard.device == jax.devices()[device]
    ]
    return sum({part.unsafe_buffer_pointer(): part.nbytes for part in parts}.values())


def all_of_jax(scale: int, models: Sequence[str]) -> dict[str, Sizes]:
    """Return the sizes of every case."""
    return {f"{m}, {s}": measure_jax(make_case(m, s, scale)) for m in models for s in STRATEGIES}


# ------------------------------------------------------------------ both


class _Step:
    """A step of a case: outputs and gradients."""

    def __init__(self, case: Case, backend: ml.Backend) -> None:
        self._case = case
        self._compiled = case.compile(backend)
        self._params = self._compiled.randomize_params()
        spec = ml.P("data") if "data" in case.mesh else ml.P()
        place = {n: ml.P() if "pipeline" in case.mesh else spec for n in case.inputs}
        self._inputs = {
            n: backend.array(x, sharding=place[n], dtype=str(x.dtype))
            for n, x in case.inputs.items()
        }
        outputs = self._compiled.evaluate(self._params, self._inputs)
        y = outputs[case.output]
        self._gradients = {case.output: backend.ones(*y.shape, sharding=y.sharding)}

    @property
    def arrays(self) -> list[ml.Array]:
        """What goes in."""
        return [*self._params.values(), *self._inputs.values(), *self._gradients.values()]

    def run(self) -> Any:
        """Run once."""
        return self._compiled.evaluate(self._params, self._inputs, self._gradients)

    def predicted(self, device: int) -> int:
        """Return the predicted peak of a device."""
        return self._compiled.plan.memory().of(device).peak


def print_sizes(backend: str, found: Mapping[str, Sizes]) -> int:
    """Print predictions beside measurements; return 0 if the median is near enough."""
    print(f"peak memory on {backend}: predicted, measured, ratio")
    for name, (predicted, measured) in found.items():
        print(f"  {name:<18} {predicted:>12} {measured:>12}  {predicted / measured:.3f}")
    error = statistics.median(abs(p / m - 1) for p, m in found.values())
    print(f"median error {100 * error:.1f} %, limit {100 * LIMIT:.0f} %")
    return int(error > LIMIT)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.prediction memory")
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--scale", type=int, default=1, help="divides the batches")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cases", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rank-file", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank_file:
        return torch_rank(given.scale, given.cases, given.rank_file)
    if given.backend == "jax":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    measure = all_of_torch if given.backend == "torch" else all_of_jax
    return print_sizes(given.backend, measure(given.scale, given.models))
