"""Functions of arrays: jit, gradients, checkpoints, how values lie, waiting."""

from mithril.runtime.functional.function import Function, jit
from mithril.runtime.functional.gradient import grad, value_and_grad
from mithril.runtime.functional.loops import scan
from mithril.runtime.functional.memory import checkpoint
from mithril.runtime.functional.placing import block_until_ready, constrain, reshard

__all__ = [
    "Function", "block_until_ready", "checkpoint", "constrain", "grad", "jit", "reshard", "scan",
    "value_and_grad",
]  # fmt: skip
