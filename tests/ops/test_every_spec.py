"""Every op, in every way a 2 x 2 mesh may run it, gives what it gives on one device.

Brute force, on the rule and the op's local form alone: what an axis does (split a factor, or hold
summands of a linear group of operands) is enumerated from the rule for both axes, each device runs
the op on its parts, and the results are put together as the rule says.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from mithril import ops
from mithril.ir import Op, Rule, registry
from mithril.ops.definition import UserOp
from mithril.testing.cases import CASES, Case, floats, is_first_of_its_op

from tests.ops.sharded import Pick, check_picks, is_legal, picks
from tests.ops.test_registry import GLOBAL_OPS
from tests.ops.test_rules import rule_of
from tests.profiles import quick


def meshes(rule: Rule) -> list[tuple[Pick, Pick]]:
    """Return what the two axes of a 2 x 2 mesh may do together."""
    return [pair for pair in itertools.product(picks(rule), repeat=2) if is_legal(rule, pair)]


@quick(is_first_of_its_op)
@pytest.mark.parametrize("case", [c for c in CASES if meshes(rule_of(c))], ids=str)
def test_every_spec_on_a_mesh_of_2_by_2(case: Case) -> None:
    for chosen in meshes(rule_of(case)):
        try:
            check_picks(case.op, case.arrays, chosen)
        except AssertionError as error:
            raise AssertionError(f"{case.op} with axes {chosen}: {error}") from error


@pytest.mark.parametrize("case", [c for c in CASES if picks(rule_of(c))], ids=str)
def test_every_spec_on_two_devices(case: Case) -> None:
    for pick in picks(rule_of(case)):
        check_picks(case.op, case.arrays, [pick])


def test_every_op_that_can_be_split_is_split_on_both_axes() -> None:
    """The cases have sizes that let every op of the registry show what its rule allows."""
    split = Counter(case.op.name for case in CASES for _ in meshes(rule_of(case)))
    alone = {case.op.name for case in CASES if not rule_of(case).factors}
    whole = {c.op.name for c in CASES if not rule_of(c).splittable and not rule_of(c).linear}
    for name, op in GLOBAL_OPS:
        if not issubclass(op, UserOp) and name not in alone | whole:
            assert split[name], f"no case of {name} is split on both axes"
    assert len(split) > 50
    assert set(split) <= set(registry())


def test_one_factor_on_both_axes_is_among_them() -> None:
    same = [pair for case in CASES for pair in meshes(rule_of(case)) if pair[0] == pair[1]]
    assert any(isinstance(first, str) for first, _ in same)
    assert any(isinstance(first, tuple) for first, _ in same)


# ------------------------------------------------------------------ wrong rules are caught


def with_rule(op: Op, **fields: object) -> Op:
    """Return an op like another one, with something else in its rule."""

    @dataclass(frozen=True)
    class Wrong(type(op)):  # type: ignore[misc]
        name: ClassVar[str] = op.name

        def rule(self, inputs, outputs):  # type: ignore[no-untyped-def]
            return replace(super().rule(inputs, outputs), **fields)

    return Wrong(**op.attributes)


@pytest.mark.parametrize(
    ("op", "fields", "chosen"),
    [
        (ops.Max((0,), False), {"reductions": {}}, ("d0", "d0")),
        (ops.Max((0,), False), {"reductions": {}}, ("d0", "d1")),
        (ops.Max((0,), False), {"reductions": {}}, ("d1", "d0")),
        (ops.Relu(), {"linear": ((0,),)}, ((0,), "d0")),
        (ops.Relu(), {"linear": ((0,),)}, ("d0", (0,))),
        (ops.Exp(), {"linear": ((0,),)}, ((0,), (0,))),
        (ops.Softmax(1), {"whole": frozenset()}, ("d0", "d1")),
    ],
    ids=str,
)
def test_a_wrong_rule_is_caught(op: Op, fields: dict[str, object], chosen: tuple) -> None:
    x = floats(4, 8)
    with pytest.raises(AssertionError):
        check_picks(with_rule(op, **fields), [x], chosen)
    pairs = meshes(rule_of(Case(op, (x,), 0)))
    assert pairs
    for pair in pairs:
        check_picks(op, [x], pair)
