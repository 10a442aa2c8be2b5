"""Mithril: write a model once, say once how it is split over a device mesh, run it anywhere.

Public names are resolved when they are first used, so `import mithril` is fast and imports no
framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mithril.backends import JaxBackend, MLXBackend, NumpyBackend, TorchBackend
    from mithril.checkpoints import load, save
    from mithril.cost import Hardware
    from mithril.errors import (
        BackendError,
        CheckpointError,
        FaultyBackendError,
        GraphError,
        MeshError,
        MithrilError,
        MithrilWarning,
        OptionError,
        PlanError,
        ShapeError,
        ShardingError,
        UnknownNameError,
    )
    from mithril.mesh import Mesh, P, PartitionSpec, Sharding
    from mithril.models import *
    from mithril.ops.custom import define_op
    from mithril.ops.own_kernel import define_kernel, remove_kernel
    from mithril.options import GradientCompression, PipelineOptions, Precision
    from mithril.runtime import (
        Array,
        Backend,
        CompiledModel,
        Metrics,
        Profile,
        Strategy,
        TensorSpec,
        TrainState,
        TrainStep,
        compile,
        is_main,
        open_backend,
        open_plugin,
        process_count,
        process_index,
        profile,
        train_step,
    )
    from mithril.runtime.functional import (
        Function,
        block_until_ready,
        checkpoint,
        constrain,
        grad,
        jit,
        reshard,
        scan,
        value_and_grad,
    )
    from mithril.training import History, train
    from mithril.tuning import auto_tune

_HOMES = {
    "mithril.backends": ("JaxBackend", "MLXBackend", "NumpyBackend", "TorchBackend"),
    "mithril.checkpoints": ("load", "save"),
    "mithril.cost": ("Hardware",),
    "mithril.errors": (
        "BackendError", "CheckpointError", "FaultyBackendError", "GraphError", "MeshError",
        "MithrilError", "MithrilWarning", "OptionError", "PlanError", "ShapeError",
        "ShardingError", "UnknownNameError",
    ),
    "mithril.mesh": ("Mesh", "P", "PartitionSpec", "Sharding"),
    "mithril.ops.custom": ("define_op",),
    "mithril.ops.own_kernel": ("define_kernel", "remove_kernel"),
    "mithril.options": ("GradientCompression", "PipelineOptions", "Precision"),
    "mithril.runtime": (
        "Array", "Backend", "CompiledModel", "Metrics", "Profile", "Strategy", "TensorSpec",
        "TrainState", "TrainStep", "compile", "is_main", "open_backend", "open_plugin",
        "process_count", "process_index", "profile", "train_step",
    ),
    "mithril.runtime.functional": (
        "Function", "block_until_ready", "checkpoint", "constrain", "grad", "jit", "reshard",
        "scan", "value_and_grad",
    ),
    "mithril.training": ("History", "train"),
    "mithril.tuning": ("auto_tune",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
"""The module of each public name; `mithril.models` for layers and all that is not said here."""

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "Add",
    "Array", "AvgPool1d", "AvgPool2d", "Backend", "BackendError", "BatchNorm", "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits", "Check", "CheckpointError", "CompiledModel", "Concat",
    "Constant", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "CosineLoss",
    "CrossEntropy", "Divide", "Dropout", "Elu", "Embedding", "FaultyBackendError", "FeedForward",
    "Flatten", "Function", "GRU", "Gelu", "GlobalAvgPool", "GlobalMaxPool", "Glu",
    "GradientCompression", "GraphError", "GroupNorm", "HardSwish", "Hardware", "HingeLoss",
    "History", "HuberLoss", "Initializer", "InstanceNorm", "JaxBackend", "KLDivergence",
    "Kaiming", "L1Loss", "LSTM", "Layer", "LayerNorm",
    "LeakyRelu", "Linear", "MLXBackend", "MatMul", "MaxPool1d", "MaxPool2d", "Mean",
    "MeanSquaredError", "Mesh", "MeshError", "Metrics", "Mish", "MithrilError", "MithrilWarning",
    "MoE", "Model", "MultiHeadAttention", "Multiply", "Normal", "NumpyBackend", "Ones",
    "OptionError", "Orthogonal", "P", "PartitionSpec", "Pipeline", "PipelineOptions", "PlanError",
    "PositionalEncoding", "Precision", "Profile", "QuantileLoss", "RMSNorm", "Relu", "Repeat",
    "Reshape", "ShapeError", "Sharding", "ShardingError", "Sigmoid", "Silu", "Softmax", "Softplus",
    "Split", "Strategy", "Subtract", "Tanh", "TensorSpec", "TorchBackend", "TrainState",
    "TrainStep", "Transpose", "TruncatedNormal", "Uniform", "UnknownNameError", "Xavier", "Zeros",
    "__version__", "auto_tune", "block_until_ready", "checkpoint", "compile", "constrain", "data",
    "define_kernel", "define_op", "grad", "is_inference", "is_main", "jit", "layer", "layer_path",
    "load", "numpy", "open_backend", "open_plugin", "optim", "parameter", "process_count",
    "process_index", "profile", "remove_kernel", "reshard", "save", "scan", "section", "seed",
    "train", "train_step", "value_and_grad", "visualize",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("mithril-core")
    if name in ("data", "numpy", "optim", "visualize"):
        return import_module(f"mithril.{name}")
    if name.endswith("Backend") and name not in __all__:
        return getattr(import_module("mithril.backends"), name)
    if name not in __all__:
        from mithril.errors import nearest

        remedy = nearest(name, __all__) or "; dir(mithril) lists what there is"
        raise AttributeError(f"mithril has no '{name}'{remedy}")
    value = getattr(import_module(_HOME_OF.get(name, "mithril.models")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from mithril.plugins.naming import list_openers

    return sorted({*globals(), *__all__, *list_openers()})
