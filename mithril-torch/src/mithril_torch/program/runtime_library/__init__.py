"""The functions that written programs call, on top of PyTorch.

Only PyTorch and the standard library are imported here: workers start fast, and the source of
these functions goes into files that run without Mithril. A function here uses `torch`, `dist`
(`torch.distributed`), `aten` (`torch.ops.aten`), `math`, other functions and classes of this
package, and constants in capitals that are plain literals.

A module says in `__all__` which of its functions programs call. Copies to the host arena, which is
the core's, are not among what files without Mithril have.
"""

from __future__ import annotations

import math

import torch

from mithril_torch.program.host_copies import fetch as fetch
from mithril_torch.program.host_copies import to_host as to_host
from mithril_torch.program.runtime_library.attention import *
from mithril_torch.program.runtime_library.channels import *
from mithril_torch.program.runtime_library.collectives import *
from mithril_torch.program.runtime_library.convolution import *
from mithril_torch.program.runtime_library.dynamic_slicing import *
from mithril_torch.program.runtime_library.fusions import *
from mithril_torch.program.runtime_library.gathers import *
from mithril_torch.program.runtime_library.grouped import *
from mithril_torch.program.runtime_library.groups import *
from mithril_torch.program.runtime_library.index import *
from mithril_torch.program.runtime_library.loss import *
from mithril_torch.program.runtime_library.matrix import *
from mithril_torch.program.runtime_library.memory import *
from mithril_torch.program.runtime_library.moe import *
from mithril_torch.program.runtime_library.movement import *
from mithril_torch.program.runtime_library.normalization import *
from mithril_torch.program.runtime_library.numbers import *
from mithril_torch.program.runtime_library.optimizer import *
from mithril_torch.program.runtime_library.point_to_point import *
from mithril_torch.program.runtime_library.pool import *
from mithril_torch.program.runtime_library.position import *
from mithril_torch.program.runtime_library.precision import *
from mithril_torch.program.runtime_library.product import *
from mithril_torch.program.runtime_library.random import *
from mithril_torch.program.runtime_library.recurrent import *
from mithril_torch.program.runtime_library.tracing import *
from mithril_torch.program.runtime_library.windows import *

aten = torch.ops.aten
record_function = torch.profiler.record_function

__all__ = [  # noqa: PLE0604 - a generator of strings
    "aten", "math", "record_function", "torch",
    *(n for n, x in globals().items() if getattr(x, "__module__", "").startswith(__name__)),
]  # fmt: skip
