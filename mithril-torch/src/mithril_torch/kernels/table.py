"""The table of how ops are written in PyTorch, by op name.

An op is written as the text of one Python expression. Its operands stand in it as `{0}`, `{1}`, …;
it may name `torch`, `aten` (`torch.ops.aten`), `math`, `device` (where the program runs) and the
functions of `mithril_torch.program.runtime_library`. An op with several results is an expression of
a tuple. Whatever depends on attributes and shapes alone is worked out when the text is made.

An expression never writes into its operands. It may return a view of one, or an operand itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mithril.spi import KernelTable, Types

EmitExpression = Callable[[Any, Types], str]
EXPRESSIONS: KernelTable[EmitExpression] = KernelTable()
kernel, same = EXPRESSIONS.register, EXPRESSIONS.register_same
