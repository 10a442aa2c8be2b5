"""The shared kernel of the op that only says when something happens."""

from __future__ import annotations

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace
from mithril.engine.standard.table import kernel


@kernel(ops.After)
def after(op: ops.After, types: Types, xp: ArrayNamespace) -> Run:
    """The first operand: statements run in order as it is."""
    return lambda x, dependency: x
