"""Models: layers, how they are put together, and how they become a graph.

A layer is a short function over tensors; users write their own with `layer` and `parameter`.
"""

from mithril.models.component import Component as Component
from mithril.models.component import Connected as Connected
from mithril.models.composition import Composition as Composition
from mithril.models.definition import Check as Check
from mithril.models.initializers import Constant as Constant
from mithril.models.initializers import Initializer as Initializer
from mithril.models.initializers import Kaiming as Kaiming
from mithril.models.initializers import Normal as Normal
from mithril.models.initializers import Ones as Ones
from mithril.models.initializers import Orthogonal as Orthogonal
from mithril.models.initializers import TruncatedNormal as TruncatedNormal
from mithril.models.initializers import Uniform as Uniform
from mithril.models.initializers import Xavier as Xavier
from mithril.models.initializers import Zeros as Zeros
from mithril.models.layer import Layer as Layer
from mithril.models.layer import layer as layer
from mithril.models.layers.activation import *
from mithril.models.layers.attention import *
from mithril.models.layers.class_loss import *
from mithril.models.layers.combine import *
from mithril.models.layers.convolution import *
from mithril.models.layers.embedding import *
from mithril.models.layers.linear import *
from mithril.models.layers.loss import *
from mithril.models.layers.moe import *
from mithril.models.layers.normalization import *
from mithril.models.layers.pooling import *
from mithril.models.layers.recurrent import *
from mithril.models.layers.repeat import *
from mithril.models.model import Model as Model
from mithril.models.pipeline import Pipeline as Pipeline
from mithril.models.trace_context import is_inference as is_inference
from mithril.models.trace_context import layer_path as layer_path
from mithril.models.trace_context import parameter as parameter
from mithril.models.trace_context import section as section
from mithril.models.trace_context import seed as seed
