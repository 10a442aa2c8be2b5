"""Specs of shardings, those of sub-axes included, are taken wherever a spec is."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import P

from tests.mesh.strategies import meshes, specs
from tests.runtime.loaded import parts


@given(st.data())
def test_the_spec_of_a_sharding_is_accepted_by_its_mesh(data: st.DataObject) -> None:
    mesh = data.draw(meshes)
    backend = ml.NumpyBackend(mesh)
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    x = backend.ones(shape, sharding=data.draw(specs(mesh, len(shape))))
    for y in (x, mnp.reshape(x, (-1,)), x * 2, *_reshaped(x, data)):
        again = backend.array(y.numpy(), sharding=y.sharding.spec)
        assert again.sharding == y.sharding
        assert parts(again) == parts(y)
        assert backend.reshard(y, y.sharding.spec).sharding == y.sharding


def _reshaped(x: ml.Array, data: st.DataObject) -> list[ml.Array]:
    """Return an array cut at a divisor of its first dimension, which may need sub-axes."""
    size = x.shape[0]
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    first = data.draw(st.sampled_from(divisors))
    return [mnp.reshape(x, (first, size // first, *x.shape[1:]))]


def test_a_spec_of_sub_axes_is_taken_everywhere() -> None:
    backend = ml.NumpyBackend(ml.Mesh(x=4))
    x = backend.array(np.ones((16, 16)), sharding=P("x"))
    y = ml.jit(lambda a: mnp.reshape(a, (2, 8, 16)))(x)
    spec = y.sharding.spec
    assert spec == P("x.0", "x.1") and y.sharding.mesh != backend.mesh
    z = backend.ones(2, 8, 16)
    assert backend.reshard(z, spec).sharding == y.sharding
    assert ml.jit(lambda a: ml.constrain(a * 2, spec))(z).sharding == y.sharding
    out = ml.jit(lambda a: a * 2, in_shardings=spec, out_shardings=spec, backend=backend)
    assert out(np.ones((2, 8, 16))).sharding == y.sharding
    assert ml.TensorSpec((2, 8, 16), sharding=spec).sharding == spec
    assert backend.ones(4, sharding=P("x.1")).sharding.spec == P("x.1")  # read as 2 x 2


def test_complete_sub_axes_are_their_axis() -> None:
    backend = ml.NumpyBackend(ml.Mesh(x=3, y=4))
    f = ml.jit(
        lambda a, c: (mnp.tile(a, (2, 3)), c * c),
        backend=backend,
        out_shardings=(P(None, "y"), P(("y", "x"))),
    )
    _, y = f(backend.array(np.ones((7, 6))), backend.array(np.ones((7, 6))))
    assert repr(y.sharding.spec) == "P(('y', 'x'), None)"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            P("x.0"),
            r"P\('x\.0'\) of tensor names a part of mesh axis 'x' \(8\), which may be cut in",
        ),
        (P("x.3"), r"names a part of mesh axis 'x' \(8\)"),
        (P("z.0"), r"P\('z\.0'\) of tensor does not fit; mesh Mesh\(x=8\) has no axis 'z\.0'"),
    ],
)
def test_parts_of_an_axis_without_sizes_are_refused(spec: P, text: str) -> None:
    with pytest.raises(ml.MeshError, match=text):
        ml.NumpyBackend(ml.Mesh(x=8)).ones(16, sharding=spec)


def test_parts_of_another_mesh_are_refused() -> None:
    small, large = ml.NumpyBackend(ml.Mesh(x=4)), ml.NumpyBackend(ml.Mesh(x=8))
    spec = small.ones(4, sharding=P("x.0")).sharding.spec
    text = r"it cuts mesh axis 'x' into 2 x 2, and Mesh\(x=8\) has 8 devices along it; use the spec"
    with pytest.raises(ml.MeshError, match=text):
        large.ones(16, sharding=spec)
    with pytest.raises(
        ml.MeshError, match=r"in_shardings P\('x\.0'\) of input 'input' does not fit"
    ):
        ml.compile(ml.Linear(2), large, in_shardings=spec)
    with pytest.raises(ml.MeshError, match=r"constrained at .*test_specs"):
        ml.jit(lambda x: ml.constrain(x, spec))(large.ones(16))
