"""JAX's arrays, trees and transformations with Mithril's, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as JaxP
from mithril import P

from tests.jax.models import mlp, small_gpt
from tests.tolerances import DIFFERENCES, TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
MESHES = [ml.Mesh(), ml.Mesh(data=4), ml.Mesh(data=2, tensor=2), ml.Mesh(data=4, tensor=2)]


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


def jax_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return jax.sharding.Mesh(devices, names)


# ------------------------------------------------------------------ arrays


def test_an_array_is_jaxs_own_without_a_copy() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=4))
    x = backend.array(np.arange(8.0, dtype=np.float32), sharding=P("data"))
    theirs = x.jax()
    assert theirs is x.shards
    assert theirs.sharding == NamedSharding(jax_mesh((4,), ("data",)), JaxP("data"))
    again = backend.array(theirs)
    assert again.shards is theirs
    assert again.sharding.spec == P("data")


@pytest.mark.parametrize("size", [5, 7, 10])
@pytest.mark.parametrize("mesh", [ml.Mesh(a=4), ml.Mesh(a=2, b=3), ml.Mesh(a=2, b=4)], ids=str)
def test_an_uneven_array_loses_its_padding(size: int, mesh: ml.Mesh) -> None:
    backend = ml.JaxBackend(mesh)
    host = np.arange(size, dtype=np.float32) + 1
    x = backend.array(host, sharding=P(mesh.names))
    np.testing.assert_array_equal(np.asarray(x.jax()), host)


def test_an_array_on_the_same_axes_is_taken_as_it_lies() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2, tensor=2))
    theirs = jax.device_put(
        jnp.arange(16.0).reshape(4, 4),
        NamedSharding(jax_mesh((2, 2), ("data", "tensor")), JaxP(None, ("data", "tensor"))),
    )
    ours = backend.array(theirs)
    assert ours.sharding.spec == P(None, ("data", "tensor"))
    assert ours.shards is theirs
    close(ours, theirs)


def test_an_array_on_other_devices_or_axes_is_replicated() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=4))
    alone = jnp.arange(8.0)
    other = jax.device_put(alone, NamedSharding(jax_mesh((2,), ("z",)), JaxP("z")))
    for theirs in (alone, other):
        ours = backend.array(theirs)
        assert ours.sharding.is_replicated
        close(ours + 1, np.arange(8.0) + 1)
    assert backend.array(alone, sharding=P("data")).sharding.spec == P("data")
    assert backend.array(alone, dtype="int32").dtype == "int32"


def test_eager_functions_take_them() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2))
    x = backend.ones(4, 4, sharding=P("data"))
    close(backend.matmul(x, jnp.ones((4, 2))), np.full((4, 2), 4.0))
    close(x + jnp.ones((4, 4)), np.full((4, 4), 2.0))


def test_an_array_that_is_traced_is_refused() -> None:
    compiled, inputs = mlp(ml.JaxBackend())
    params = compiled.randomize_params()

    def wrong(x: jax.Array) -> jax.Array:
        return compiled.evaluate(params, {"x": x})["y"].jax()

    with pytest.raises(ml.BackendError, match=r"float32\[8,6\] is being traced by JAX; .*as_jax"):
        jax.jit(wrong)(inputs["x"].jax())


def test_a_missing_method_is_named() -> None:
    backend = ml.JaxBackend()
    with pytest.raises(AttributeError, match=r"of backend 'jax' has no attribute 'jx'.*'jax'"):
        backend.ones(2).jx()
    with pytest.raises(AttributeError, match=r"of backend 'numpy' has no attribute 'jax'"):
        ml.NumpyBackend().ones(2).jax()
    compiled, _ = mlp(backend)
    with pytest.raises(
        AttributeError, match=r"compiled model on backend 'jax' has no attribute 'as_jx'.*'as_jax'"
    ):
        compiled.as_jx()
    with pytest.raises(
        AttributeError, match=r"parameters on backend 'jax' have no attribute 'jx'; there: 'jax'$"
    ):
        compiled.randomize_params().jx()


# ------------------------------------------------------------------ trees


def test_arrays_and_parameters_are_trees() -> None:
    compiled, inputs = mlp(ml.JaxBackend(ml.Mesh(data=2, tensor=2)))
    params = compiled.randomize_params()
    doubled = jax.tree.map(lambda x: 2 * x, params)
    assert type(doubled) is type(params)
    assert doubled["up.weight"].sharding == params["up.weight"].sharding
    close(doubled["up.weight"], 2 * params["up.weight"].numpy())
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    assert names[0].startswith("['down.bias']")
    _, gradients = compiled.evaluate(params, inputs, {"y": np.ones((8, 4), np.float32)})
    stepped = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    compiled.evaluate(stepped, inputs)
    small = jax.tree.map(lambda x: x[:1], params["down.bias"])
    assert small.shape == (1,)


def test_trees_of_something_else() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2))
    tree = {"a": backend.ones(4, 3, sharding=P("data"))}
    assert jax.tree.map(jnp.shape, tree) == {"a": (4, 3)}
    assert jax.tree.map(lambda x: "text", tree) == {"a": "text"}
    emptied = jax.tree.map(lambda x: None, tree)
    assert repr(emptied["a"]) == "Array(without values, float32[4, 3], P('data', None))"
    as_types = jax.eval_shape(lambda t: t, tree)
    assert as_types["a"].shape == (4, 3)
    doubled = jax.jit(lambda t: jax.tree.map(lambda x: 2 * x, t))(tree)
    assert doubled["a"].sharding == tree["a"].sharding
    close(doubled["a"], np.full((4, 3), 2.0))


def test_functions_of_jax_take_arrays() -> None:
    x = ml.JaxBackend(ml.Mesh(data=2)).array(np.arange(5.0), sharding=P("data"))
    close(jnp.sum(x), 10.0)
    close(jnp.sin(x) + jnp.asarray(x), np.sin(np.arange(5.0)) + np.arange(5.0))


def test_a_parameter_without_a_size_is_no_tree_yet() -> None:
    compiled = ml.compile(ml.Linear(4), ml.JaxBackend())
    with pytest.raises(ml.BackendError, match="'bias' has no size yet"):
        jax.tree.leaves(compiled.randomize_params())


@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2), ml.Mesh(data=4)], ids=str)
def test_arrays_are_loaded_as_users_of_jax_have_laid_them_out(
    mesh: ml.Mesh, tmp_path: Path
) -> None:
    backend = ml.JaxBackend(mesh)
    assert backend.mesh == mesh, "it is open: that is how arrays are known"
    theirs = jax_mesh((4,), ("x",))
    split = jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec("x"))
    tree = {
        "split": jax.device_put(jnp.arange(8.0), split),
        "second": jax.device_put(jnp.arange(3.0), jax.devices()[1]),
        "anywhere": jnp.ones(2),
    }
    ml.save(tmp_path, tree)
    found = ml.load(tmp_path, like=tree)
    for name, x in tree.items():
        close(found[name], x)
        assert found[name].sharding == x.sharding or not x.committed


@pytest.mark.slow
def test_optax_trains_parameters() -> None:
    compiled, inputs = small_gpt(ml.JaxBackend(ml.Mesh(data=2, tensor=2)))
    alone, alone_inputs = small_gpt(ml.NumpyBackend())
    start = alone.evaluate(alone.randomize_params(), alone_inputs)["loss"]
    params = compiled.randomize_params()
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)
    losses = []
    for _ in range(8):
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": 1.0})
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(outputs["loss"]))
    close(losses[0], start)
    assert losses[-1] < losses[0] - 0.5
    assert compiled.recompiles == 1


@pytest.mark.slow
def test_orbax_saves_and_restores_parameters(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    compiled, inputs = mlp(ml.JaxBackend(ml.Mesh(data=2, tensor=2)))
    params = compiled.randomize_params(3)
    expected = compiled.evaluate(params, inputs)["y"]
    with checkpoint.StandardCheckpointer() as saver:
        for name, tree in (("ours", params), ("plain", params.jax())):
            saver.save(tmp_path / name, tree)
            saver.wait_until_finished()
            restored = saver.restore(tmp_path / name, tree)
            assert type(restored) is type(tree)
            assert restored["up.weight"].sharding == tree["up.weight"].sharding
            close(compiled.evaluate(restored, inputs)["y"], expected)


# ------------------------------------------------------------------ as_jax


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gradient_of_a_loss(mesh: ml.Mesh) -> None:
    compiled, inputs = small_gpt(ml.JaxBackend(mesh))
    params = compiled.randomize_params(1)
    outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
    pure = compiled.as_jax()
    loss, found = jax.jit(jax.value_and_grad(lambda p: 3 * pure(p, inputs)["loss"]))(params.jax())
    close(loss, 3 * outputs["loss"].numpy())
    for name, slope in slopes.items():
        close(found[name], 3 * slope.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gradients_of_parameters_and_inputs(mesh: ml.Mesh) -> None:
    compiled, inputs = mlp(ml.JaxBackend(mesh))
    params = compiled.randomize_params(1)
    host = {name: jnp.asarray(x.numpy()) for name, x in params.items()}

    def by_hand(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = jax.nn.gelu(x @ p["up.weight"].T + p["up.bias"], approximate=False)
        return jnp.sin(h @ p["down.weight"].T + p["down.bias"]).sum()

    pure = compiled.as_jax()

    def ours(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.sin(pure(p, {"x": x})["y"]).sum()

    x = jnp.asarray(inputs["x"].numpy())
    expected = jax.value_and_grad(by_hand, argnums=(0, 1))(host, x)
    for found in (
        jax.value_and_grad(ours, argnums=(0, 1))(params.jax(), x),
        jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))(params.jax(), x),
    ):
        jax.tree.map(close, found, expected)


@pytest.mark.slow
def test_gradient_against_differences() -> None:
    with jax.enable_x64(True):
        compiled, inputs = mlp(ml.JaxBackend(ml.Mesh(tensor=2), dtype="float64"))
        pure, params = compiled.as_jax(), compiled.randomize_params(1).jax()
        direction = jax.tree.map(lambda x: jnp.ones_like(x) / x.size, params)

        def along(step: float) -> jax.Array:
            moved = jax.tree.map(lambda x, d: x + step * d, params, direction)
            return pure(moved, inputs)["y"].sum()

        gradient = jax.grad(lambda p: pure(p, inputs)["y"].sum())(params)
        slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), gradient, direction)))
        step = 1e-5
        difference = (along(step) - along(-step)) / (2 * step)
        assert difference.dtype == np.float64
        rtol, atol = DIFFERENCES
        np.testing.assert_allclose(slope, difference, rtol=rtol, atol=atol)


@pytest.mark.slow
def test_xlas_own_partitioner_is_taken_where_it_was_asked_for() -> None:
    mesh, loss = ml.Mesh(data=4, tensor=2), {}
    for strategy in ("shard_map", "gspmd"):
        compiled, inputs = small_gpt(ml.JaxBackend(mesh, pjit_lowering_strategy=strategy))
        pure, params = compiled.as_jax(), compiled.randomize_params(1).jax()
        step = jax.value_and_grad(lambda p, pure=pure, inputs=inputs: pure(p, inputs)["loss"])
        forward_and_backward = str(jax.make_jaxpr(step)(params))
        assert ("shard_map" in forward_and_backward) is (strategy == "shard_map")
        assert ("sharding_constraint" in forward_and_backward) is (strategy == "gspmd")
        loss[strategy] = jax.jit(step)(params)
    jax.tree.map(close, loss["gspmd"], loss["shard_map"])


def test_uneven_parameters_pass_through() -> None:
    model = ml.Linear(10, sharding={"weight": P("data", None)})
    compiled = ml.compile(model, ml.JaxBackend(ml.Mesh(data=4)), shapes={"input": (3, 5)})
    params, x = compiled.randomize_params(), jnp.arange(15.0).reshape(3, 5)
    pure = compiled.as_jax()
    slopes = jax.jit(jax.grad(lambda p: pure(p, {"input": x})["output"].sum()))(params.jax())
    close(slopes["weight"], np.tile(np.arange(15.0).reshape(3, 5).sum(0), (10, 1)))
    close(pure(params, {"input": x})["output"], compiled.evaluate(params, {"input": x})["output"])


def test_several_programs_are_no_pure_function() -> None:
    model = ml.Model()
    model += ml.Linear(3, device_id=1)
    model += ml.Linear(2, device_id=0)
    compiled = ml.compile(model, ml.JaxBackend(ml.Mesh(data=2)), shapes={"input": (4, 5)})
    with pytest.raises(ml.BackendError) as caught:
        compiled.as_jax()(compiled.randomize_params(), {"input": jnp.ones((4, 5))})
    assert str(caught.value) == (
        "model runs as 2 programs on parts of the mesh and is no single function of JAX; call "
        "evaluate(), or remove device_id, Pipeline and model.stage"
    )


@pytest.mark.slow
def _of_weights(tree: dict[str, Any], weight: Any, other: Any) -> Any:
    """Return a tree of the form of one, with one value for weights and another for the rest."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: weight if path[0].key.endswith("weight") else other, tree
    )


