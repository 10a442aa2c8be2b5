"""What an observer is told of a program equals its plan where only some ranks send."""

from __future__ import annotations

import sys

import mithril as ml
import numpy as np
import pytest
from mithril.engine import Engine
from mithril.ir import Builder
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import Permute
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

from tests.runtime.scripts import ran


@pytest.fixture(scope="module")
def engine() -> Engine:
    return ml.TorchBackend(Mesh(a=4), device="cpu").engine


@pytest.mark.parametrize("pairs", [((0, 3),), ((3, 0),), ((1, 2), (2, 1)), ((1, 3),)])
def test_a_permutation_of_some(engine: Engine, pairs: tuple[tuple[int, int], ...]) -> None:
    builder, local = Builder(), TensorType((2, 3), DType.float32)
    (moved,) = builder.apply(Permute(("a",), pairs), builder.input(local, "x"))
    apart = Sharding.of(engine.mesh, P("a"), 2)
    port = Port("x", local.with_shape((8, 3)), apart)
    graph = builder.build({"y": moved})
    program = Program(engine.mesh, graph, (port,), (Port("y", port.type, apart),))
    host = np.arange(24, dtype=np.float32).reshape(8, 3)
    seen: list[tuple[str, tuple[str, ...], int]] = []
    given = engine.put(port.type, apart, lambda box: host[box])
    (result,) = engine.lower(program)([given], lambda *row: seen.append(row))
    assert seen == list(program.issued()) == [("permute", ("a",), 24)]
    source_of = {target: source for source, target in pairs}
    for rank in range(4):
        source = source_of.get(rank, rank)
        np.testing.assert_array_equal(
            engine.shard(result, apart, rank), host[2 * source : 2 * source + 2]
        )


RECORDED = """
import sys, torch
from mithril_torch.executors.pool.recorder import record_collectives
with record_collectives(memoryview(bytearray(1))) as rows:
    torch.ones(2) + 1
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_observing_does_not_load_the_compiler() -> None:
    """Which takes PyTorch seconds, in every worker."""
    done = ran([sys.executable, "-c", RECORDED])
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
