"""Compiled models as modules of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P

from tests.jax.models import TARGET, TOKENS, mlp, small_gpt
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
GRID = ml.Mesh(data=2, tensor=2)
OPENED: dict[str, Callable[[], ml.Backend]] = {
    "one device": ml.TorchBackend,
    "lockstep": lambda: ml.TorchBackend(GRID, executor="lockstep"),
    "workers": lambda: ml.TorchBackend(GRID),
}
X = torch.arange(48.0).reshape(8, 6) / 48


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


@pytest.fixture(params=list(OPENED))
def backend(request: pytest.FixtureRequest) -> ml.Backend:
    return OPENED[request.param]()


def two_layers(backend: ml.Backend, rate: float = 0.0) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="x", output="h")
    if rate:
        model += ml.Dropout(rate=rate)
    model += ml.Linear(10, name="down")(output="y")
    return ml.compile(model, backend, shapes={"x": (8, 6)})


def by_hand(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The model of `mlp` in PyTorch, with the module's parameters."""
    h = torch.nn.functional.gelu(torch.nn.functional.linear(x, module.up.weight, module.up.bias))
    return torch.nn.functional.linear(h, module.down.weight, module.down.bias)


def train_by_hand(steps: int) -> list[float]:
    """Losses of AdamW with a cosine schedule on NumPy, the optimizer being PyTorch's own."""
    compiled, inputs = small_gpt(ml.NumpyBackend())
    weights = {
        name: torch.nn.Parameter(torch.from_numpy(x.numpy().copy()))
        for name, x in compiled.randomize_params().items()
    }
    optimizer, schedule = optimizers(list(weights.values()), steps)
    losses = []
    for _ in range(steps):
        params = {n: compiled.backend.array(w.detach().numpy()) for n, w in weights.items()}
        outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
        for name, weight in weights.items():
            weight.grad = torch.from_numpy(slopes[name].numpy().copy())
        optimizer.step()
        schedule.step()
        losses.append(float(outputs["loss"]))
    return losses


def optimizers(weights, steps: int):
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


# ------------------------------------------------------------------ training


def test_an_optimizer_and_a_schedule_train_it(backend: ml.Backend) -> None:
    compiled, _ = small_gpt(backend)
    module, losses = compiled.as_module(), []
    optimizer, schedule = optimizers(module.parameters(), 6)
    for _ in range(6):
        optimizer.zero_grad()
        loss = module(torch.from_numpy(TOKENS), target=torch.from_numpy(TARGET))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    close(losses, train_by_hand(6))
    assert losses[-1] < losses[0] - 0.5


def test_it_equals_evaluate(backend: ml.Backend) -> None:
    compiled, inputs = small_gpt(backend)
    params = compiled.randomize_params(3)
    outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
    module = compiled.as_module(params)
    loss = module(**inputs)  # Mithril's arrays, as they lie
    (3 * loss).backward()
    close(loss.detach(), outputs["loss"])
    assert set(slopes) == {name for name, _ in module.named_parameters()}
    for name, weight in module.named_parameters():
        close(weight.grad, 3 * slopes[name].numpy())


def test_parameters_that_were_passed_in_are_copied(backend: ml.Backend) -> None:
    compiled, _ = mlp(backend)
    params = compiled.randomize_params()
    before = params["up.weight"].numpy().copy()
    with torch.no_grad():
        compiled.as_module(params).up.weight.zero_()
    close(params["up.weight"], before)


# ------------------------------------------------------------------ gradients


def test_gradients_of_parameters_and_inputs(backend: ml.Backend) -> None:
    compiled, _ = mlp(backend)
    module = compiled.as_module()
    found, expected = [], []
    for function, slopes in ((module, found), (lambda x: by_hand(module, x), expected)):
        x = X.clone().requires_grad_()
        module.zero_grad()
        function(x).sin().sum().backward()
        slopes += [x.grad, *(weight.grad for weight in module.parameters())]
    for one, other in zip(found, expected, strict=True):
        close(one, other)


