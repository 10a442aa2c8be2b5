"""The functions that written programs call, on top of PyTorch.

Only PyTorch and the standard library are imported here: workers start fast, and the source of
these functions goes into files that run without Mithril. A function here uses `torch`, `dist`
(`torch.distributed`), `aten` (`torch.ops.aten`), `math`, other functions and classes of this
package, and constants in capitals that are plain literals.
"""

from __future__ import annotations

import math

import torch

from mithril_torch.prelude.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    permute,
    reduce_scatter,
)
from mithril_torch.prelude.functional import (
    all_gather_now,
    all_reduce_now,
    all_to_all_now,
    permute_now,
    reduce_scatter_now,
)
from mithril_torch.prelude.groups import axis_index, make_group

aten = torch.ops.aten

__all__ = [
    "all_gather", "all_gather_now", "all_reduce", "all_reduce_now", "all_to_all", "all_to_all_now",
    "aten", "axis_index", "make_group", "math", "permute", "permute_now", "reduce_scatter",
    "reduce_scatter_now", "torch",
]  # fmt: skip
