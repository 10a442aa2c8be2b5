"""All ops, and functions that apply them to traced tensors and concrete arrays alike.

Importing this package fills the registry. The functions bear the names of NumPy and the Python
array API standard; `mithril.models` and a backend's eager functions are built on them. In their
examples `backend` is `ml.NumpyBackend()`.
"""

from mithril.ir.constant import Constant as Constant
from mithril.ops.activation import *
from mithril.ops.all_gather_attention import *
from mithril.ops.along import *
from mithril.ops.arg_reduce import *
from mithril.ops.arithmetic import *
from mithril.ops.arrange import *
from mithril.ops.attention import *
from mithril.ops.batch_norm import *
from mithril.ops.choice import *
from mithril.ops.collective import *
from mithril.ops.composed import *
from mithril.ops.constrain import *
from mithril.ops.context import *
from mithril.ops.control import *
from mithril.ops.conv import *
from mithril.ops.dynamic_slicing import *
from mithril.ops.elementwise import *
from mithril.ops.equations import *
from mithril.ops.functions import *
from mithril.ops.group_norm import *
from mithril.ops.grouped import *
from mithril.ops.host import *
from mithril.ops.index import *
from mithril.ops.integer import *
from mithril.ops.inverse_trigonometric import *
from mithril.ops.linalg import *
from mithril.ops.logarithms import *
from mithril.ops.loss import *
from mithril.ops.matrix import *
from mithril.ops.matrix_functions import *
from mithril.ops.moe import *
from mithril.ops.nn import *
from mithril.ops.normalization import *
from mithril.ops.numbers import *
from mithril.ops.optimizer import *
from mithril.ops.order import *
from mithril.ops.order_functions import *
from mithril.ops.pool import *
from mithril.ops.position import *
from mithril.ops.random import *
from mithril.ops.recurrent import *
from mithril.ops.reduce import *
from mithril.ops.ring import *
from mithril.ops.rounding import *
from mithril.ops.running import *
from mithril.ops.shape import *
from mithril.ops.slicing import *
from mithril.ops.ulysses import *
from mithril.ops.variance import *
