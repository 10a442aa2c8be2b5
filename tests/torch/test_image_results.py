"""How results lie with `memory_format="auto"`: in order, but for what a next call takes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
import torch
from torch.profiler import profile

from tests.tolerances import TOLERANCE

X, W = (2, 4, 6, 5), (4, 4, 3, 3)


def convolve(x: Any, w: Any) -> Any:
    return mnp.convolution(x, w, padding=1)


def looped(x: Any, w: Any) -> tuple[Any, ...]:
    last, passed = ml.scan(lambda c, _: (convolve(c, w), c), x, length=3)
    return last, passed, mnp.relu(last)


def moved(x: Any, w: Any) -> tuple[Any, ...]:
    """What PyTorch returns in the layout of the operand, or as a view of it."""
    y = convolve(x, w)
    return (
        y[:, :, 1:], y.reshape(2, 4, 30), y.reshape(2, 4, 5, 6), y.transpose(0, 1, 3, 2),
        mnp.softmax(y, 1), mnp.cumsum(y, 1), mnp.sum(y, (0, 2)), mnp.flip(y, 2), mnp.tril(y),
        mnp.sort(y, 1), mnp.stop_gradient(y), mnp.astype(y, "bfloat16"), y > 0,
    )  # fmt: skip


def repeated() -> ml.Model:
    block = ml.Model()
    block |= ml.Conv2d(4, kernel_size=3, padding=1, name="conv")(input="x", output="y")
    made = ml.Model()
    made |= ml.Repeat(block, 3, name="blocks")(input="x", output="y")
    return made


def arrays(backend: ml.Backend) -> tuple[ml.Array, ml.Array]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in (X, W))
    return backend.array(x), backend.array(w / 6)


@pytest.mark.parametrize("function", [looped, moved])
def test_results_lie_in_order(function: Callable[..., tuple[Any, ...]]) -> None:
    torch_backend = ml.TorchBackend(device="cpu")
    expected = ml.jit(function)(*arrays(ml.NumpyBackend()))
    for at, (found, right) in enumerate(
        zip(ml.jit(function)(*arrays(torch_backend)), expected, strict=True)
    ):
        assert found.torch().is_contiguous(), at
        rtol, atol = TOLERANCE.get(str(right.dtype), (0, 0))
        one, other = (x.numpy().astype(np.float32) for x in (found, right))
        np.testing.assert_allclose(one, other, rtol, atol)


def test_results_and_gradients_of_a_loop_lie_in_order() -> None:
    results = []
    for backend in (ml.NumpyBackend(), ml.TorchBackend(device="cpu")):
        x, _ = arrays(backend)
        compiled = ml.compile(repeated(), backend, shapes={"x": X})
        params = compiled.randomize_params(seed=0)
        outputs, gradients = compiled.evaluate(params, {"x": x}, {"y": np.ones(X, np.float32)})
        results.append({**outputs, **gradients})
    expected, found = results
    for name, right in expected.items():
        assert found[name].torch().is_contiguous(), name
        np.testing.assert_allclose(found[name].numpy(), right.numpy(), *TOLERANCE["float32"])


def descend(w: Any, frozen: Any, x: Any) -> tuple[Any, ...]:
    """A step by hand, of two convolutions, one of which stays as it is."""
    slope = ml.grad(lambda w: (convolve(convolve(x, frozen), w) ** 2).mean())(w)
    return w - 0.1 * slope, frozen


def count_copies(step: Callable[[], object]) -> int:
    """Return how many weights are copied, but for what PyTorch does inside of gradients."""
    with profile(record_shapes=True) as profiled:
        step()
    return sum(
        event.name == "aten::copy_"
        and event.input_shapes[0] == list(W)
        and not is_inside(event, "aten::convolution_backward")
        for event in profiled.events()
    )


def is_inside(event: Any, name: str) -> bool:
    while event is not None and event.name != name:
        event = event.cpu_parent
    return event is not None


@pytest.mark.parametrize(("donate", "copies"), [(("w", "frozen"), 0), ((), 2)])
def test_a_step_by_hand_keeps_what_is_given_up_as_it_is_laid_out(
    donate: tuple[str, ...], copies: int
) -> None:
    """Others are laid out in each step, and what is made of them is laid back.

    `frozen` is made of a filter that lay as convolutions want it from the start.
    """
    backend, plain = ml.TorchBackend(device="cpu"), ml.NumpyBackend()
    step, expected = ml.jit(descend, donate=donate), ml.jit(descend)
    (x, w), (y, v) = arrays(backend), arrays(plain)
    frozen, ice = w + 0, v + 0
    for _ in range(2):
        w, frozen = step(w, frozen, x)
        v, ice = expected(v, ice, y)
    np.testing.assert_allclose(w.numpy(), v.numpy(), *TOLERANCE["float32"])
    is_laid_out = w.torch().is_contiguous(memory_format=torch.channels_last)
    assert is_laid_out == bool(donate)
    assert count_copies(lambda: step(w, frozen, x)) == copies


def test_an_input_that_is_returned_is_not_copied() -> None:
    x, w = arrays(ml.TorchBackend(device="cpu"))
    _, same = ml.jit(lambda x, w: (convolve(x, w), w))(x, w)
    assert same.torch().data_ptr() == w.torch().data_ptr()