@pytest.mark.parametrize("form", [dict, lambda tree: tree], ids=["dicts", "parameters"])
@pytest.mark.parametrize("is_function", [False, True])
def test_masks_and_labels_of_optax(form: Callable[[Any], Any], is_function: bool) -> None:
    """As dicts they go with dicts, as functions or trees of the same form with `Parameters`."""
    model = ml.Model()
    model |= ml.Linear(3, name="l")(input="x", output="y")
    compiled = ml.compile(model, ml.JaxBackend(ml.Mesh(data=2)), shapes={"x": (4, 2)})
    params = form(compiled.randomize_params())
    inputs = {"x": np.ones((4, 2), np.float32)}
    _, gradients = compiled.evaluate(params, inputs, {"y": np.ones((4, 3), np.float32)})
    weights = partial(_of_weights, weight="trained", other="still")
    labels = weights if is_function else weights(params)
    optimizer = optax.multi_transform(
        {"trained": optax.sgd(0.5), "still": optax.set_to_zero()}, labels
    )
    updates, _ = optimizer.update(form(gradients), optimizer.init(params), params)
    changed = optax.apply_updates(params, updates)
    assert type(changed) is type(params)
    np.testing.assert_array_equal(changed["l.bias"].numpy(), params["l.bias"].numpy())
    expected = params["l.weight"].numpy() - 0.5 * gradients["l.weight"].numpy()
    np.testing.assert_allclose(changed["l.weight"].numpy(), expected, *TOLERANCE["float32"])


