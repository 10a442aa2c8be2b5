"""One array in several places: an argument that is captured, too, and memory that is given up."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.ir import Tensor

MESH = ml.Mesh(data=2, tensor=2)
A = np.arange(16, dtype=np.float32).reshape(4, 4)


def test_a_function_captures_one_of_its_arguments() -> None:
    backend = ml.NumpyBackend(MESH)
    w = backend.array(A)
    function = ml.jit(lambda a: a @ w, in_shardings=P("data"), backend=backend)
    for _ in range(3):
        np.testing.assert_array_equal(function(w).numpy(), A @ A)


def test_a_layer_captures_an_input_of_its_model() -> None:
    backend = ml.NumpyBackend(MESH)
    w = backend.array(A)

    @ml.layer
    def Product(input: Tensor) -> Tensor:  # noqa: N802
        return input @ w

    model = ml.Model()
    model |= Product()(input="x", output="y")
    compiled = ml.compile(model, backend, in_shardings={"x": P("data")})
    for _ in range(3):
        np.testing.assert_array_equal(compiled.evaluate({}, {"x": w})["y"].numpy(), A @ A)


def test_what_is_placed_where_it_lies_has_memory_of_its_own() -> None:
    backend = ml.NumpyBackend(MESH)
    x = backend.array(A)
    placed = backend.reshard(x, P())
    assert placed.is_placed
    assert placed.shards is not x.shards
    write = ml.jit(
        lambda a: mnp.dynamic_update_slice(a, mnp.ones((1, 4)), (0, 0)), donate="a", backend=backend
    )
    assert write(placed).numpy()[0].tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(x.numpy(), A)


@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=["one device", "two"])
def test_an_array_of_jax_that_was_donated_says_so(mesh: ml.Mesh) -> None:
    pytest.importorskip("mithril_jax")
    backend = ml.JaxBackend(mesh)
    theirs = backend.array(A, sharding=P()).jax()
    add = ml.jit(lambda a: a + 1, donate="a", backend=backend)
    add(theirs)
    with pytest.raises(
        ml.BackendError,
        match=r"array float32\[4, 4\] was donated or deleted and holds no values any more; use",
    ):
        add(theirs)


def test_one_array_of_jax_is_not_donated_and_needed() -> None:
    pytest.importorskip("mithril_jax")
    backend = ml.JaxBackend(ml.Mesh(data=2))
    theirs = backend.array(A, sharding=P()).jax()
    both = ml.jit(lambda a, c: a + c, donate="a", backend=backend)
    with pytest.raises(ml.BackendError, match=r"is donated as 'a' and also passed as 'c'"):
        both(theirs, theirs)


@pytest.mark.parametrize("wanted", [("data", "data"), ("data", "tensor"), (None, "data")])
def test_an_unplaced_array_is_not_donated_and_needed_wherever_a_plan_wants_it(
    wanted: tuple[str | None, str | None],
) -> None:
    backend = ml.NumpyBackend(MESH)
    x = backend.array(A)
    both = ml.jit(
        lambda a, c: a + c, donate="a", backend=backend, in_shardings=tuple(map(P, wanted))
    )
    with pytest.raises(ml.BackendError, match=r"is donated as 'a' and also passed as 'c'"):
        both(x, x)
    np.testing.assert_array_equal(x.numpy(), A)


def test_a_compiled_model_is_no_part_of_a_traced_function() -> None:
    backend = ml.NumpyBackend()
    compiled = ml.compile(ml.Linear(2), backend, shapes={"input": (3, 4)})
    params = compiled.randomize_params()
    outer = ml.jit(lambda x: compiled.evaluate(params, {"input": x})["output"], backend=backend)
    with pytest.raises(
        ml.BackendError, match=r"input 'input' is a tensor of a function that is being traced; call"
    ):
        outer(A)
    with pytest.raises(ml.BackendError, match=r"is a tensor of a function that is being traced"):
        ml.jit(lambda x: backend.reshard(x, P()), backend=backend)(A)
