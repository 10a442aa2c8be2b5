"""Every op on a 2 x 2 mesh, operands split as its rule allows, equals the numpy kernels."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from mithril.compiler import Request
from mithril.ir import Rule
from mithril.mesh import Mesh, Sharding
from mithril.runtime.backend import plan_on

from tests.conformance.engines import BACKENDS, narrowed, opened, run_plan
from tests.conformance.test_ops import held
from tests.ops.cases import CASES, Case
from tests.ops.evaluate import assert_close, coarsest, evaluate, graph_of, inputs_of, type_of
from tests.ops.test_rules import rule_of

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
MESH = Mesh(a=2, b=2)
SPLIT = [case for case in CASES if rule_of(case).splittable]
WAYS = 2


def choices(rule: Rule, name: str) -> list[tuple[str, ...]]:
    """Return what the two axes split: some of all single factors and pairs, the same each time."""
    factors = sorted(rule.splittable)
    every = [(f,) for f in factors] + list(itertools.permutations(factors, 2))
    every += [(f, f) for f in factors]
    return random.Random(name).sample(every, min(WAYS, len(every)))


def sharding_of(rule: Rule, operand: int, chosen: tuple[str, ...]) -> Sharding:
    """Return an operand's sharding, its dimensions split where their first factor is chosen."""
    if operand in rule.ignored:
        return Sharding.replicated(MESH, len(rule.operands[operand]))
    dims = []
    for factors in rule.operands[operand]:
        axes = [a for a, f in zip(MESH.names, chosen, strict=False) if factors and factors[0] == f]
        dims.append(tuple(axes))
    return Sharding(MESH, tuple(dims))


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_split_operands(backend: str, case: Case) -> None:
    engine = opened(backend, a=2, b=2).engine
    op, rule = held(case.op, engine), rule_of(case)
    arrays = tuple(narrowed(a, engine) for a in case.arrays)
    graph, values = graph_of(op, [type_of(a) for a in arrays]), inputs_of(arrays)
    expected = evaluate(graph, values)
    for chosen in choices(rule, str(case)):
        lie = {f"x{i}": sharding_of(rule, i, chosen) for i in range(len(arrays))}
        plan = plan_on(engine, graph, Request(inputs=lie, placed=frozenset(lie)))
        found = run_plan(engine, plan, values)
        for name, whole in expected.items():
            assert_close(found[name], whole, coarsest(*arrays, np.asarray(whole)))
