"""Writes large products of float32 so that oneDNN multiplies, on processors where that is faster.

PyTorch multiplies float32 by MKL, which takes AVX2 on processors that are not Intel's, though these
have AVX-512: half of their speed. oneDNN takes what a processor has. Its function starts more
slowly, so that small products, and those with a vector, stay as they are.
"""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from mithril.spi import DType, Graph, Node, map_bodies
from mithril.spi.ops import Einsum

from mithril_torch.program.fusing import EinsumAdd, EinsumInto, OneDnnProduct

LEAST_PRODUCTS = 1 << 21
"""Of numbers: below, MKL has ended before oneDNN starts."""
LEAST_ROWS = 8
"""Of each factor: below, what counts is how fast the other one is read."""


@cache
def is_onednn_faster() -> bool:
    """Return whether oneDNN multiplies float32 faster than what PyTorch does it by."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_both and is_wide and "AuthenticAMD" in describe_processor()


def describe_processor() -> str:
    """Return what the system says of the processor, its maker's name included."""
    told = Path("/proc/cpuinfo")
    return told.read_text(encoding="utf-8") if told.exists() else platform.processor()


def use_onednn(graph: Graph) -> Graph:
    """Return a graph that computes the same with large products by oneDNN, in loops too."""
    nodes = (map_bodies(node, use_onednn) for node in graph.nodes)
    return Graph(graph.inputs, tuple(map(_choose, nodes)), graph.outputs)


def _choose(node: Node) -> Node:
    if not isinstance(node.op, Einsum | EinsumAdd | EinsumInto):
        return node
    if any(value.type.dtype is not DType.float32 for value in node.inputs):
        return node
    left, right, result = Einsum(node.op.equation).terms
    sizes = dict(
        zip(left + right, node.inputs[0].type.shape + node.inputs[1].type.shape, strict=True)
    )
    rows = math.prod(sizes[c] for c in left if c not in right)
    columns = math.prod(sizes[c] for c in right if c not in left)
    is_batched = any(c in left and c in right for c in result)
    is_large = math.prod(sizes.values()) >= LEAST_PRODUCTS and min(rows, columns) >= LEAST_ROWS
    return replace(node, op=OneDnnProduct(node.op)) if is_large and not is_batched else node
