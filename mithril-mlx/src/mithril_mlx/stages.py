"""What one process of a job executes of a plan of several stages, and what it relays for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
from mithril.spi import (
    Executable,
    Graph,
    Mesh,
    Node,
    Observer,
    Program,
    TensorType,
    all_nodes,
    unroll,
)
from mithril.spi.ops import collective_of

from mithril_mlx.communicator import Communicator, groups_of, list_pairs
from mithril_mlx.lazy import Shards

Message = tuple[TensorType, tuple[int, int]]


class JobExecutable:
    """A plan of several stages in a job.

    Args:
        build: goes through the steps of the timetable.
        device: where this process computes.
        communicator: the other processes.
    """

    def __init__(self, build: Executable, device: mx.Device, communicator: Communicator) -> None:
        self.build = build
        self._device = device
        self._communicator = communicator

    def __call__(self, inputs: Sequence[Shards], observe: Observer | None = None) -> list[Shards]:
        """Run once, and wait for the end of what this process does in it.

        Raises:
            BackendError: another process of the job is gone.
        """
        with mx.stream(self._device), self._communicator.use_comm_stream():
            results = self.build(inputs, observe)
            mx.eval(results)
        return results


class RemoteStage:
    """A program that runs on other devices: this process has nothing to do with it.

    All the same it may lie on the way of messages of which collectives are made there.

    Args:
        program: what runs there.
        communicator: the other processes.
        rank: which process this is.
    """

    def __init__(self, program: Program, communicator: Communicator, rank: int) -> None:
        self._communicator = communicator
        self._results = len(program.outputs)
        self._passing: list[Message] = []
        if communicator.by_messages(program.mesh):
            self._passing = [
                (type, way)
                for type, way in _messages(program.graph, program.mesh)
                if any(rank in message for message in communicator.transport.route(*way))
            ]
            return
        for node in all_nodes(program.graph):
            if node.op.is_collective:
                communicator.create_groups(_groups(node, program.mesh))

    def __call__(self, inputs: Sequence[Shards], observe: Observer | None = None) -> list[Shards]:
        """Pass on what comes by; this process holds nothing of the results."""
        for type, way in self._passing:
            self._communicator.relay(None, type, way)
        return [[] for _ in range(self._results)]


def _messages(graph: Graph, mesh: Mesh) -> Iterator[Message]:
    """Yield what is sent in the collectives of a program, in order."""
    for node in unroll(graph):
        if node.op.is_collective:
            type = node.inputs[0].type
            if len(node.inputs) > 1:
                type = type.with_shape((sum(value.type.size for value in node.inputs),))
            yield from ((type, way) for way in list_pairs(_groups(node, mesh)))


def _groups(node: Node, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    op = collective_of(node.op)
    assert op is not None, "it is asked of collectives"
    return groups_of(mesh, op.axes)
