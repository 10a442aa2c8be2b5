"""Products in parts make what products of the whole make, and are issued as plans list them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mithril.cost import SIMULATED
from mithril.ir import Builder, Repeat, Tensor
from mithril.mesh import Mesh, P, Sharding
from mithril.ops import einsum, repeat, tanh
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from mithril.partition.decompose import find_sites, take_apart
from mithril.plan import Program
from mithril.types import DType, TensorType

from tests.algorithms.cases import program_of
from tests.conformance.engines import BACKENDS, opened
from tests.decompose.cases import Case, Row, cases, check_close, check_program, execute
from tests.engine.programs import execute as execute_parts
from tests.profiles import scaled
from tests.tolerances import TOLERANCE


@pytest.mark.slow
@settings(max_examples=scaled(200), deadline=None)
@given(cases())
def test_random_plans_make_the_same_with_products_in_parts(case: Case) -> None:
    found, wanted = case.run("decompose"), case.run("none")
    check_close(found.outputs, wanted.outputs, case.dtype)
    assert found.executed == list(found.plan.list_issued())
    program = found.plan.stages[0].program
    check_program(program)
    again, rows = execute(program, case.values)
    assert rows == found.executed
    check_close(again, wanted.outputs, case.dtype)


@pytest.mark.slow
@settings(max_examples=scaled(200), deadline=None)
@given(cases(is_exact=True), st.data())
def test_where_no_order_of_a_sum_matters_bits_are_the_same(case: Case, data: st.DataObject) -> None:
    wanted, _ = execute(case.program(), case.values)
    for program in (
        case.run("decompose").plan.stages[0].program,
        draw_parts(data, case.program()),
    ):
        found, _ = execute(program, case.values)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, name)


def draw_parts(draw: st.DataObject, program: Program, most: int = 4) -> Program:
    """Return a program with some of its collectives in drawn numbers of chunks."""
    counts = {}
    for site in find_sites(program, rings=False, chunks=True):
        size = site.collective.inputs[0].type.shape[site.dimension]
        if draw.draw(st.booleans()):
            counts[site] = draw.draw(st.integers(2, min(most, size)))
    return take_apart(program, counts, SIMULATED)


@pytest.mark.slow
@settings(max_examples=scaled(200), deadline=None)
@given(cases(), st.data())
def test_random_plans_make_the_same_in_chunks(case: Case, data: st.DataObject) -> None:
    program, values = case.program(), case.values
    changed = draw_parts(data, program)
    check_program(changed)
    (found, rows), (wanted, _) = execute(changed, values), execute(program, values)
    check_close(found, wanted, case.dtype)
    assert rows == list(changed.list_issued())


# ------------------------------------------------------------------ one product, every form

F32 = DType.float32


def gathered(equation: str, count: int, dimension: int, side: int = 0) -> Program:
    """Return a program that gathers an operand of a product."""
    builder, (left, rest) = Builder(), equation.split(",")
    right, _ = rest.split("->")
    terms = [left, right]
    letter = terms[side][dimension]
    sizes = {name: 2 * count if name == letter else n + 2 for n, name in enumerate("abcdef")}
    shapes = [tuple(sizes[name] for name in term) for term in terms]
    own = tuple(2 if name == letter else sizes[name] for name in terms[side])
    given = [
        builder.input(TensorType(own if n == side else shape, F32), f"x{n}")
        for n, shape in enumerate(shapes)
    ]
    with builder.at(scope="product"):
        (whole,) = builder.apply(AllGather(("a",), dimension, count), given[side])
        operands = [whole if n == side else x for n, x in enumerate(given)]
        return program_of(builder.build({"y": einsum(equation, *operands)}), Mesh(a=count))


def scattered(equation: str, count: int, dimension: int, dtype: DType = F32) -> Program:
    """Return a program that scatters the sum of a product over devices."""
    builder, (left, rest) = Builder(), equation.split(",")
    right, result = rest.split("->")
    letter = result[dimension]
    sizes = {name: 2 * count if name == letter else n + 2 for n, name in enumerate("abcdef")}
    given = [
        builder.input(TensorType(tuple(sizes[name] for name in term), dtype), f"x{n}")
        for n, term in enumerate((left, right))
    ]
    (part,) = builder.apply(
        ReduceScatter(("a",), "sum", dimension, count), einsum(equation, *given)
    )
    return program_of(builder.build({"y": part}), Mesh(a=count))


GATHERED = [
    ("ab,cb->ac", 0, 0), ("ab,cb->ac", 0, 1), ("ab,cb->ac", 1, 0), ("abc,dc->abd", 1, 0),
    ("abc,dc->abd", 2, 0), ("abc,abd->dc", 1, 0), ("abc,adc->abd", 0, 0), ("abc,adc->abd", 1, 1),
]  # fmt: skip
"""Equation, dimension and operand that is gathered: it is kept, summed over, or of a batch."""
SCATTERED = [
    ("ab,cb->ac", 0), ("ab,cb->ac", 1), ("abc,dc->abd", 1), ("abc,abd->dc", 0), ("abc,adc->abd", 0),
]  # fmt: skip


def values_of(program: Program, seed: int = 0) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        value.name: [
            rng.standard_normal(value.type.shape).astype(value.type.dtype.numpy)
            for _ in range(program.mesh.size)
        ]
        for value in program.graph.inputs
    }


def take_rings(program: Program) -> Program:
    sites = find_sites(program, rings=True, chunks=False)
    return take_apart(program, {s: program.mesh.product(s.op.axes) for s in sites}, SIMULATED)


def compare(program: Program, changed: Program, kinds: list[str]) -> None:
    check_program(changed)
    values = values_of(program)
    (found, rows), (wanted, _) = execute_parts(changed, values), execute_parts(program, values)
    assert rows == list(changed.list_issued())
    assert [kind for kind, *_ in rows] == kinds
    for name, parts in wanted.items():
        for made, part in zip(found[name], parts, strict=True):
            np.testing.assert_allclose(made, part, *TOLERANCE["float32"])


@pytest.mark.parametrize("count", range(2, 6))
@pytest.mark.parametrize(("equation", "dimension", "side"), GATHERED)
def test_a_gather_travels_in_parts_beside_its_product(
    equation: str, dimension: int, side: int, count: int
) -> None:
    program = gathered(equation, count, dimension, side)
    compare(program, take_rings(program), ["permute"] * (count - 1))


@pytest.mark.parametrize("count", range(2, 6))
@pytest.mark.parametrize(("equation", "dimension"), SCATTERED)
def test_a_sum_is_passed_on_beside_its_product(equation: str, dimension: int, count: int) -> None:
    program = scattered(equation, count, dimension)
    compare(program, take_rings(program), ["permute"] * (count - 1))


def test_narrow_sums_travel_in_float32_and_are_rounded_once() -> None:
    program = scattered("ab,cb->ac", 4, 0, DType.bfloat16)
    changed = take_rings(program)
    sent = [node.inputs[0].type for node in changed.graph.nodes if node.op.name == "permute"]
    assert {x.dtype for x in sent} == {DType.float32}
    values = values_of(program)
    exact = [
        np.einsum("ab,cb->ac", *(values[n][d].astype(np.float64) for n in ("x0", "x1")))
        for d in range(4)
    ]
    found, _ = execute_parts(changed, values)
    for device, part in enumerate(found["y"]):
        wanted = sum(exact)[2 * device : 2 * device + 2]
        np.testing.assert_allclose(part.astype(np.float64), wanted, *TOLERANCE["bfloat16"])


# ------------------------------------------------------------------ chunks


def exchanged(op: Collective, x: tuple[int, ...], *, is_made: bool) -> Program:
    """Return a program with a product before a collective, or behind it."""
    builder = Builder()
    given = builder.input(TensorType(x, F32), "x0")
    w = builder.input(TensorType((x[-1], x[-1]), F32), "x1")
    if is_made:
        (y,) = builder.apply(op, einsum("abc,cd->abd", given, w))
    else:
        (y,) = builder.apply(op, given)
        y = einsum("abc,cd->abd", y, builder.input(TensorType((y.shape[-1], 3), F32), "x2"))
    return program_of(builder.build({"y": y}), Mesh(a=2))


EXCHANGES = [
    AllReduce(("a",), "sum"), AllReduce(("a",), "max"), AllGather(("a",), 1, 2),
    ReduceScatter(("a",), "sum", 1, 2), AllToAll(("a",), 1, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("op", EXCHANGES, ids=str)
def test_every_kind_travels_in_chunks(op: Collective, count: int, is_made: bool) -> None:
    program = exchanged(op, (5, 4, 6), is_made=is_made)
    (site,) = find_sites(program, rings=False, chunks=True)
    assert bool(site.before) == is_made
    compare(program, take_apart(program, {site: count}, SIMULATED), [op.name] * count)


# ------------------------------------------------------------------ loops, and what stays


@pytest.mark.parametrize("count", [2, 3])
def test_loops_are_entered(count: int) -> None:
    body, mesh = Builder(), Mesh(a=count)
    x = body.input(TensorType((2, 4), F32), "x")
    w = body.input(TensorType((4, 4), F32), "w")
    (whole,) = body.apply(AllGather(("a",), 0, count), x)
    made = tanh(einsum("ab,cb->ac", whole, w))
    (part,) = body.apply(ReduceScatter(("a",), "sum", 0, count), einsum("ab,bc->ac", made, w))
    builder = Builder()
    op = Repeat(body.build({"x": part}), 3, 1, 0)
    (y,) = builder.apply(op, builder.input(x.type, "x0"), builder.input(w.type, "x1"))
    program = program_of(builder.build({"y": y}), mesh)
    compare(program, take_rings(program), ["permute"] * 2 * (count - 1) * 3)


@pytest.mark.parametrize("at", [P(None, "tensor"), P(None, None, "tensor")])
@pytest.mark.parametrize("count", [2, 3])
def test_loops_over_stacks_are_entered_with_their_gradients(count: int, at: P) -> None:
    builder, mesh = Builder(), Mesh(tensor=count)
    x = builder.input(TensorType((2, 6, 12), F32), "x")
    up, down = (builder.input(TensorType((3, 12, 12), F32), name) for name in ("up", "down"))

    def layer(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return tanh(einsum("bsd,hd->bsh", tanh(einsum("bsd,hd->bsh", x, up)), down))

    graph = builder.build({"y": repeat(layer, x, stacked=(up, down))})
    case = Case(graph, mesh, {"x": P(None, "tensor")}, {"up": at}, P(None, "tensor"))
    found, wanted = case.run("decompose"), case.run("none")
    check_close(found.outputs, wanted.outputs, "float32")
    assert found.executed == list(found.plan.list_issued())
    assert {row.times for row in found.plan.collectives() if row.cause.algorithm} == {3}


def test_what_is_equal_on_all_devices_is_summed_in_one_order() -> None:
    """A device would add up what it has first; the sums of others would have other last bits."""
    program = gathered("ab,bc->ac", 3, 1)
    assert find_sites(program, rings=True, chunks=False)
    ports = [
        replace(port, type=value.type, sharding=Sharding.replicated(program.mesh, 2))
        for port, value in zip(program.inputs, program.graph.inputs, strict=True)
    ]
    alike = replace(program, inputs=(program.inputs[0], ports[1]))
    assert not find_sites(alike, rings=True, chunks=False)


def test_what_takes_it_all_gets_it_put_together() -> None:
    builder = Builder()
    x, w = (builder.input(TensorType((2, 4), F32), name) for name in ("x0", "x1"))
    (whole,) = builder.apply(AllGather(("a",), 0, 3), x)
    first, second = einsum("ab,cb->ac", whole, w), einsum("ab,ac->bc", whole, whole)
    program = program_of(builder.build({"y": first, "z": second, "whole": whole}), Mesh(a=3))
    (site,) = find_sites(program, rings=True, chunks=False)
    assert site.is_kept
    compare(program, take_rings(program), ["permute"] * 2)


def test_what_no_product_takes_first_stays() -> None:
    builder = Builder()
    x, w = (builder.input(TensorType((2, 4), F32), name) for name in ("x0", "x1"))
    (whole,) = builder.apply(AllGather(("a",), 0, 3), x)
    y = einsum("ab,cb->ac", tanh(whole), w)
    program = program_of(builder.build({"y": y, "z": einsum("ab,cb->ac", whole, w)}), Mesh(a=3))
    assert not find_sites(program, rings=True, chunks=False)
    assert take_rings(program) is program


# ------------------------------------------------------------------ backends


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=scaled(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(3), st.data())
def test_every_backend_runs_products_in_parts(
    backend: str, case: Case, data: st.DataObject
) -> None:
    values = case.values
    if data.draw(st.booleans()):
        program = case.run("decompose").plan.stages[0].program
    else:
        program = draw_parts(data, case.program())
    rows = compare_on(backend, program, values, case.dtype)
    missing, more = Counter(program.list_issued()), Counter(rows)
    missing.subtract(more)
    if (backend, case.dtype) != ("jax", "bfloat16"):  # XLA moves float32 there on CPU
        # What a plan gathers twice, XLA gathers once.
        assert min(missing.values(), default=0) >= 0
        assert backend == "jax" or not any(missing.values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["gather", "scatter", "chunks"])
def test_backends_run_each_form(backend: str, form: str) -> None:
    if form == "gather":
        program = take_rings(gathered("abc,dc->abd", 2, 1))
    elif form == "scatter":
        program = take_rings(scattered("abc,dc->abd", 2, 1))
    else:
        whole = exchanged(AllReduce(("a",), "sum"), (5, 4, 6), is_made=True)
        program = take_apart(
            whole, dict.fromkeys(find_sites(whole, rings=False, chunks=True), 3), SIMULATED
        )
    rng = np.random.default_rng(0)
    values = {
        port.name: rng.standard_normal(port.type.shape).astype(np.float32)
        for port in program.inputs
    }
    rows = compare_on(backend, program, values, "float32")
    assert sorted(rows) == sorted(program.list_issued())


def compare_on(
    backend: str, program: Program, values: dict[str, np.ndarray], dtype: str
) -> list[Row]:
    """Return what a backend exchanges in a program, whose outputs are those of NumPy."""
    wanted, _ = execute(program, values)
    engine = opened(backend, **program.mesh.sizes).engine
    found, rows = execute(program, values, engine)
    check_close(found, wanted, dtype)
    return rows
