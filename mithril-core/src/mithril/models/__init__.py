"""Models: layers, how they are put together, and how they become a graph.

A layer is a short function over tensors; users write their own with `layer` and `parameter`.
"""

from mithril.models.component import Component, Connected
from mithril.models.composition import Composition
from mithril.models.definition import Check
from mithril.models.initializers import Constant, Initializer, Normal, Uniform
from mithril.models.layer import Layer, layer
from mithril.models.layers import (
    Add,
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv1d,
    Conv2d,
    CrossEntropy,
    Divide,
    Dropout,
    Embedding,
    FeedForward,
    Flatten,
    Gelu,
    LayerNorm,
    Linear,
    MatMul,
    MaxPool2d,
    Mean,
    MeanSquaredError,
    MoE,
    MultiHeadAttention,
    Multiply,
    PositionalEncoding,
    Relu,
    Repeat,
    Reshape,
    RMSNorm,
    Sigmoid,
    Silu,
    Softmax,
    Split,
    Subtract,
    Tanh,
    Transpose,
)
from mithril.models.model import Model
from mithril.models.pipeline import Pipeline
from mithril.models.trace_context import is_inference, layer_path, parameter, section, seed

__all__ = [
    "Add", "AvgPool2d", "BatchNorm", "Check", "Component", "Composition", "Concat", "Connected",
    "Constant", "Conv1d", "Conv2d", "CrossEntropy", "Divide", "Dropout", "Embedding", "FeedForward",
    "Flatten", "Gelu", "Initializer", "Layer", "LayerNorm", "Linear", "MatMul", "MaxPool2d", "Mean",
    "MeanSquaredError", "MoE", "Model", "MultiHeadAttention", "Multiply", "Normal", "Pipeline",
    "PositionalEncoding", "RMSNorm", "Relu", "Repeat", "Reshape", "Sigmoid", "Silu", "Softmax",
    "Split", "Subtract", "Tanh", "Transpose", "Uniform", "is_inference", "layer", "layer_path",
    "parameter", "section", "seed",
]  # fmt: skip
