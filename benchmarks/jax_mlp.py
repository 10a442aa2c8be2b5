"""One step of an MLP on JAX against the same by hand, and what a call costs beyond XLA's program.

The step: 64-256-64 with relu, batch 32, as `jax_gpt.py` compares the GPT; small, so that what stands
around the matrix products shows. `--sizes 784,512,256,10 --batch 128` takes the MLP of
`numpy_mlp.py`, whose time is all matrix products, the same on both sides. On eight devices the first
layer is split by columns and the second by rows.

The cost of a call: `compiled.evaluate` less a bare jitted call of the same program that takes and
returns dicts of the same arrays, for as many layers but so narrow that computing takes no time. It
does not depend on widths. What each further array adds is the difference to a deeper model; every
array that goes in or comes out counts, so a parameter counts twice, once as its gradient.
Counted is the processor time of the thread that calls: waiting for XLA's threads and for other
programs, which is much longer and differs from call to call, is the same on both sides.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import mithril as ml
import numpy as np
from mithril.transform import gradient_of

from benchmarks import jax_by_hand
from benchmarks.harness import Limit, estimate, interleave, report, settle
from benchmarks.jax_sides import (
    MESHES,
    STEP_LIMITS,
    VERSION,
    ByHand,
    Ours,
    check_sides,
    compare,
    plain,
)
from benchmarks.numpy_mlp import model
from benchmarks.sides import Functions, planned

SIZES, BATCH = (64, 256, 64), 32
NARROW, NARROW_BATCH = 8, 8
FURTHER_LAYERS = 24
ARRAYS_PER_LAYER = 4  # weight, bias and their gradients
CALL_LIMIT, ARRAY_LIMIT = 25.0, 0.3  # µs
LAYERS = 3
CALLS, ROUNDS_OF_CALLS = 5, 500


def contestants(sizes: tuple[int, ...], batch: int, mesh: ml.Mesh) -> tuple[Ours, ByHand]:
    """Return both sides, after a check that they give the same numbers."""
    mithril, data = _mithril(sizes, batch, mesh)
    params, given = plain(mithril.params), [jax.numpy.asarray(x) for x in data]
    constrain = jax_by_hand.unconstrained
    if mesh.size > 1:
        devices = jax_by_hand.mesh(mesh.sizes)
        params = jax_by_hand.place(params, devices)
        given = [jax_by_hand.place_batch(x, devices) for x in given]
        constrain = jax_by_hand.constraining(devices)
    by_hand = ByHand(jax_by_hand.mlp_step(constrain), (params, *given))
    check_sides(mithril, by_hand)
    return mithril, by_hand


def _mithril(
    sizes: tuple[int, ...], batch: int, mesh: ml.Mesh
) -> tuple[Ours, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, sizes[0]), dtype=np.float32)
    target = rng.integers(0, sizes[-1], batch).astype(np.int32)
    backend, mlp, split = ml.JaxBackend(mesh), model(sizes), ml.P()
    if mesh.size > 1:
        split = ml.P("data")
        mlp.shard({"layer0.weight": ml.P("tensor", None), "layer1.weight": ml.P(None, "tensor")})
    inputs = {
        "x": backend.array(x, sharding=split),
        "target": backend.array(target, sharding=split),
    }
    return planned(Ours, mlp, backend, inputs), (x, target)


# ------------------------------------------------------------------ the cost of a call


def calls(layers: int, mesh: ml.Mesh) -> Functions:
    """Return `evaluate` and a bare jitted call, after a check that they give the same numbers."""
    mithril, _ = _mithril((NARROW,) * (layers + 1), NARROW_BATCH, mesh)
    bare, arguments = _bare(mithril), _trees(mithril)
    outputs, gradients = mithril.step()
    expected = bare(*arguments)
    for found, tree in zip((outputs, gradients), expected, strict=True):
        assert found.keys() == tree.keys()
        for name, x in tree.items():
            np.testing.assert_array_equal(found[name].jax(), x, err_msg=name)

    def evaluate() -> None:
        found, _ = mithril.compiled.evaluate(mithril.params, mithril.inputs, {"loss": mithril.one})
        found["loss"].shards.block_until_ready()

    def call() -> None:
        found, _ = bare(*arguments)
        found["loss"].block_until_ready()

    return {f"evaluate, {layers} layers": evaluate, f"bare call, {layers} layers": call}


def _trees(mithril: Ours) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return parameters, inputs and output gradients as JAX's own arrays."""
    params, inputs = (
        {name: x.shards for name, x in side.items()} for side in (mithril.params, mithril.inputs)
    )
    return params, inputs, {"loss": mithril.one.shards}


def _bare(mithril: Ours) -> Callable[..., tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """Return the program that `evaluate` runs as a jitted function of dicts."""
    executable = mithril.executable
    names = [port.name for port in executable.program.outputs]
    gradients = {name: gradient_of(name) for name in mithril.params}

    def run(params: Mapping[str, Any], inputs: Mapping[str, Any], seeds: Mapping[str, Any]) -> Any:
        given = mithril.in_order({**params, **inputs}, seeds["loss"])
        found = dict(zip(names, executable.trace(given), strict=True))
        return {"loss": found["loss"]}, {name: found[port] for name, port in gradients.items()}

    return jax.jit(run)


def overheads(times: Mapping[str, Sequence[float]]) -> list[Limit]:
    """Return the limits on a call and on each further array from the times of both depths."""
    evaluate, bare, deep_evaluate, deep_bare = times.values()
    shallow = [1e6 * (a - b) for a, b in zip(evaluate, bare, strict=True)]
    deep = [1e6 * (a - b) for a, b in zip(deep_evaluate, deep_bare, strict=True)]
    further = FURTHER_LAYERS * ARRAYS_PER_LAYER
    each = [(b - a) / further for a, b in zip(shallow, deep, strict=True)]
    return [
        Limit("call above a bare one", estimate(shallow), CALL_LIMIT, "µs"),
        Limit("each further array", estimate(each), ARRAY_LIMIT, "µs"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, choices=MESHES, default=1)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="widths of the MLP")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--compiles", type=int, default=9, help="how often both are compiled")
    parser.add_argument("--calls", type=int, default=ROUNDS_OF_CALLS, help="rounds of bare calls")
    given = parser.parse_args()
    settle("benchmarks.jax_mlp")
    sizes = tuple(map(int, given.sizes.split(",")))
    mesh = MESHES[given.devices]
    sides = contestants(sizes, given.batch, mesh)
    limit = STEP_LIMITS[given.devices]
    times, limits = compare("MLP", *sides, limit, given.rounds, given.compiles)
    both = {**calls(LAYERS, mesh), **calls(LAYERS + FURTHER_LAYERS, mesh)}
    called = interleave(both, given.calls, warm_up=20, calls=CALLS, clock=time.thread_time)
    title = f"MLP {given.sizes}, batch {given.batch}, {mesh!r}, {VERSION}, forward and backward"
    return report(title, {**times, **called}, [*limits, *overheads(called)])


if __name__ == "__main__":
    sys.exit(main())
