"""Every op on a 2 x 3 mesh, split in every way its rule allows, equals the numpy kernels.

One axis divides most sizes of the cases and the other one few of them, so parts are even, padded
and empty. A plan holds a copy of the op for each way: XLA compiles many in the time of a few.
"""

from __future__ import annotations

import itertools
import random

import pytest
from mithril.compiler import Request, Target, make_plan
from mithril.ir import Builder, Graph, Rule
from mithril.ir.rule import FactorDims
from mithril.mesh import Mesh, Sharding
from mithril.plan import Plan
from mithril.sharding import Layout
from mithril.testing.cases import CASES, Case
from mithril.testing.evaluate import apply, assert_close, coarsest, type_of
from mithril.testing.levels import first_of_each
from mithril.testing.merged import narrow, narrow_op
from mithril.testing.running import run_plan

from tests.conformance.engines import IN_ONE_PROCESS, opened
from tests.ops.test_rules import rule_of
from tests.profiles import quick

MESH = Mesh(a=2, b=3)
SPLIT = [case for case in CASES if rule_of(case).splittable]
PAIRS = 1
"""Of the ways to use both axes so many are drawn for a case, the same each time."""
Way = tuple[str | None, str | None]
"""The factor that each axis splits."""


def ways(case: Case) -> list[Way]:
    """Return the ways in which a case is tried: each factor over an axis, and some pairs."""
    factors = rule_of(case).splittable
    alone = [
        (f, None) if is_even else (None, f)
        for f, is_even in zip(factors, itertools.cycle((case.number % 2 == 0, case.number % 2)))
    ]
    both = list(itertools.product(factors, repeat=2))
    return alone + random.Random(str(case)).sample(both, min(PAIRS, len(both)))


def sharding_of(dims: FactorDims, way: Way) -> Sharding:
    """Return a sharding whose dimensions are split where their major factor is."""
    split = [
        tuple(axis for axis, factor in zip(MESH.names, way, strict=True) if dim[:1] == (factor,))
        for dim in dims
    ]
    return Sharding(MESH, tuple(split))


def lie(rule: Rule, way: Way, number: int) -> tuple[dict[str, Sharding], dict[str, Sharding]]:
    """Return where the operands and the results of a copy of an op lie."""
    return (
        {f"{number}.x{i}": sharding_of(dims, way) for i, dims in enumerate(rule.operands)},
        {f"{number}.y{i}": sharding_of(dims, way) for i, dims in enumerate(rule.results)},
    )


def runs_on_a_part(plan: Plan, copies: Graph) -> bool:
    """Return whether a copy of the op has become smaller, or another op, on each device."""
    whole = {(node.op, *(v.type for v in (*node.inputs, *node.outputs))) for node in copies.nodes}
    (stage,) = plan.stages
    local = [
        (node.op, *(v.type for v in (*node.inputs, *node.outputs)))
        for node in stage.program.graph.nodes
    ]
    return sum(key in whole for key in local) < len(copies.nodes)


FIRST = first_of_each(SPLIT, lambda case: case.op.name)
"""The rest is true of the rule whatever runs it: tests/ops/test_every_spec.py tries all."""


def in_quick(backend: str, case: Case) -> bool:
    """Return whether it is the turn of an op's first case on a backend."""
    names = [parameter.values[0] for parameter in IN_ONE_PROCESS]
    return case in FIRST and names[FIRST.index(case) % len(names)] == backend


@quick(in_quick)
@pytest.mark.parametrize("backend", IN_ONE_PROCESS)
@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_every_way_to_split(backend: str, case: Case) -> None:
    engine, rule, builder = opened(backend, **MESH.sizes).engine, rule_of(case), Builder()
    op, arrays = narrow_op(case.op, engine), [narrow(a, engine) for a in case.arrays]
    results, inputs, outputs, values = {}, {}, {}, {}
    for number, way in enumerate(ways(case)):
        arriving, leaving = lie(rule, way, number)
        given = dict(zip(arriving, arrays, strict=True))
        made = builder.apply(op, *(builder.input(type_of(a), n) for n, a in given.items()))
        results |= dict(zip(leaving, made, strict=True))
        inputs, outputs, values = inputs | arriving, outputs | leaving, values | given
    copies = builder.build(results)
    layouts = {name: Layout(arrives=sharding) for name, sharding in inputs.items()}
    layouts |= {name: Layout(leaves=sharding) for name, sharding in outputs.items()}
    request = Request(layouts)
    plan = make_plan(copies, request, Target.of(engine))
    assert runs_on_a_part(plan, copies)
    found, expected = run_plan(engine, plan, values), apply(op, *arrays)
    for number, way in enumerate(ways(case)):
        for name, whole in zip(lie(rule, way, number)[1], expected, strict=True):
            try:
                assert_close(found[name], whole, coarsest(*arrays, whole))
            except AssertionError as error:
                raise AssertionError(f"{op} with axes {way}: {error}") from error
