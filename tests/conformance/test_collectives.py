"""The kit's collectives on more meshes: of three axes, of other orders, with an axis of one device."""

from __future__ import annotations

from itertools import permutations

import pytest
from mithril.ir import Tensor
from mithril.mesh import Mesh
from mithril.plan import Program
from mithril.testing.checks.collectives import KINDS, compare_collective, write_program
from mithril.types import DType

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick

MESHES = [
    Mesh(a=3), Mesh(a=2, b=3), Mesh(a=2, b=2, c=2), Mesh(a=2, b=2, order=("b", "a")),
    Mesh(a=2, b=1, c=3, order=("c", "b", "a")),
]  # fmt: skip
OVER = [
    (mesh, axes)
    for mesh in MESHES
    for count in {1, len(mesh.names)}
    for axes in permutations(mesh.names, count)
]
CASES = [(*over, "float32") for over in OVER]
CASES += [(mesh, mesh.names[::-1], dtype) for mesh in MESHES for dtype in ("bfloat16", "int32")]
QUICK = [
    case for case in CASES
    if case[0].names != ("a", "b", "c") or case[1] in (("b",), ("c", "a", "b"))
]  # fmt: skip


def every_collective(x: Tensor, axes: tuple[str, ...], count: int) -> dict[str, Tensor]:
    """Return what each kind of collective makes of a value that differs on all devices."""
    return {
        f"{kind} {name}": y
        for kind, make in KINDS.items()
        for name, y in make(x, axes, count).items()
    }


def program(mesh: Mesh, axes: tuple[str, ...], dtype: DType) -> Program:
    """Return a program in which the parts of a tensor, one a device, go through every collective."""
    return write_program(mesh, axes, dtype, every_collective)


@pytest.mark.parametrize("backend", BACKENDS)
@quick(lambda mesh, axes, dtype: (mesh, axes, dtype) in QUICK)
@pytest.mark.parametrize(("mesh", "axes", "dtype"), CASES, ids=str)
def test_every_collective(backend: str, mesh: Mesh, axes: tuple[str, ...], dtype: str) -> None:
    engine = opened(backend, **mesh.sizes).engine.on(mesh)
    compare_collective(program(mesh, axes, DType(dtype)), engine, axes)