@pytest.mark.slow
def test_optax_in_one_jitted_step() -> None:
    compiled, inputs = small_gpt(ml.JaxBackend(ml.Mesh(data=2, tensor=2)))
    pure, optimizer = compiled.as_jax(), optax.adamw(1e-2)

    @jax.jit
    def step(params, state, inputs):
        loss, gradients = jax.value_and_grad(lambda p: pure(p, inputs)["loss"])(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = compiled.randomize_params().jax()
    state = optimizer.init(params)
    losses = []
    for _ in range(8):
        params, state, loss = step(params, state, inputs)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.5
    before = compiled.randomize_params()["gpt.block0.attn.q.weight"]
    assert params["gpt.block0.attn.q.weight"].sharding.is_equivalent_to(before.jax().sharding, 2)


def test_an_equinox_module_around_it() -> None:
    equinox = pytest.importorskip("equinox")
    compiled, _ = mlp(ml.JaxBackend(ml.Mesh(data=2)))
    pure = compiled.as_jax()

    class Wrapped(equinox.Module):
        params: dict
        scale: jax.Array

        def __call__(self, x):
            return self.scale * pure(self.params, {"x": x})["y"]

    module = Wrapped(compiled.randomize_params().jax(), jnp.float32(2))
    x = jnp.ones((8, 6))
    loss, slopes = equinox.filter_jit(
        equinox.filter_value_and_grad(lambda module, x: module(x).sum())
    )(module, x)
    expected = compiled.evaluate(module.params, {"x": x})["y"].numpy().sum()
    close(loss, 2 * expected)
    close(slopes.scale, expected)


def test_dropout_has_one_mask_for_value_and_gradient() -> None:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model += ml.Dropout(rate=0.5)(output="y")
    compiled = ml.compile(model, ml.JaxBackend(), shapes={"x": (4, 8)})
    params, x = compiled.randomize_params().jax(), jnp.ones((4, 8))
    pure = compiled.as_jax()
    values, back = jax.vjp(lambda p: pure(p, {"x": x}, seed=5)["y"], params)
    (slopes,) = back(jnp.ones_like(values))
    close(slopes["up.bias"], 2 * (np.asarray(values) != 0).sum(0))
    assert (np.asarray(values) != np.asarray(pure(params, {"x": x}, seed=6)["y"])).any()
    for same in (np.uint32(5), jnp.asarray(5)):
        close(pure(params, {"x": x}, seed=same)["y"], values)
    close(jax.jit(lambda seed: pure(params, {"x": x}, seed)["y"])(5), values)


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, True, np.int64(-1)])
def test_a_seed_has_to_fit(seed: object) -> None:
    compiled, inputs = mlp(ml.JaxBackend())
    with pytest.raises(ml.OptionError, match=r"seed=.* is not an integer in \[0, 2\*\*32\)"):
        compiled.as_jax()(compiled.randomize_params(), inputs, seed=seed)


def test_names_are_checked() -> None:
    compiled, inputs = mlp(ml.JaxBackend())
    pure, params = compiled.as_jax(), compiled.randomize_params()
    with pytest.raises(
        ml.GraphError, match=r"inputs given to the function of as_jax are 'z'; .*'x'"
    ):
        pure(params, {"z": inputs["x"]})
    with pytest.raises(ml.GraphError, match=r"parameters given to .* are none; the model has 'up"):
        pure({}, inputs)
