"""Compiled models as modules where users of PyTorch have set something: a compiler, a device."""

from __future__ import annotations

from collections.abc import Iterator

import mithril as ml
import pytest
import torch

X = torch.arange(18.0).reshape(6, 3) / 18


def module_of(*, has_loss: bool) -> torch.nn.Module:
    """A module with dropout; one with a loss runs forward and backward in one program."""
    model = ml.Model()
    model |= ml.Linear(4, name="up")(input="x", output="h")
    model += ml.Dropout(rate=0.5)
    model += ml.CrossEntropy()(target="y", output="loss") if has_loss else ml.Relu()(output="y")
    backend = ml.TorchBackend(device="cpu")
    shapes = {"x": (6, 3), "y": backend.zeros(6, dtype="int32")} if has_loss else {"x": (6, 3)}
    return ml.compile(model, backend, shapes=shapes).as_module(seed=3)


def step(module: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return a loss and the gradients of the parameters."""
    module.zero_grad()
    loss = module(*inputs).sum() * 2
    loss.backward()
    return [loss.detach(), *(x.grad for x in module.parameters())]


@pytest.fixture(params=["with a loss", "without"])
def case(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    has_loss = request.param == "with a loss"
    return module_of(has_loss=has_loss), [X, torch.arange(6) % 4] if has_loss else [X]


@pytest.fixture
def no_graphs_stay() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler has some of its own
@pytest.mark.usefixtures("no_graphs_stay")
@pytest.mark.parametrize("is_whole_step", [False, True])
def test_torch_compile_leaves_the_plan_alone(case, is_whole_step: bool) -> None:
    module, inputs = case
    expected = step(module, inputs)
    module.seed = 3
    if is_whole_step:
        found = torch.compile(step, backend="aot_eager")(module, inputs)
    else:
        found = step(torch.compile(module, backend="aot_eager"), inputs)
    assert all(map(torch.equal, found, expected))


def test_a_default_device_changes_nothing(case) -> None:
    module, inputs = case
    expected = step(module, inputs)
    module.seed = 3
    with torch.device("meta"):
        found = step(module, inputs)
    assert all(map(torch.equal, found, expected))
