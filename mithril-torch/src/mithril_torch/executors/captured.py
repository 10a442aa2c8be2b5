"""Runs a program by replaying what it has launched: a CUDA graph, one launch a call.

A graph reads and writes the memory it was captured with. So operands are copied there before it is
replayed, and results are copied from there, for they shall outlast the next call. The first calls
run the program itself: libraries choose kernels and take their workspaces then, which they may not
do during capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from mithril.spi import BackendError, Graph, Plan, Program

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Replay = Callable[[], None]
Capture = Callable[[Callable[[], list[torch.Tensor]]], tuple[Replay, list[torch.Tensor]]]
"""Takes a function; returns what launches the same again, and where that leaves its results."""

WARM_UP = 2
"""Calls before the one that captures."""


class CapturedRun:
    """A program that is captured after some calls, and replayed from then on.

    Args:
        run: the program, from tensors of fixed shapes.
        capture: how it is captured.
    """

    def __init__(self, run: Run, capture: Capture) -> None:
        self._run = run
        self._capture = capture
        self._calls = 0
        self._operands: list[torch.Tensor] = []
        self._results: list[torch.Tensor] = []
        self._replay: Replay | None = None

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run it once.

        Args:
            inputs: the operands.

        Returns:
            The results, in memory of their own.

        Raises:
            BackendError: the program does what cannot be captured.
        """
        if self._replay is None and self._calls < WARM_UP:
            self._calls += 1
            return self._run(inputs)
        if self._replay is None:
            self._operands = [x.clone() for x in inputs]
            self._replay, self._results = self._capture(lambda: self._run(list(self._operands)))
        _copy(inputs, self._operands)  # updates are made in the place of some: at each call anew
        self._replay()
        made = [torch.empty_like(x) for x in self._results]
        _copy(self._results, made)
        return made


def _copy(sources: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
    """Copy tensors, on CUDA many by one kernel."""
    if sources:
        torch._foreach_copy_(list(places), list(sources))


def is_worth_capturing(run: Program | Plan, graphs: Iterable[Graph]) -> bool:
    """Return whether what runs launches more than the copies before and after a replay.

    Args:
        run: a program, or a plan of several.
        graphs: of the programs.
    """
    launches = sum(len(graph.nodes) for graph in graphs)
    return launches > len(run.inputs) + len(run.outputs)


def capture_cuda_graph(
    run: Callable[[], list[torch.Tensor]],
) -> tuple[Replay, list[torch.Tensor]]:
    """Capture what a function launches on the current CUDA device.

    Args:
        run: the function; it allocates from the memory of the graph.

    Returns:
        What replays it, and the tensors that it then leaves its results in.

    Raises:
        BackendError: the function waits for the device, or does something else that a graph cannot.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph):
            results = run()
    except RuntimeError as error:
        raise BackendError(
            f"program cannot be captured as a CUDA graph: {error}; leave out cuda_graphs=True"
        ) from error
    return graph.replay, results


__all__ = ["CapturedRun", "capture_cuda_graph", "is_worth_capturing"]
