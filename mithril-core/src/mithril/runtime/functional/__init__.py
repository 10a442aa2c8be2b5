"""Functions of arrays: jit, gradients, checkpoints, and how values lie, on any backend."""

from mithril.runtime.functional.function import Function, jit
from mithril.runtime.functional.gradient import grad, value_and_grad
from mithril.runtime.functional.loops import scan
from mithril.runtime.functional.memory import checkpoint
from mithril.runtime.functional.placing import constrain, reshard

__all__ = [
    "Function", "checkpoint", "constrain", "grad", "jit", "reshard", "scan", "value_and_grad",
]  # fmt: skip
