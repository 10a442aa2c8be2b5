"""Runs a traced graph with numpy, to compare layers with plain formulas."""

from __future__ import annotations

import numpy as np
from mithril.engine.kernels import KERNELS
from mithril.models import Layer, Model
from mithril.models.trace import Traced, trace
from mithril.transform.expand import expand
from mithril.types import DType, TensorType, as_dtype


def types(**arrays) -> dict[str, TensorType]:
    return {name: TensorType(a.shape, as_dtype(a.dtype)) for name, a in arrays.items()}


def floats(*shape: int) -> TensorType:
    return TensorType(shape, DType.float32)


def integers(*shape: int) -> TensorType:
    return TensorType(shape, DType.int32)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def parameters(traced: Traced) -> dict[str, np.ndarray]:
    named = {value.name: value.type.shape for value in traced.graph.inputs}
    return {n: random(*named[n], seed=i + 1) for i, n in enumerate(traced.parameter_names)}


def run(model: Model | Layer, *, inference=False, seed=0, **inputs: np.ndarray):
    """Trace and run a model on random parameters; returns its outputs and those parameters."""
    traced = trace(model, types(**inputs), inference=inference)
    values = parameters(traced)
    fed = {**inputs, **values, "seed": np.asarray(seed, np.uint32)}
    graph = expand(traced.graph, KERNELS)
    known = {value: fed[value.name] for value in graph.inputs}
    for node in graph.nodes:
        kernel = KERNELS[node.op.name](node.op, [value.type for value in node.inputs], np)
        results = kernel(*(known[value] for value in node.inputs))
        results = results if isinstance(results, tuple | list) else (results,)
        known.update(zip(node.outputs, results, strict=True))
    return {name: known[value] for name, value in graph.outputs.items()}, values
