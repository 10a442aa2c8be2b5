"""What an observer is told of a program equals its plan where only some ranks send."""

from __future__ import annotations

import sys
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.engine import Engine
from mithril.ir import Builder
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllToAll, Collective, Permute, ReduceScatter
from mithril.plan import Port, Program
from mithril.types import DType, TensorType
from mithril_torch.executors.observed import kind_of, match_program, match_rows, to_plan_row

from tests.runtime.scripts import ran

Pairs = tuple[tuple[int, int], ...]


def permuting(mesh: Mesh, pairs: Pairs) -> Program:
    """Return a program that sends parts of a tensor on."""
    builder, local = Builder(), TensorType((2, 3), DType.float32)
    (moved,) = builder.apply(Permute(("a",), pairs), builder.input(local, "x"))
    apart = Sharding.of(mesh, P("a"), 2)
    port = Port("x", local.with_shape((8, 3)), apart)
    return Program(mesh, builder.build({"y": moved}), (port,), (Port("y", port.type, apart),))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return ml.TorchBackend(Mesh(a=4), device="cpu").engine


@pytest.mark.parametrize("pairs", [((0, 3),), ((3, 0),), ((1, 2), (2, 1)), ((1, 3),)])
def test_a_permutation_of_some(engine: Engine, pairs: Pairs) -> None:
    program = permuting(engine.mesh, pairs)
    (port,), apart = program.inputs, program.inputs[0].sharding
    host = np.arange(24, dtype=np.float32).reshape(8, 3)
    seen: list[tuple[str, tuple[str, ...], int]] = []
    given = engine.put(port.type, apart, lambda box: host[box])
    (result,) = engine.lower(program)([given], lambda told: seen.append(told.row))
    assert seen == list(program.list_issued()) == [("permute", ("a",), 24)]
    source_of = {target: source for source, target in pairs}
    for rank in range(4):
        sent = host[2 * source_of[rank] :][:2] if rank in source_of else np.zeros((2, 3))
        np.testing.assert_array_equal(engine.shard(result, apart, rank), sent)


def test_a_rank_that_is_left_out_tells_of_the_whole_permute() -> None:
    """In a job each rank has only its own view, and this one sees no data."""
    program = permuting(Mesh(a=4), ((0, 3),))

    def observed(**changes: Any) -> list[tuple[str, tuple[str, ...], int]]:
        row = {"op": "alltoall_base_", "axes": ["a"], "ranks": [0, 1, 2, 3], "partners": 1}
        return [issued.row for issued in match_program(program, [{**row, "bytes": 0, **changes}])]

    assert observed() == observed(bytes=24) == list(program.list_issued())
    assert observed(bytes=48) == [("permute", ("a",), 48)]
    assert observed(axes=["b"]) == [("permute", ("b",), 0)]
    assert observed(op="allreduce_") == [("all_reduce", ("a",), 0)]
    assert list(match_program(program, [])) == []


def test_an_all_to_all_carries_a_scatter_out() -> None:
    """Gloo has no other; what a plan exchanges is still told apart from what it scatters."""
    scatter, moved = ReduceScatter(("a",), "sum", 0, 2), AllToAll(("a",), 0, 0, 2)

    def program(*given: Collective) -> Program:
        builder, mesh, local = Builder(), Mesh(a=2), TensorType((4,), DType.float32)
        x = builder.input(local, "x")
        made = {f"y{n}": builder.apply(op, x)[0] for n, op in enumerate(given)}
        whole = Sharding.replicated(mesh, 1)
        leaving = tuple(Port(name, y.type, whole) for name, y in made.items())
        return Program(mesh, builder.build(made), (Port("x", local, whole),), leaving)

    def seen(kind: str, nbytes: int = 16) -> dict[str, Any]:
        row = {"op": kind, "axes": ["a"], "ranks": [0, 1], "partners": 2}
        return row | {"bytes": nbytes}

    both, exchanged = program(scatter, moved), ("all_to_all", ("a",), 16)
    scattered = ("reduce_scatter", ("a",), 16)
    issued = match_program(both, [seen("alltoall_base_"), seen("all_to_all_single")])
    assert [told.row for told in issued] == [scattered, exchanged] == list(both.list_issued())
    apart = match_program(both, [seen("alltoall_base_", 8) | {"partners": 1}])
    assert [told.row for told in apart] == [scattered], "a process sends nothing to itself"
    unordered = match_rows(both, [exchanged, exchanged])
    assert [told.row for told in unordered] == [scattered, exchanged]
    for wrong in (seen("alltoall_base_", 8), seen("allreduce_"), seen("_allgather_base_")):
        (told,) = match_program(program(scatter), [wrong])
        assert told.kind != "reduce_scatter"
        assert told.origin is None
    (told,) = match_program(program(moved), [seen("_reduce_scatter_base_")])
    assert told.origin is None, "what is to be exchanged is not reduced"


def test_what_all_others_get_is_an_exchange() -> None:
    row = {"op": "alltoall_base_", "axes": ["a"], "ranks": [0, 1, 2], "bytes": 16}
    found = [to_plan_row(row | {"partners": partners}) for partners in (0, 1, 2, 3)]
    permuted, exchanged = ("permute", ("a",), 16), ("all_to_all", ("a",), 24)
    assert found == [permuted, permuted, exchanged, ("all_to_all", ("a",), 16)]


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("allreduce_", "all_reduce"), ("all_reduce", "all_reduce"),
        ("_allgather_base_", "all_gather"), ("all_gather_into_tensor", "all_gather"),
        ("_reduce_scatter_base_", "reduce_scatter"), ("reduce_scatter_tensor", "reduce_scatter"),
        ("alltoall_base_", "all_to_all"), ("all_to_all_single", "all_to_all"),
        ("send", "send"), ("recv_", "receive"), ("barrier", "barrier"),
    ],
)  # fmt: skip
def test_ops_of_pytorch_are_kinds_of_collectives(op: str, kind: str) -> None:
    assert kind_of(op) == kind


RECORDED = """
import sys, torch
from mithril_torch.executors.pool.recorder import record_collectives
with record_collectives(memoryview(bytearray(1))) as rows:
    torch.ones(2) + 1
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.mark.slow
def test_observing_does_not_load_the_compiler() -> None:
    """Which takes PyTorch seconds, in every worker."""
    done = ran([sys.executable, "-c", RECORDED])
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
