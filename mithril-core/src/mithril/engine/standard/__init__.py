"""Kernels of all primitive ops, written once on the Python array API standard, for any library.

An engine on such a library takes `bind_namespace(xp)` as its table, runs it with
`LockstepExecutable`, and replaces what its library has faster. They are written to be right on any
library: NumPy has kernels of its own, `mithril.engine.kernels`, that are written to be fast. What
they ask of a library is `ArrayNamespace`.
"""

from mithril.engine.standard import (
    control,
    conv,
    dynamic_slicing,
    elementwise,
    grouped,
    index,
    linalg,
    matrix,
    moe,
    order,
    pool,
    random,
    reduce,
    shape,
    shard,
)
from mithril.engine.standard.namespace import EXTENSIONS, ArrayNamespace, dtype_in
from mithril.engine.standard.table import SHARED_KERNELS, bind_namespace

__all__ = [
    "EXTENSIONS", "SHARED_KERNELS", "ArrayNamespace", "bind_namespace", "control", "conv",
    "dtype_in", "dynamic_slicing", "elementwise", "grouped", "index", "linalg", "matrix", "moe",
    "order", "pool", "random", "reduce", "shape", "shard",
]  # fmt: skip
