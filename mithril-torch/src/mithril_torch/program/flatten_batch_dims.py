"""Flattens leading dimensions: ops that work row by row compute on matrices.

Linear layers, norms and elementwise ops treat [batch, sequence, width] as rows of width numbers.
With each of them on matrices, tensors are reshaped only next to other ops, such as attention, and
once for all uses: on small models a view costs as much as an op.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mithril.spi import Graph, Node, Op, Shape, Value, map_bodies
from mithril.spi.ops import (
    AllReduce,
    Einsum,
    Elementwise,
    LayerNorm,
    LayerNormGradient,
    Movement,
    Reshape,
    RmsNorm,
    RmsNormGradient,
    Sum,
)

from mithril_torch.program.fusing import EinsumAdd

_NORMS = (LayerNorm, LayerNormGradient, RmsNorm, RmsNormGradient)


def flatten_batch_dims(graph: Graph) -> Graph:
    """Return a graph that computes the same on matrices where it can, in loops too."""
    return _Rewriter(graph).rewrite()


class _Rewriter:
    """Goes through a graph; knows in which shapes the values are there already."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[Node] = []
        self._views: dict[tuple[Value, Shape], Value] = {}
        self._sources: dict[Value, Value] = {}  # what a value is a view of
        self._strided: set[Value] = set()  # whose elements need not lie in order: rows are copies

    def rewrite(self) -> Graph:
        """Return the graph without the views that nobody needs any more."""
        for node in self._graph.nodes:
            self._visit(node)
        needed, kept = set(self._graph.outputs.values()), []
        for node in reversed(self._nodes):
            if not isinstance(node.op, Reshape) or node.outputs[0] in needed:
                needed.update(node.inputs)
                kept.append(node)
        return Graph(self._graph.inputs, tuple(reversed(kept)), self._graph.outputs)

    def _visit(self, node: Node) -> None:
        op, inputs = node.op, node.inputs
        if isinstance(op, Reshape):
            self._record_reshape(node)
        elif isinstance(op, Einsum | EinsumAdd):
            self._flatten_product(node, op)
        elif isinstance(op, _NORMS) and inputs[0].type.rank > 2:
            leading = inputs[0].type.rank - 1
            self._apply_to_rows(node, op, lambda x: x.type.rank >= leading)
        elif isinstance(op, Sum) and self._is_over_rows(op, inputs[0]):
            self._apply_to_rows(node, replace(op, axes=(0,)), lambda x: True)
        elif self._is_pointwise(node):
            shape = node.outputs[0].type.shape
            self._apply_to_rows(node, op, lambda x: x.type.shape == shape)
        else:
            self._nodes.append(map_bodies(node, flatten_batch_dims))
        if isinstance(op, Movement) and not isinstance(op, Reshape):
            self._strided.update(node.outputs)

    # ---------------------------------------------------------------- what can be done on rows

    def _flatten_product(self, node: Node, op: Any) -> None:
        """A linear layer, or the gradient of its weight."""
        left, right, result = Einsum(op.equation).terms
        leading, last = left[:-1], left[-1:]
        row = leading[:1]
        if len(leading) < 2:
            self._nodes.append(node)
        elif result[:-1] == leading and sorted(right) == sorted(last + result[-1]):
            made = replace(op, equation=f"{row}{last},{right}->{row}{result[-1]}")
            self._apply_to_rows(node, made, lambda x: x is node.inputs[0])
        elif right[:-1] == leading and sorted(result) == sorted(last + right[-1]):
            made = replace(op, equation=f"{row}{last},{row}{right[-1]}->{result}")
            self._apply_to_rows(node, made, lambda x: True)
        else:
            self._nodes.append(node)

    def _is_over_rows(self, op: Sum, x: Value) -> bool:
        leading = x.type.rank - 1
        is_plain = leading > 1 and x not in self._strided and not op.keepdims
        return is_plain and sorted(op.axes) == list(range(leading))

    def _is_pointwise(self, node: Node) -> bool:
        """Whether it works element by element, on something that is there as rows."""
        if isinstance(node.op, AllReduce):
            return len(node.inputs) == 1 and self._has_rows(node.inputs[0])
        shape = node.outputs[0].type.shape
        whole = [x for x in node.inputs if x.type.rank > 1]
        return (
            isinstance(node.op, Elementwise)
            and any(map(self._has_rows, whole))
            and all(x.type.shape == shape for x in whole)
            and not self._strided.intersection(whole)
        )

    def _has_rows(self, x: Value) -> bool:
        return x.type.rank > 2 and (x, _flatten_shape(x.type.shape)) in self._views

    # ---------------------------------------------------------------- writing it so

    def _apply_to_rows(self, node: Node, op: Op, is_tensor: Callable[[Value], bool]) -> None:
        """Apply an op to operands as rows; those that are no tensors stay as they are.

        Args:
            node: where the op stands.
            op: what is applied.
            is_tensor: tells which operands have leading dimensions to join.
        """
        whole = max(x.type.rank for x in node.inputs if is_tensor(x))
        inputs = [
            self._reshape_to(node, x, _merge_leading(x.type.shape, whole - 1))
            if is_tensor(x)
            else x
            for x in node.inputs
        ]
        types = op.infer([x.type for x in inputs])
        outputs = [
            old if old.type == type else Value(type, old.name)
            for old, type in zip(node.outputs, types, strict=True)
        ]
        self._nodes.append(replace(node, op=op, inputs=tuple(inputs), outputs=tuple(outputs)))
        for old, new in zip(node.outputs, outputs, strict=True):
            if old is not new:
                self._views[old, new.type.shape] = new
                self._add_view(node, new, old)

    def _record_reshape(self, node: Node) -> None:
        source = self._sources.get(node.inputs[0], node.inputs[0])
        self._add_view(node, source, node.outputs[0])
        self._views[node.outputs[0], source.type.shape] = source

    def _reshape_to(self, node: Node, x: Value, shape: Shape) -> Value:
        """Return a value in another shape, made here if it is not there yet."""
        if x.type.shape == shape:
            return x
        source = self._sources.get(x, x)
        if source.type.shape == shape:
            return source
        found = self._views.get((x, shape))
        if found is None:
            found = Value(x.type.with_shape(shape), x.name)
            self._add_view(node, source, found)
            self._views[x, shape] = found
        return found

    def _add_view(self, node: Node, source: Value, view: Value) -> None:
        op = Reshape(view.type.shape)
        self._nodes.append(replace(node, op=op, inputs=(source,), outputs=(view,), cause=None))
        self._sources[view] = source


def _merge_leading(shape: Shape, count: int) -> Shape:
    """Return a shape with its first dimensions made one."""
    return (math.prod(shape[:count]), *shape[count:])


def _flatten_shape(shape: Shape) -> Shape:
    return _merge_leading(shape, len(shape) - 1)
