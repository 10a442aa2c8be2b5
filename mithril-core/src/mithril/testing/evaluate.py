"""A small evaluator: ops and graphs on NumPy arrays, through the kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mithril.engine.kernels import KERNELS
from mithril.ir import Builder, Graph, Op, Repeat
from mithril.testing.compare import describe_difference
from mithril.transform import cotangent_name, differentiate, gradient_of
from mithril.types import DType, TensorType, as_dtype


def type_of(array: np.ndarray) -> TensorType:
    """Return the type of an array."""
    return TensorType(array.shape, as_dtype(array.dtype))


def apply(op: Op, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Run an op; its results must have the types it infers, and operands stay as they are."""
    types = [type_of(array) for array in arrays]
    operands = [_frozen(array) for array in arrays]
    found = KERNELS[op.name](op, types, np)(*operands)
    results = tuple(map(np.asarray, found if isinstance(found, tuple) else (found,)))
    assert [type_of(result) for result in results] == list(op.infer(types)), op
    return results


def evaluate(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a graph."""
    known = {value: values[value.name] for value in graph.inputs}
    for node in graph.nodes:
        arrays = (known[value] for value in node.inputs)
        if isinstance(node.op, Repeat):
            results = _iterate(node.op, *arrays)
        else:
            results = apply(node.op, *arrays)
        known.update(zip(node.outputs, results, strict=True))
    return {name: known[value] for name, value in graph.outputs.items()}


def _iterate(op: Repeat, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Run a loop."""
    kept = len(arrays) - op.stacked
    carries, captured, slices = arrays[: op.carried], arrays[op.carried : kept], arrays[kept:]
    names = [value.name for value in op.body.inputs]
    stacks: dict[int, tuple[np.ndarray, ...]] = {}
    for step in range(op.count)[:: -1 if op.reverse else 1]:
        operands = (*carries, *captured, *(some[step] for some in slices))
        made = tuple(evaluate(op.body, dict(zip(names, operands, strict=True))).values())
        carries, stacks[step] = made[: op.carried], made[op.carried :]
    rows = (stacks[step] for step in range(op.count))
    return (*carries, *map(np.stack, zip(*rows, strict=True)))


def graph_of(op: Op, types: list[TensorType]) -> Graph:
    """Return the graph of one op, with inputs x0… and results y0…."""
    builder = Builder()
    inputs = [builder.input(t, f"x{i}") for i, t in enumerate(types)]
    return builder.build({f"y{i}": y for i, y in enumerate(builder.apply(op, *inputs))})


def inputs_of(arrays: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """Return arrays under the names `graph_of` gives its inputs."""
    return {f"x{i}": array for i, array in enumerate(arrays)}


def differentiable(graph: Graph) -> tuple[list[str], list[str]]:
    """Return the names of the results gradients enter by, and of the float inputs."""
    outputs = [name for name, value in graph.outputs.items() if value.type.dtype.is_float]
    inputs = [value.name for value in graph.inputs if value.type.dtype.is_float]
    return outputs, inputs


def seeds(graph: Graph) -> dict[str, np.ndarray]:
    """Return random gradients of a graph's differentiable results."""
    rng = np.random.default_rng(7)
    types = {name: graph.outputs[name].type for name in differentiable(graph)[0]}
    return {n: rng.standard_normal(t.shape).astype(t.dtype.numpy) for n, t in types.items()}


def gradients(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the gradients of a graph's float inputs, with `seeds` as gradients of its results."""
    outputs, inputs = differentiable(graph)
    joint = differentiate(graph, outputs, inputs)
    given = {cotangent_name(name): seed for name, seed in seeds(graph).items()}
    found = evaluate(joint, {**values, **given})
    return {name: found[gradient_of(name)] for name in inputs}


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: DType | None = None) -> None:
    """Compare within the tolerance of a dtype, by default that of what is found; others exactly."""
    dtype = dtype or as_dtype(found.dtype)
    if as_dtype(found.dtype).is_float and as_dtype(expected.dtype).is_float:
        found, expected = found.astype(np.float64), expected.astype(np.float64)
    difference = describe_difference(found, expected, dtype)
    if difference:
        raise AssertionError(difference)


def coarsest(*arrays: np.ndarray) -> DType:
    """Return the float dtype with the fewest bits, or the dtype of the last array."""
    dtypes = [as_dtype(array.dtype) for array in arrays]
    return min((d for d in dtypes if d.is_float), key=lambda d: d.itemsize, default=dtypes[-1])


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array).view()
    array.flags.writeable = False
    return array
