"""The functions that written programs call, on top of PyTorch.

Only PyTorch and the standard library are imported here: workers start fast, and the source of
these functions goes into files that run without Mithril. A function here uses `torch`, `dist`
(`torch.distributed`), `aten` (`torch.ops.aten`), `math`, other functions and classes of this
package, and constants in capitals that are plain literals.
"""

from __future__ import annotations

import math

import torch

from mithril_torch.program.runtime_library.attention import (
    attention,
    attention_gradient,
)
from mithril_torch.program.runtime_library.collectives import (
    all_gather,
    all_gather_now,
    all_reduce,
    all_reduce_now,
    all_to_all,
    all_to_all_now,
    permute,
    permute_now,
    reduce_scatter,
    reduce_scatter_now,
)
from mithril_torch.program.runtime_library.convolution import (
    convolution_16,
    convolution_backward_16,
    images,
)
from mithril_torch.program.runtime_library.grouped import grouped_matmul, grouped_outer
from mithril_torch.program.runtime_library.groups import axis_index, make_group
from mithril_torch.program.runtime_library.index import (
    scatter_add,
    scatter_along,
    take,
    take_along,
    take_part,
    top_k,
)
from mithril_torch.program.runtime_library.loss import (
    cross_entropy,
    cross_entropy_gradient,
)
from mithril_torch.program.runtime_library.moe import moe_combine, moe_dispatch
from mithril_torch.program.runtime_library.movement import keep_first, spread, take_shard
from mithril_torch.program.runtime_library.normalization import (
    layer_norm,
    layer_norm_gradient,
    rms_norm,
    rms_norm_gradient,
)
from mithril_torch.program.runtime_library.numbers import (
    choose,
    sign,
    whole_floor_divide,
    whole_remainder,
)
from mithril_torch.program.runtime_library.point_to_point import PendingAssembly, receive, send
from mithril_torch.program.runtime_library.pool import (
    avg_pool,
    avg_pool_gradient,
    max_pool,
    max_pool_gradient,
)
from mithril_torch.program.runtime_library.position import (
    rope,
)
from mithril_torch.program.runtime_library.precision import float32_products
from mithril_torch.program.runtime_library.random import random_bits
from mithril_torch.program.runtime_library.windows import (
    convolve_windows,
    convolve_windows_input_gradient,
    convolve_windows_weight_gradient,
    max_windows,
    max_windows_gradient,
    mean_windows,
    mean_windows_gradient,
    pad,
)

aten = torch.ops.aten
record_function = torch.profiler.record_function

__all__ = [
    "PendingAssembly", "all_gather", "all_gather_now", "all_reduce", "all_reduce_now",
    "all_to_all", "all_to_all_now", "aten", "attention", "attention_gradient", "avg_pool",
    "avg_pool_gradient", "axis_index", "choose", "convolution_16", "convolution_backward_16",
    "convolve_windows", "convolve_windows_input_gradient", "convolve_windows_weight_gradient",
    "cross_entropy", "cross_entropy_gradient", "float32_products", "grouped_matmul",
    "grouped_outer", "images", "keep_first", "layer_norm", "layer_norm_gradient", "make_group",
    "math", "max_pool", "max_pool_gradient", "max_windows", "max_windows_gradient", "mean_windows",
    "mean_windows_gradient", "moe_combine", "moe_dispatch", "pad", "permute", "permute_now",
    "random_bits", "receive", "record_function", "reduce_scatter", "reduce_scatter_now",
    "rms_norm", "rms_norm_gradient", "rope", "scatter_add", "scatter_along", "send", "sign",
    "spread", "take", "take_along", "take_part", "take_shard", "top_k", "torch",
    "whole_floor_divide", "whole_remainder",
]  # fmt: skip
