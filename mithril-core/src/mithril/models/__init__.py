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
    MultiHeadAttention,
    PositionalEncoding,
    Relu,
    Repeat,
)
from mithril.models.model import Model
from mithril.models.tracing import is_inference, layer_path, parameter, section, seed
from mithril.models.unavailable import MoE, Pipeline

__all__ = [
    "Add", "Check", "Component", "Composition", "Connected", "Constant", "Conv2d", "CrossEntropy",
    "Dropout", "Embedding", "FeedForward", "Flatten", "Gelu", "Initializer", "Layer", "LayerNorm",
    "Linear", "MaxPool2d", "MeanSquaredError", "MoE", "Model", "MultiHeadAttention", "Normal",
    "Pipeline", "PositionalEncoding", "Relu", "Repeat", "Uniform", "is_inference", "layer",
    "layer_path", "parameter", "section", "seed",
]  # fmt: skip
