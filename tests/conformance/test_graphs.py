"""Graphs and loops, their gradients included, on every installed backend in float64.

In float64 a result is held to one part in ten million: what is wrong cannot hide in rounding.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from mithril.engine import Engine
from mithril.mesh import Mesh

from tests.conformance.engines import BACKENDS, exact, opened
from tests.graphs import on_one_device, run, values_for
from tests.partition.test_properties import Case, cases, compare
from tests.profiles import quick, scaled
from tests.transform import test_repeat as loops

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def engine_on(backend: str, mesh: Mesh) -> Engine:
    return opened(backend, **mesh.sizes).engine.on(mesh)


@quick(lambda backend: backend != "jax")  # whose quick kernels may round a value in two ways
@settings(max_examples=scaled(12))
@given(case=cases())
def test_random_graphs_on_random_meshes(backend: str, case: Case) -> None:
    with exact(backend):
        compare(case, opened=partial(engine_on, backend))


@pytest.mark.parametrize("case", loops.CASES)
def test_a_loop_on_a_mesh(backend: str, case: str) -> None:
    mesh, inputs, options = loops.CASES[case]
    graph, wanted = loops.stack(True), loops.PARAMETERS
    values, on = values_for(graph), partial(engine_on, backend)
    with exact(backend):
        ran = run(graph, mesh, values, inputs, differentiated=wanted, opened=on, **options)
    loops.close(ran.outputs, on_one_device(graph, values, wanted))


@settings(max_examples=scaled(6))
@given(loop=loops.random_loops())
def test_random_loops_on_random_meshes(backend: str, loop: loops.RandomLoop) -> None:
    with exact(backend):
        loops.compare(loop, opened=partial(engine_on, backend))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_with_several_carried_values(backend: str, reverse: bool) -> None:
    graph = loops.two_carried(reverse)
    values, wanted = values_for(graph), ("x", "w", "c")
    with exact(backend):
        on = partial(engine_on, backend)
        ran = run(graph, Mesh(), values, differentiated=wanted, opened=on)
    loops.close(ran.outputs, on_one_device(graph, values, wanted))


def test_a_value_after_another_one(backend: str) -> None:
    with exact(backend):
        loops.check_after(opened=partial(engine_on, backend))
