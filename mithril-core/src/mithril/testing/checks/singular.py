"""Matrices without a result: a compiled program cannot refuse, and devices of padding hold zeros.

An inverse, a solution or a factor that does not exist is not finite, and those of the other
matrices of a stack are what they are alone. Libraries that raise instead do so on a mesh wherever a
device has nothing but padding; those that compute later only where somebody reads that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mithril import ops
from mithril.errors import listing
from mithril.ir import Op
from mithril.testing.check import Check, Mismatch, Missing, Outcome
from mithril.testing.checks.ops import has_no_expansion
from mithril.testing.compare import describe_difference
from mithril.testing.evaluate import apply, graph_of, inputs_of, type_of
from mithril.testing.levels import Level
from mithril.testing.running import run_graph
from mithril.testing.target import Target

STACK = np.stack([2 * np.eye(3, dtype=np.float32), np.zeros((3, 3), np.float32)])
RIGHT = np.ones((2, 3, 1), np.float32)
OF_STACKS: tuple[tuple[Op, tuple[np.ndarray, ...]], ...] = (
    (ops.Inv(), (STACK,)),
    (ops.Solve(), (STACK, RIGHT)),
    (ops.TriangularSolve(), (STACK, RIGHT)),
    (ops.Cholesky(), (STACK - np.stack([0 * STACK[0], np.eye(3, dtype=np.float32)]),)),
)


def list_singular_checks() -> Iterator[Check]:
    """Yield the check."""
    yield Check("values", "singular matrices", check_singular)


def check_singular(target: Target, level: Level) -> Outcome:
    """Compare results on a good matrix and one that has none, one after the other in a stack."""
    engine, tried, missing = target.engine, 0, []
    for op, arrays in OF_STACKS:
        if op.name not in engine.kernels and has_no_expansion(op.name, engine):
            missing.append(op.name)
            continue
        graph = graph_of(op, [type_of(array) for array in arrays])
        found = run_graph(engine, graph, inputs_of(arrays))["y0"]
        (expected,) = apply(op, *arrays)
        difference = describe_difference(found[:1], expected[:1])
        if difference:
            raise Mismatch(f"{op.name} beside a matrix without a result: {difference}")
        if np.isfinite(found[1]).all():
            raise Mismatch(f"{op.name} of a matrix without a result is finite: {found[1].tolist()}")
        tried += 1
    if not tried:
        raise Missing("no kernels of matrices")
    left = f"; without {listing(missing)}, which has no kernel" if missing else ""
    return Outcome(note=f"{tried} ops{left}")
