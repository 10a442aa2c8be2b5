"""On PyTorch plans that start collectives early, or wait for each at once, train alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import ops
from mithril.compiler import PlanOptions
from mithril.cost import SIMULATED
from mithril.ir import Builder, Graph, Start
from mithril.mesh import Mesh, P
from mithril.partition.overlap import Overlap
from mithril.partition.overlap.asked import AUTO, BUCKET, NONE
from mithril.plan import Execution
from mithril.types import DType, TensorType

from tests.conformance.engines import opened
from tests.graphs import run, values_for
from tests.tolerances import TOLERANCE
from tests.training.test_char_gpt import losses_of, make_step

WIDTH, LAYERS = 8, 4
STRATEGIES = (AUTO, BUCKET, NONE)
"""Those that leave products whole; `tests/decompose` has the other one."""


def layers() -> Graph:
    builder = Builder()
    x = builder.input(TensorType((WIDTH, WIDTH), DType.float32), "x")
    for number in range(LAYERS):
        with builder.at(scope=f"layer_{number}"):
            x = ops.tanh(x @ builder.input(x.type, f"w{number}"))
    return builder.build({"y": x})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_started_was_issued_in_the_order_of_the_plan(strategy: str) -> None:
    graph, mesh, names = layers(), Mesh(data=2), [f"w{number}" for number in range(LAYERS)]
    profile = replace(SIMULATED, execution=Execution(overlaps=True), memory_bandwidth=1.0)
    expected = run(
        graph, mesh, values_for(graph), {"x": P("data")}, differentiated=names,
        at_rest=dict.fromkeys(names, P("data")), hardware=profile,
        options=PlanOptions(overlap=Overlap(strategy)),
    )  # fmt: skip
    program, engine = expected.plan.stages[0].program, opened("torch", data=2).engine
    assert any(isinstance(node.op, Start) for node in program.graph.nodes)
    values = values_for(graph)
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box])
        for port in program.inputs
    ]
    told: list[tuple[str, tuple[str, ...], int]] = []
    made = engine.lower(program)(handles, lambda issued: told.append(issued.row))
    assert told == list(program.list_issued())
    for port, handle in zip(program.outputs, made, strict=True):
        for device in range(2):
            box = port.sharding.box(device, port.type.shape)
            np.testing.assert_allclose(
                engine.shard(handle, port.sharding, device), expected.outputs[port.name][box],
                *TOLERANCE["float32"], err_msg=port.name,
            )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 2}, {"tensor": 2}, {"data": 2, "tensor": 2}])
def test_losses_have_the_same_bits_wherever_collectives_start(mesh: dict[str, int]) -> None:
    options: dict[str, Any] = {"zero": 3} if "data" in mesh else {}
    found = {}
    for strategy in STRATEGIES:
        chosen = {**options, "communication_overlap_strategy": strategy}
        found[strategy] = losses_of(make_step(opened("torch", **mesh), chosen))
    assert found["auto"] == found["none"] == found["bucket"]
    assert found["auto"][-1] < found["auto"][0]


def test_a_program_for_torch_compile_waits_for_each_collective() -> None:
    backend = ml.TorchBackend(jit=True)
    assert not backend.engine.execution.overlaps
