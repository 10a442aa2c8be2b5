"""The layers Mithril comes with, each a short function over tensors."""

from mithril.models.layers.activation import Dropout, Gelu, Relu, Sigmoid, Silu, Softmax, Tanh
from mithril.models.layers.attention import MultiHeadAttention
from mithril.models.layers.combine import (
    Add,
    Concat,
    Divide,
    Flatten,
    MatMul,
    Mean,
    Multiply,
    Reshape,
    Split,
    Subtract,
    Transpose,
)
from mithril.models.layers.convolution import AvgPool2d, Conv1d, Conv2d, MaxPool2d
from mithril.models.layers.embedding import Embedding, PositionalEncoding
from mithril.models.layers.linear import FeedForward, Linear
from mithril.models.layers.loss import CrossEntropy, MeanSquaredError
from mithril.models.layers.moe import MoE
from mithril.models.layers.normalization import BatchNorm, LayerNorm, RMSNorm
from mithril.models.layers.repeat import Repeat

__all__ = [
    "Add", "AvgPool2d", "BatchNorm", "Concat", "Conv1d", "Conv2d", "CrossEntropy", "Divide",
    "Dropout", "Embedding", "FeedForward", "Flatten", "Gelu", "LayerNorm", "Linear", "MatMul",
    "MaxPool2d", "Mean", "MeanSquaredError", "MoE", "MultiHeadAttention", "Multiply",
    "PositionalEncoding", "RMSNorm", "Relu", "Repeat", "Reshape", "Sigmoid", "Silu", "Softmax",
    "Split", "Subtract", "Tanh", "Transpose",
]  # fmt: skip
