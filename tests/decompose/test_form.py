"""Programs that are alike: they have one form, and what is found for one holds for the others."""

from __future__ import annotations

import mithril as ml
import pytest
from mithril.cli.gpt import Sizes
from mithril.compiler import decompose
from mithril.cost import Hardware
from mithril.cost.streams import Pricing
from mithril.mesh import Mesh
from mithril.partition.decompose import Known, choose, decompose_where_it_pays
from mithril.partition.decompose.form import find_form
from mithril.plan import Program
from mithril.runtime.planned import plan_backend

from tests.decompose.test_plans import BETWEEN, sequence_parallel

SIZES = Sizes(layers=2, width=4096, heads=32, hidden=16384, context=2048, batch=2)
PROFILE = Hardware.load("tpu-v4")


def make_program(name: str, sizes: Sizes = SIZES, count: int = 4) -> tuple[Program, Pricing]:
    """Return the program of two blocks, before anything is taken apart, and its prices."""
    seen: list[tuple[Program, Pricing]] = []

    def look(program: Program, pricing: Pricing, known: Known) -> Program:
        del known
        seen.append((program, pricing))
        return program

    model = ml.Model(name="m")
    for number in range(2):
        block = sequence_parallel(sizes, f"{name}{number}")
        model |= block(x=f"x{number}", y=f"x{number + 1}")
    shape = (sizes.batch, sizes.context, sizes.width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompose, "decompose_where_it_pays", look)
        ml.compile(
            model,
            plan_backend(Mesh(tensor=count), PROFILE),
            shapes={"x0": ml.TensorSpec(shape, "bfloat16", BETWEEN)},
            precision=ml.Precision(dtype="bfloat16"),
        )
    return seen[0]


def choose_for(program: Program, pricing: Pricing, known: Known) -> str:
    """Return the program with what pays in parts, without the names of its layers."""
    made = decompose_where_it_pays(program, pricing, known)
    return str([(node.op, [value.type for value in node.outputs]) for node in made.graph.nodes])


def test_the_form_is_that_of_programs_but_for_names() -> None:
    form = find_form(make_program("first")[0], PROFILE)
    assert form == find_form(make_program("second")[0], PROFILE)
    wider = Sizes(2, SIZES.width, SIZES.heads, 2 * SIZES.hidden, SIZES.context, SIZES.batch)
    assert form != find_form(make_program("first", wider)[0], PROFILE)
    assert form != find_form(make_program("first", count=8)[0], PROFILE)


def test_what_is_chosen_for_one_program_holds_for_those_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = make_program("first"), make_program("second")
    known: Known = {}
    expected = choose_for(*first, known)
    (found,) = known.values()
    assert found  # something pays
    assert choose_for(*second, {}) == expected
    monkeypatch.setattr(choose, "_try_all", lambda *given: pytest.fail("it is tried again"))
    assert choose_for(*second, known) == expected
