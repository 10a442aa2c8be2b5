"""Every op that is registered is complete and has a case."""

from __future__ import annotations

import inspect

import mithril.ops  # noqa: F401 - fills the registry
import pytest
from mithril.engine.kernels import KERNELS
from mithril.ir import Op, registry
from mithril.ops.attention import Attention, AttentionGradient
from mithril.testing.cases import CASES, Case
from mithril.testing.evaluate import type_of

OPS = sorted(registry().items())
# These appear only in local programs: never differentiated, never partitioned.
LOCAL = {"axis_index", "keep_first", "take_shard", "wait"}
# A graph, or a home of the user's choice: see tests/transform/test_repeat.py and tests/functional.
CONTROL = {"checkpoint", "constrain", "repeat"}
# It says where the sum of a gradient is: see tests/compression.
MARKS = {"mark_gradient"}
# Attention that says what becomes of a split sequence: see tests/partition/test_context.py.
ATTENTION = (Attention, AttentionGradient)
CONTEXT = {n for n, c in OPS if issubclass(c, ATTENTION) and c not in ATTENTION}
# What they make is in other memory, and is brought back: see tests/offload.
HOST = {"from_host", "to_host"}
APART = LOCAL | CONTROL | CONTEXT | HOST | MARKS
GLOBAL_OPS = [(n, c) for n, c in OPS if not c.is_collective and n not in APART]


def test_every_op_is_complete() -> None:
    assert len(GLOBAL_OPS) > 100
    for name, op in GLOBAL_OPS:
        for method in ("infer", "gradient", "rule"):
            # One with an expansion may leave its gradient to that: see transform/differentiate.py.
            ways = (method, "expand") if method == "gradient" else (method,)
            has_one = any(getattr(op, way) is not getattr(Op, way) for way in ways)
            assert has_one, f"{name} has no {method}"
        assert name in KERNELS


def test_every_op_has_a_case() -> None:
    assert {name for name, _ in GLOBAL_OPS} <= {case.op.name for case in CASES}


def test_every_op_is_documented_by_a_sentence() -> None:
    for name, op in OPS:
        assert "__doc__" in vars(op), name
        first = inspect.cleandoc(op.__doc__ or "").split("\n\n", maxsplit=1)[0]
        assert first.endswith("."), first
        assert not first.startswith(op.__name__ + "("), f"{name}: dataclass wrote the docstring"


@pytest.mark.parametrize("name", sorted({case.op.name for case in CASES}))
def test_cost_counts_at_least_the_results(name: str) -> None:
    for case in CASES:
        if case.op.name == name:
            check_cost(case)


def check_cost(case: Case) -> None:
    types = [type_of(array) for array in case.arrays]
    outputs = case.op.infer(types)
    cost = case.op.cost(types, outputs)
    assert isinstance(cost.flops, int)
    assert isinstance(cost.bytes, int)
    assert cost.flops >= 0
    assert cost.bytes >= sum(t.nbytes for t in outputs)


def test_attributes_print_and_compare() -> None:
    for case in CASES:
        again = type(case.op)(**case.op.attributes)
        assert str(case.op).startswith(case.op.name)
        assert case.op == again
        assert len({case.op, again}) == 1
