"""Long short-term memory by PyTorch's kernels, and what the forward keeps for its gradient."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
import torch
from mithril.ir import Builder
from mithril.spi import ops
from mithril.testing.evaluate import apply as apply_with_numpy
from mithril.testing.evaluate import graph_of, type_of
from mithril.transform import differentiate
from mithril.types import DType, TensorType
from mithril_torch.program import runtime_library as library
from mithril_torch.program.kept_states import LstmGradientOfKept, LstmKeeping, keep_states

from tests.tolerances import TOLERANCE

SIZES = {"steps": 5, "batch": 3, "features": 4, "hidden": 6}


def draw(*, biases: bool = True, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    steps, batch, features, size = SIZES.values()
    shapes = [(steps, batch, features), (4, size, features), (4, size, size), *[(batch, size)] * 2]
    shapes += [(4, size)] * 2 * biases
    return [rng.standard_normal(shape) * 0.5 for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_both_ways_to_the_gradient_are_numpys(
    dtype: torch.dtype, biases: bool, reverse: bool, seed: int
) -> None:
    given, rng = draw(biases=biases, seed=seed), np.random.default_rng(seed)
    made = apply_with_numpy(ops.Lstm(reverse), *given)
    cotangents = [rng.standard_normal(x.shape) for x in made]
    wanted = apply_with_numpy(
        ops.LstmGradient(reverse), *given[:5], made[0], *cotangents, *given[5:]
    )
    own, g = ([torch.tensor(x).to(dtype) for x in some] for some in (given, cotangents))
    tolerance = TOLERANCE[str(dtype).removeprefix("torch.")]
    with torch.inference_mode():
        found = library.lstm(reverse, *own)
        *kept, more = library.lstm_keeping(reverse, *own)
        again = library.lstm_gradient(reverse, *own[:5], found[0], *g, *own[5:])
        once = library.lstm_gradient_of_kept(reverse, *own[:5], *kept, more, *g, *own[5:])
    assert (more is not None) == (dtype is torch.float32)
    for some, expected in ((found, made), (kept, made), (again, wanted), (once, wanted)):
        for x, y in zip(some, expected, strict=True):
            assert x.dtype == dtype
            np.testing.assert_allclose(x.double().numpy(), y, *tolerance)


@pytest.mark.parametrize("shape", [(5, 0, 4), (5, 3, 0)])
def test_nothing_to_read(shape: tuple[int, ...]) -> None:
    _, batch, features = shape
    given = [torch.zeros(*shape), torch.zeros(4, 6, features), torch.ones(4, 6, 6)]
    given += [torch.ones(batch, 6), torch.ones(batch, 6)]
    made = library.lstm(False, *given)
    expected = apply_with_numpy(ops.Lstm(False), *(x.numpy() for x in given))
    for x, y in zip(made, expected, strict=True):
        np.testing.assert_allclose(x.numpy(), y, *TOLERANCE["float32"])
    found = library.lstm_gradient(False, *given, made[0], *map(torch.ones_like, made))
    assert [x.shape for x in found] == [x.shape for x in given]


def joint_graph(reverse: bool):
    types = [type_of(x) for x in draw()]
    graph = graph_of(ops.Lstm(reverse), types)
    return differentiate(graph, ["y0"], [value.name for value in graph.inputs])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_program_with_the_gradient_runs_the_layer_once(reverse: bool) -> None:
    kinds = [type(node.op) for node in keep_states(joint_graph(reverse)).nodes]
    assert LstmKeeping in kinds
    assert LstmGradientOfKept in kinds
    assert ops.Lstm not in kinds
    assert ops.LstmGradient not in kinds


def test_a_gradient_of_other_operands_stays() -> None:
    builder, (_, batch, _, size) = Builder(), SIZES.values()
    inputs = [builder.input(type_of(x), f"x{at}") for at, x in enumerate(draw())]
    other = builder.input(TensorType((batch, size), DType.float64), "other")
    y, last, cell = builder.apply(ops.Lstm(False), *inputs)
    operands = (*inputs[:4], other, y, y, last, cell, *inputs[5:])
    made = builder.apply(ops.LstmGradient(False), *operands)
    graph = builder.build({"y": y, "dx": made[0]})
    assert [type(node.op) for node in keep_states(graph).nodes] == [ops.Lstm, ops.LstmGradient]


def test_a_step_learns_as_on_numpy() -> None:
    """In both directions, over two devices, with what two programs compute."""
    losses = []
    for backend in (ml.NumpyBackend(), ml.TorchBackend(ml.Mesh(data=2), executor="lockstep")):
        model = ml.Model(name="text")
        model |= ml.LSTM(6, num_layers=2, bidirectional=True, name="lstm")(input="x", output="y")
        model |= ml.Linear(1, name="head")(input="y", output="z")
        model |= ml.MeanSquaredError(name="mse")(input="z", target="target", output="loss")
        split = ml.P("data") if backend.mesh.size > 1 else ml.P()
        rng = np.random.default_rng(1)
        batch = {
            name: backend.array(rng.standard_normal(shape).astype(np.float32), sharding=split)
            for name, shape in (("x", (4, 5, 3)), ("target", (4, 5, 1)))
        }
        step = ml.train_step(model, backend, ml.optim.sgd(0.5), shapes=batch)
        state, found = step.init(seed=0), []
        for _ in range(4):
            state, metrics = step(state, batch)
            found.append(float(metrics["loss"].item()))
        losses.append(found)
    np.testing.assert_allclose(losses[1], losses[0], *TOLERANCE["float32"])
    assert losses[0][-1] < losses[0][0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
def test_torchs_compiler_compiles_it() -> None:
    found = []
    for backend in (ml.NumpyBackend(), ml.TorchBackend(jit=True)):
        compiled = ml.compile(ml.LSTM(3, name="lstm"), backend, shapes={"input": (2, 2, 3)})
        ones = {"output": backend.ones(2, 2, 3)}
        inputs = {"input": backend.ones(2, 2, 3)}
        _, gradients = compiled.evaluate(compiled.randomize_params(0), inputs, ones)
        found.append({name: x.numpy() for name, x in gradients.items()})
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, *TOLERANCE["float32"], err_msg=name)


def test_what_is_cut_inside_the_state_is_expanded() -> None:
    """A split of the hidden features leaves loops; gradients are those of one device."""
    values, found = draw()[0][:2].astype(np.float32), []
    for mesh in (ml.Mesh(), ml.Mesh(tensor=2)):
        backend = ml.TorchBackend(mesh, executor="lockstep")
        options = {"weight_shard_spec": [(None, 0, None)] * 2} if mesh.size > 1 else {}
        model = ml.LSTM(4, name="lstm", **options)
        compiled = ml.compile(model, backend, shapes={"input": (2, 3, 4)})
        ones = {"output": backend.ones(2, 3, 4)}
        inputs = {"input": backend.array(values)}
        _, gradients = compiled.evaluate(compiled.randomize_params(0), inputs, ones)
        found.append({name: x.numpy() for name, x in gradients.items()})
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, *TOLERANCE["float32"], err_msg=name)
