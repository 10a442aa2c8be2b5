"""Programs as functions that build MLX's lazy graph, and have it computed at their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from mithril.spi import Executable, Graph, Observer, walk

from mithril_mlx.communicator import Communicator
from mithril_mlx.tensors import mlx_dtype, to_mlx, to_numpy

Shards = list[mx.array]
LONG = 64
"""Nodes of a program that is worth the cost of being started early."""


class LazyExecutable:
    """A program on the devices of this process.

    Args:
        build: builds the graph.
        device: where it is computed.
        communicator: the other processes, if it exchanges data with them.
        compiled: whether `mx.compile` rewrites it first.
        is_stage: whether it is one of the stages of a plan; the end of that is waited for.
        overwritten: positions of inputs that are given up, in whose memory a result may lie.
        on_host: positions of inputs that it takes as they lie in the host arena.
    """

    def __init__(
        self,
        build: Executable,
        device: mx.Device,
        communicator: Communicator | None,
        compiled: bool,
        is_stage: bool = False,
        overwritten: Sequence[int] = (),
        on_host: Collection[int] = (),
    ) -> None:
        self.build = build
        self.compiled = compiled
        self._device = device
        self._communicator = communicator
        self._is_stage = is_stage
        self._overwritten = overwritten
        self._on_host = on_host

    def __call__(self, inputs: Sequence[Shards], observe: Observer | None = None) -> list[Shards]:
        """Run once, without waiting for the result unless data is exchanged.

        All of the program is computed, in every process alike, whatever its results are used for.

        Raises:
            BackendError: another process of the job is gone.
        """
        if self._communicator is not None:
            self._communicator.restart()
        # There are hundreds of inputs: a function for each would be felt.
        here = [i for i, x in enumerate(inputs) if x and isinstance(x[0], np.ndarray)]
        moved = [i for i in here if i not in self._on_host]
        if moved:
            inputs = list(inputs)
            for position in moved:
                inputs[position] = [to_mlx(to_numpy(x)) for x in inputs[position]]
        with mx.stream(self._device):
            if observe is None and self.compiled:
                results = self._compiled(list(inputs))
            else:
                results = self.build(inputs, observe)
            for position in self._overwritten:
                _let_go(inputs, position)
            if self._communicator is None or self._is_stage:
                mx.async_eval(results)
            else:
                self._communicator.wait_for(results)
        return results

    @cached_property
    def _compiled(self) -> Callable[[list[Shards]], list[Shards]]:
        compiled: Callable[[list[Shards]], list[Shards]] = mx.compile(self.build)
        return compiled


def _let_go(inputs: Sequence[Shards], position: int) -> None:
    """Empty a handle that is given up, unless another array has the same one.

    MLX writes into the memory of an array to which nothing but the graph refers any more.
    """
    if sys.getrefcount(inputs[position]) <= _count_holders():
        inputs[position].clear()


@cache
def _count_holders() -> int:
    """Return how often a handle is referred to that one array has: by it, and by the inputs."""
    array: list[Shards] = [[]]
    inputs = (array[0],)
    return sys.getrefcount(inputs[0])


def _asarray(x: Any, dtype: Any = None) -> mx.array:
    array: mx.array = x if isinstance(x, mx.array) else to_mlx(np.asarray(x))
    if dtype is None:
        return array
    return array.astype(dtype if isinstance(dtype, mx.Dtype) else mlx_dtype(dtype))


_FUNCTIONS: dict[str, Any] = {
    "asarray": _asarray, "add": mx.add, "maximum": mx.maximum, "minimum": mx.minimum,
    "concat": mx.concatenate, "stack": mx.stack, "zeros_like": mx.zeros_like,
    "float32": mx.float32,
}  # fmt: skip


def namespace(graph: Graph, at_once: bool) -> Any:
    """Return the functions that the core's executors call themselves.

    The first values of a long program are computed while the graph of the further ones is built,
    unless all of it has to be computed at once.
    """
    is_early = not at_once and sum(times for _, times in walk(graph)) >= LONG
    early = {"start": mx.async_eval} if is_early else {}
    return SimpleNamespace(settle=mx.eval, compute=mx.eval, **_FUNCTIONS, **early)
