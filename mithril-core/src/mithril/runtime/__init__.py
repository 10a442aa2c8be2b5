"""What a user holds: backends, arrays, compiled models, parameters."""

from mithril.runtime.array import Array, ArrayShard
from mithril.runtime.backend import Backend
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.compiling import compile
from mithril.runtime.opening import open_backend
from mithril.runtime.parameters import Parameters
from mithril.runtime.plugin import open_plugin
from mithril.runtime.processes import is_main, process_count, process_index
from mithril.runtime.profiling import Profile, profile
from mithril.runtime.specification import TensorSpec
from mithril.runtime.strategy import Strategy
from mithril.runtime.training import Metrics, TrainState, TrainStep, train_step

__all__ = [
    "Array", "ArrayShard", "Backend", "CompiledModel", "Metrics", "Parameters", "Profile",
    "Strategy", "TensorSpec", "TrainState", "TrainStep", "compile", "is_main", "open_backend",
    "open_plugin", "process_count", "process_index", "profile", "train_step",
]  # fmt: skip
