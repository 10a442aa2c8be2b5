"""What is issued instead of a collective that a transport lacks, and how it is priced and told."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril.cost import SIMULATED, collective_seconds, emulated
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.transport import Call, Transport

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
RING, MPI = Transport("ring", 8), Transport("mpi", 8, groups=True)
JACCL = Transport("jaccl", 8, scatters=True)


@pytest.mark.parametrize(
    ("transport", "kind", "group", "expected"),
    [
        (RING, "all_reduce", 8, Call("all_reduce", 64, 8)),
        (RING, "all_reduce", 2, Call("all_gather", 512, 8)),
        (RING, "all_reduce", 4, Call("all_reduce", 128, 8)),
        (RING, "all_gather", 8, Call("all_gather", 64, 8)),
        (RING, "all_gather", 4, Call("all_gather", 128, 8)),
        (RING, "reduce_scatter", 8, Call("all_reduce", 64, 8)),
        (RING, "reduce_scatter", 2, Call("all_gather", 512, 8)),
        (RING, "all_to_all", 2, Call("all_gather", 512, 8)),
        (RING, "permute", 4, Call("all_gather", 512, 8)),
        (MPI, "all_reduce", 2, Call("all_reduce", 64, 2)),
        (MPI, "all_gather", 4, Call("all_gather", 64, 4)),
        (MPI, "reduce_scatter", 4, Call("all_reduce", 64, 4)),
        (MPI, "all_to_all", 4, Call("all_gather", 256, 4)),
        (JACCL, "reduce_scatter", 8, Call("reduce_scatter", 64, 8)),
        (JACCL, "reduce_scatter", 4, Call("all_reduce", 128, 8)),
    ],
)
def test_what_is_issued(transport: Transport, kind: str, group: int, expected: Call) -> None:
    assert transport.calls(kind, 64, group) == (expected,)
    itself = expected == Call(kind, 64, group)
    assert transport.emulated(kind, 64, group) == ("" if itself else str(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [2, 4, 8])
def test_the_price_is_that_of_what_is_issued(kind: str, group: int) -> None:
    ring = replace(SIMULATED, transport=RING)
    (call,) = RING.calls(kind, 1 << 20, group)
    issued = collective_seconds(call.kind, call.bytes, call.group, SIMULATED)
    assert collective_seconds(kind, 1 << 20, group, ring) == issued
    assert issued >= collective_seconds(kind, 1 << 20, group, SIMULATED)
    assert emulated(kind, 1 << 20, group, SIMULATED) == ""


class OnRing(NumpyEngine):
    """Simulated devices that claim to be processes of a ring."""

    __slots__ = ()

    @property
    def transport(self) -> Transport:
        return Transport("ring", self.mesh.size)


def test_a_plan_says_what_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def explained(backend: ml.Backend) -> str:
        model = ml.Linear(4, bias=False, sharding={"weight": ml.P(None, "tensor")})
        compiled = ml.compile(model, backend, shapes={"input": (4, 8)})
        x = np.ones((4, 8), np.float32)
        compiled.evaluate(compiled.randomize_params(), {"input": x})
        return compiled.explain()

    mesh = ml.Mesh(data=2, tensor=2)
    assert "emulated" not in explained(ml.NumpyBackend(mesh))
    monkeypatch.setattr("mithril.engine.numpy_engine.NumpyEngine", OnRing)
    assert "emulated: all_gather among 4 devices, " in explained(ml.NumpyBackend(mesh))
