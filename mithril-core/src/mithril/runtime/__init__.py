"""What a user holds: backends, arrays, compiled models, parameters."""

from mithril.runtime.array import Array, ArrayShard
from mithril.runtime.backend import Backend, open_backend
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.compiling import compile
from mithril.runtime.parameters import Parameters
from mithril.runtime.specification import TensorSpec

__all__ = [
    "Array", "ArrayShard", "Backend", "CompiledModel", "Parameters", "TensorSpec", "compile",
    "open_backend",
]  # fmt: skip
