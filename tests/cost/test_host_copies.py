"""Copies to the host arena on the timeline: beside other work where an engine copies so."""

from __future__ import annotations

from dataclasses import replace

from mithril.cost import Hardware
from mithril.cost.events import COMPUTE, COPIES
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import Simulated, price_program, simulate_program
from mithril.ir import Builder
from mithril.mesh import Mesh, Sharding
from mithril.ops import einsum
from mithril.ops.host import from_host, to_host
from mithril.plan import Execution, Port, Program
from mithril.types import DType, TensorType

SIZE = 4096
TYPE = TensorType((SIZE, SIZE), DType.float32)


def simulate(*, copies_beside: bool) -> Simulated:
    builder, mesh = Builder(), Mesh()
    x, w = builder.input(TYPE, "x"), builder.input(TYPE, "w")
    held = to_host(x)
    y = einsum("ab,bc->ac", w, w)
    graph = builder.build({"y": einsum("ab,bc->ac", y, from_host(held))})
    whole = Sharding.replicated(mesh, 2)
    ports = [Port(name, TYPE, whole) for name in ("x", "w", "y")]
    program = Program(mesh, graph, tuple(ports[:2]), tuple(ports[2:]))
    hardware = replace(
        Hardware.load("h100-sxm"), execution=Execution(overlaps=True, copies_beside=copies_beside)
    )
    return simulate_program(price_program(program, hardware, OpCosts()))


def test_copies_run_beside_compute_on_a_stream_of_their_own() -> None:
    hardware = Hardware.load("h100-sxm")
    beside, in_line = simulate(copies_beside=True), simulate(copies_beside=False)
    copies = [item for item in beside.items if item.stream == COPIES]
    assert [event.kind for event in copies] == ["to_host", "from_host"]
    assert all(event.bytes == TYPE.nbytes for event in copies)
    assert copies[0].seconds == hardware.copy_seconds(TYPE.nbytes)
    products = [item for item in beside.items if item.kind == "einsum"]
    assert products[0].start < copies[0].end  # it is not waited for
    assert products[1].start >= copies[1].end  # what is brought back is
    assert {item.stream for item in in_line.items} == {COMPUTE}
    assert in_line.seconds > beside.seconds
    assert beside.totals.exposed[COPIES] > 0
