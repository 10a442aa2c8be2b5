"""The one class of kernel tables: registration, tables over others, namespaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from mithril import ops
from mithril.engine.kernels import Kernel, KernelTable, on_namespace

from tests.engine.programs import f32


def table_of_two() -> KernelTable[Kernel]:
    table: KernelTable[Kernel] = KernelTable()

    @table.register(ops.Max, ops.Min)
    def extreme(op: ops.Reduction, types: Any) -> Any:
        return lambda x: (op.name, len(types), x)

    return table


def test_a_factory_serves_several_ops_and_sees_op_and_types() -> None:
    table = table_of_two()
    assert list(table) == ["max", "min"]
    assert table["min"](ops.Min((0,), False), [f32(2)])(7) == ("min", 1, 7)


def test_what_is_the_same_for_all_types_is_given_as_it_is() -> None:
    table: KernelTable[Kernel] = KernelTable()
    table.register_same({ops.Tanh: np.tanh, ops.Exp: np.exp})
    assert table["exp"](ops.Exp(), [f32(2)]) is np.exp
    assert table["tanh"](ops.Tanh(), []) is np.tanh


def test_a_table_over_another_has_its_own_first_and_sees_what_comes_later() -> None:
    base = table_of_two()
    over: KernelTable[Kernel] = KernelTable(base)
    over.register_same({ops.Min: min, ops.Exp: np.exp})
    base.register_same({ops.Tanh: np.tanh})
    assert list(over) == ["min", "exp", "max", "tanh"]
    assert len(over) == 4
    assert over["min"](ops.Min((0,), False), []) is min
    assert over["max"] is base["max"]
    assert base["min"](ops.Min((0,), False), [])(1) == ("min", 0, 1)
    assert "sin" not in over


def test_kernels_of_a_namespace_are_bound_to_it() -> None:
    table: KernelTable[Any] = KernelTable()

    @table.register(ops.Exp)
    def exp(op: ops.Exp, types: Any, xp: Any) -> Any:
        return xp.exp

    bound = on_namespace(table, SimpleNamespace(exp=abs))  # type: ignore[arg-type]
    assert bound["exp"](ops.Exp(), [f32(2)]) is abs
