"""The layers Mithril comes with, each a short function over tensors."""

from mithril.models.layers.activation import Dropout, Gelu, Relu
from mithril.models.layers.attention import MultiHeadAttention
from mithril.models.layers.combine import Add, Flatten
from mithril.models.layers.convolution import Conv2d, MaxPool2d
from mithril.models.layers.embedding import Embedding, PositionalEncoding
from mithril.models.layers.linear import FeedForward, Linear
from mithril.models.layers.loss import CrossEntropy, MeanSquaredError
from mithril.models.layers.normalization import LayerNorm
from mithril.models.layers.repeat import Repeat

__all__ = [
    "Add", "Conv2d", "CrossEntropy", "Dropout", "Embedding", "FeedForward", "Flatten", "Gelu",
    "LayerNorm", "Linear", "MaxPool2d", "MeanSquaredError", "MultiHeadAttention",
    "PositionalEncoding", "Relu", "Repeat",
]  # fmt: skip
