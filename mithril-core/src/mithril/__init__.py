"""Mithril: write a model once, say once how it is split over a device mesh, run it anywhere.

Public names are resolved when they are first used, so `import mithril` is fast and imports no
framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mithril.backends import JaxBackend, MLXBackend, NumpyBackend, TorchBackend
    from mithril.errors import (
        BackendError,
        CheckpointError,
        GraphError,
        MeshError,
        MithrilError,
        OptionError,
        PlanError,
        ShapeError,
        ShardingError,
    )
    from mithril.mesh import Mesh, P, PartitionSpec, Sharding
    from mithril.models import (
        Add,
        Constant,
        Conv2d,
        CrossEntropy,
        Dropout,
        Embedding,
        FeedForward,
        Flatten,
        Gelu,
        LayerNorm,
        Linear,
        MaxPool2d,
        MeanSquaredError,
        Model,
        MoE,
        MultiHeadAttention,
        Normal,
        Pipeline,
        PositionalEncoding,
        Relu,
        Repeat,
        Uniform,
        is_inference,
        layer,
        parameter,
        seed,
    )
    from mithril.ops.custom import define_op
    from mithril.options import Precision
    from mithril.runtime import Array, Backend, CompiledModel, TensorSpec, compile, open_backend

_HOMES = {
    "mithril.backends": ("JaxBackend", "MLXBackend", "NumpyBackend", "TorchBackend"),
    "mithril.errors": (
        "BackendError", "CheckpointError", "GraphError", "MeshError", "MithrilError",
        "OptionError", "PlanError", "ShapeError", "ShardingError",
    ),
    "mithril.mesh": ("Mesh", "P", "PartitionSpec", "Sharding"),
    "mithril.models": (
        "Add", "Constant", "Conv2d", "CrossEntropy", "Dropout", "Embedding", "FeedForward",
        "Flatten", "Gelu", "LayerNorm", "Linear", "MaxPool2d", "MeanSquaredError", "MoE", "Model",
        "MultiHeadAttention", "Normal", "Pipeline", "PositionalEncoding", "Relu", "Repeat",
        "Uniform", "is_inference", "layer", "parameter", "seed",
    ),
    "mithril.ops.custom": ("define_op",),
    "mithril.options": ("Precision",),
    "mithril.runtime": (
        "Array", "Backend", "CompiledModel", "TensorSpec", "compile", "open_backend",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Add", "Array", "Backend", "BackendError", "CheckpointError", "CompiledModel", "Constant",
    "Conv2d", "CrossEntropy", "Dropout", "Embedding", "FeedForward", "Flatten", "Gelu",
    "GraphError", "JaxBackend", "LayerNorm", "Linear", "MLXBackend", "MaxPool2d",
    "MeanSquaredError", "Mesh", "MeshError", "MithrilError", "MoE", "Model", "MultiHeadAttention",
    "Normal", "NumpyBackend", "OptionError", "P", "PartitionSpec", "Pipeline", "PlanError",
    "PositionalEncoding", "Precision", "Relu", "Repeat", "ShapeError", "Sharding", "ShardingError",
    "TensorSpec", "TorchBackend", "Uniform", "__version__", "compile", "define_op", "is_inference",
    "layer", "open_backend", "parameter", "seed",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("mithril-core")
    home = _HOME_OF.get(name)
    if home is None:
        from mithril.errors import nearest

        raise AttributeError(f"mithril has no '{name}'{nearest(name, __all__)}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
