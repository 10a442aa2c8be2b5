"""Logs how a program's tensors lie, and why it exchanges data, for `trace_module_partitioning`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from mithril.spi import Plan, Program, all_nodes
from mithril.spi.ops import SEND

from mithril_torch.program.names import describe_cause, port_comment

LOGGER = logging.getLogger("mithril.torch")


def log_layout(program: Program) -> None:
    """Log a program that is about to be written, a line for each input, collective and output."""
    if LOGGER.isEnabledFor(logging.INFO):
        for line in layout(program):
            LOGGER.info("%s", line)


def log_plan(plan: Plan) -> None:
    """Log a plan of several stages that is about to be written: also what stages send."""
    for stage in plan.stages:
        log_layout(stage.program)
    if LOGGER.isEnabledFor(logging.INFO):
        for row in plan.collectives():
            if row.kind == SEND:
                moved = f"{row.cause.produced} -> {row.cause.required}"
                LOGGER.info("send: %s, %s for %s", row.cause.value, moved, row.cause.consumer)


def layout(program: Program) -> Iterator[str]:
    """Yield what `log_layout` logs."""
    mesh = program.mesh
    yield f"program on {mesh!r}"
    for port in program.inputs:
        yield f"input {port.name}: {port_comment(port, mesh)}"
    for node in all_nodes(program.graph):
        if node.op.is_collective:
            yield f"{node.where()}: {describe_cause(node, mesh)}"
    for port in program.outputs:
        yield f"output {port.name}: {port_comment(port, mesh)}"