def test_it_is_a_part_of_a_larger_module(backend: ml.Backend) -> None:
    compiled, _ = mlp(backend)
    torch.manual_seed(0)
    first, last = torch.nn.Linear(3, 6), torch.nn.Linear(4, 1)
    module = torch.nn.Sequential(first, compiled.as_module(), last)
    x = torch.randn(8, 3)
    module(x).sum().backward()
    found = [weight.grad.clone() for weight in module.parameters()]
    module.zero_grad()
    last(by_hand(module[1], first(x))).sum().backward()
    for one, weight in zip(found, module.parameters(), strict=True):
        close(one, weight.grad)


def test_gradients_accumulate_and_can_be_asked_for_again() -> None:
    compiled, inputs = small_gpt(ml.TorchBackend())
    module = compiled.as_module()
    module(**inputs).backward()
    once = module.gpt.head.weight.grad.clone()
    loss = module(**inputs)
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    close(module.gpt.head.weight.grad, 4 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_parameter_changed_before_a_second_backward_is_noticed() -> None:
    compiled, inputs = small_gpt(ml.TorchBackend())
    module = compiled.as_module()
    loss = module(**inputs)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        module.gpt.head.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_equal_gradients_have_memory_of_their_own() -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="one")(input="x", output="a")
    model |= ml.Linear(4, name="two")(input="x", output="b")
    model |= ml.Add()(inputs=["a", "b"], output="y")
    module = ml.compile(model, ml.TorchBackend(), shapes={"x": (8, 6)}).as_module()
    slope = torch.ones(8, 4)
    module(X).backward(slope)
    pointers = {weight.grad.data_ptr() for weight in module.parameters()}
    assert len(pointers) == 4
    expected = module.two.bias.grad.clone()
    module.one.bias.grad.zero_()
    close(module.two.bias.grad, expected)


def test_a_gradient_that_passes_through_is_no_alias() -> None:
    model = ml.Model()
    model |= ml.Add()(inputs=["x", "z"], output="y")
    module = ml.compile(model, ml.TorchBackend(), shapes={"x": (3,), "z": (3,)}).as_module()
    x, z, slope = (torch.ones(3).requires_grad_() for _ in range(3))
    module(x, z).backward(slope.detach())
    x.grad.zero_()
    close(z.grad, np.ones(3))
    close(slope.detach(), np.ones(3))


def test_several_outputs_and_one_of_them_differentiated(backend: ml.Backend) -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="up")(input="x", output="h")
    model |= ml.Gelu()(input="h", output="y")
    model |= ml.Linear(3, name="aside")(input="x", output="z")
    model |= ml.CrossEntropy()(input="z", target="target", output="loss")
    target = torch.arange(8) % 3
    compiled = ml.compile(
        model, backend, shapes={"x": (8, 6), "target": ml.TensorSpec((8,), "int64")}
    )
    module = compiled.as_module()
    outputs = module(X, target)
    assert set(outputs) == {"y", "loss"}
    outputs["loss"].backward()
    close(module.up.weight.grad, np.zeros((4, 6)))
    loss = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(X, module.aside.weight, module.aside.bias), target
    )
    (expected,) = torch.autograd.grad(loss, module.aside.weight)
    close(module.aside.weight.grad, expected)


def test_frozen_parameters_and_no_grad() -> None:
    compiled, inputs = small_gpt(ml.TorchBackend())
    module = compiled.as_module()
    module.gpt.embed.requires_grad_(False)
    module(**inputs).backward()
    assert module.gpt.embed.weight.grad is None
    assert module.gpt.head.weight.grad is not None
    with torch.no_grad():
        assert not module(**inputs).requires_grad
    with torch.inference_mode():
        module(**inputs)
    module.requires_grad_(False)
    assert not module(**inputs).requires_grad


@ml.layer
def best(input):
    """Return the place of the largest entry of each row."""
    return ml.numpy.argmax(input, axis=1)


def test_an_integer_output_has_no_gradient() -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="up")(input="x", output="h")
    model |= ml.Relu()(input="h", output="y")
    model |= best()(input="h", output="best")
    module = ml.compile(model, ml.TorchBackend(), shapes={"x": (8, 6)}).as_module()
    found = module(X)
    assert found["y"].requires_grad
    assert not found["best"].requires_grad
    assert torch.equal(
        found["best"],
        torch.nn.functional.linear(X, module.up.weight, module.up.bias).argmax(1).int(),
    )


