"""Whether results are computed when the engine says so: after `Engine.wait_for`.

A library that computes later, when somebody reads, gives profiles and tuned plans times of nothing
unless `wait_for` has it compute. A program of products is made longer until it takes a while; then
reading its result, one number, has to be short beside running it. Nothing else is looked at
meanwhile: that would have everything computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

from mithril import ops
from mithril.engine import Engine
from mithril.engine.checks import checking
from mithril.ir import Builder
from mithril.mesh import Sharding
from mithril.plan import Port, Program
from mithril.testing.check import Check, Mismatch, Outcome
from mithril.testing.levels import Level
from mithril.testing.target import Target
from mithril.types import DType, TensorType

WIDTH = 256
COUNTS = (1, 8, 64, 256)
"""How many products a program has."""
ENOUGH = 0.03
"""Seconds after which a program is long enough."""
TRIES = 3
"""A machine that is busy may be late once."""


def list_waiting_checks() -> Iterator[Check]:
    """Yield the check."""
    yield Check("engine", "wait_for", check_waiting)


def check_waiting(target: Target, level: Level) -> Outcome:
    """See that after `wait_for` there is nothing left to compute."""
    with checking(is_on=False):
        return _measure(Target(target.name, options=target.options).engine)


def _measure(engine: Engine) -> Outcome:
    for count in COUNTS:
        measure = prepare(engine, count)
        measure()  # compiles
        ran, read = measure()
        if ran + read > ENOUGH:
            break
    else:
        return Outcome(note="too fast to tell")
    tried = [(ran, read), *(measure() for _ in range(TRIES - 1))]
    if all(read > ran for ran, read in tried):
        ran, read = min(tried, key=sum)
        raise Mismatch(
            f"a program runs for {1e3 * ran:.3g} ms, wait_for included, and reading one number of "
            f"it takes {1e3 * read:.3g} ms: it computes when it is read; have Engine.wait_for "
            f"compute, so that profiles are right"
        )
    return Outcome(note=f"{count} product{'s' * (count > 1)}")


def prepare(engine: Engine, count: int) -> Callable[[], tuple[float, float]]:
    """Return what runs a program, and returns the seconds of running and those of reading.

    Args:
        engine: of one device.
        count: products that the program has.
    """
    type = TensorType((WIDTH, WIDTH), DType.float32)
    sharding = Sharding.replicated(engine.mesh, type.rank)
    builder = Builder()
    factor = x = builder.input(type, "x")
    for _ in range(count):
        x = ops.tanh(ops.matmul(x, factor))
    graph = builder.build({"y": ops.sum(x)})
    (result,) = graph.outputs.values()
    leaving = Port("y", result.type, Sharding.replicated(engine.mesh, 0))
    program = Program(engine.mesh, graph, (Port("x", type, sharding),), (leaving,))
    host = np.random.default_rng(0).standard_normal(type.shape).astype(np.float32) / WIDTH
    handle, execute = engine.put(type, sharding, lambda box: host[box]), engine.lower(program)
    engine.wait_for([handle])

    def measure() -> tuple[float, float]:
        start = perf_counter()
        made = execute([handle])
        engine.wait_for(made)
        computed = perf_counter()
        engine.shard(made[0], leaving.sharding, engine.local_devices[0])
        return computed - start, perf_counter() - computed

    return measure