def test_uneven_parameters_pass_through(backend: ml.Backend) -> None:
    layer = ml.Linear(5, sharding={"weight": P(backend.mesh.names or None, None)})
    module = ml.compile(layer, backend, shapes={"input": (3, 5)}).as_module()
    x = torch.arange(15.0).reshape(3, 5)
    module(x).sum().backward()
    close(module.weight.grad, np.tile(x.sum(0), (5, 1)))


# ------------------------------------------------------------------ dropout


def test_seeds_count_on_as_in_a_loop() -> None:
    compiled = two_layers(ml.TorchBackend(), rate=0.5)
    params = compiled.randomize_params()
    module = compiled.as_module(params, seed=5)
    for seed in (5, 6, 7):
        assert module.seed == seed
        outputs, slopes = compiled.evaluate(params, {"x": X}, {"y": torch.ones(8, 10)}, seed=seed)
        module.zero_grad()
        found = module(X)
        found.backward(torch.ones(8, 10))
        close(found.detach(), outputs["y"])
        close(module.down.weight.grad, slopes["down.weight"])


def test_evaluation_mode_has_no_dropout(backend: ml.Backend) -> None:
    compiled = two_layers(backend, rate=0.5)
    module = compiled.as_module().eval()
    h = torch.nn.functional.linear(X, module.up.weight, module.up.bias)
    expected = torch.nn.functional.linear(h, module.down.weight, module.down.bias)
    found = module(X)
    close(found.detach(), expected.detach())
    assert module.seed == 0
    found.sum().backward()
    close(module.down.bias.grad, np.full(10, 8.0))
    assert not torch.allclose(module.train()(X), expected)


def test_a_model_compiled_for_inference_has_no_dropout_in_training_either() -> None:
    model = ml.Model()
    model |= ml.Dropout(rate=0.5)(input="x", output="y")
    compiled = ml.compile(model, ml.TorchBackend(), shapes={"x": (8, 6)}, inference=True)
    close(compiled.as_module()(X), X)


# ------------------------------------------------------------------ as PyTorch's modules are


def test_state_dict_has_mithrils_names_and_comes_back(tmp_path: Path, backend: ml.Backend) -> None:
    compiled, _ = mlp(backend)
    module = compiled.as_module(compiled.randomize_params(1))
    assert set(module.state_dict()) == set(compiled.parameters)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = compiled.as_module()
    assert not torch.equal(other.up.weight, module.up.weight)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(X), module(X))


def test_a_copy_trains_by_itself() -> None:
    compiled, _ = mlp(ml.TorchBackend())
    module = compiled.as_module()
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.down.weight.zero_()
        other.down.bias.zero_()
    close(other(X).detach(), np.zeros((8, 4)))
    assert module(X).abs().sum() > 0
    average = torch.optim.swa_utils.AveragedModel(module)
    average.update_parameters(module)
    close(average(X).detach(), module(X).detach())


def test_functional_call_takes_other_parameters() -> None:
    compiled, _ = mlp(ml.TorchBackend())
    module = compiled.as_module()
    zeros = {name: torch.zeros_like(x) for name, x in module.named_parameters()}
    close(torch.func.functional_call(module, zeros, (X,)), np.zeros((8, 4)))


def test_autocast_leaves_plans_alone() -> None:
    compiled, _ = mlp(ml.TorchBackend())
    module = compiled.as_module()
    with torch.autocast("cpu"):
        found = module(X)
    assert found.dtype == torch.float32
    close(found.detach(), by_hand(module, X).detach())


def test_a_new_shape_is_planned_for() -> None:
    compiled, _ = mlp(ml.TorchBackend())
    module = compiled.as_module()
    close(module(X[:3]).detach(), module(X).detach()[:3])


def test_batch_split_inputs_train_as_they_lie() -> None:
    backend = ml.TorchBackend(ml.Mesh(data=4))
    compiled, inputs = small_gpt(backend)
    module = compiled.as_module()
    split = module(**inputs)
    whole = module(**{name: x.torch() for name, x in inputs.items()})
    close(split.detach(), whole.detach())


def test_it_prints_its_parameters() -> None:
    compiled, _ = mlp(ml.TorchBackend())
    assert "(up): Scope(weight: (16, 6), bias: (16,))" in repr(compiled.as_module())
