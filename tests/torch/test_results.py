"""Results of a program: no two of them are one tensor, nor one that was passed in and is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.ir import Builder
from mithril.types import DType, TensorType
from mithril_torch.program.module import write

from tests.engine.programs import program_of

add_numbers = ml.jit(lambda a, c: (a + 1, c + 2), donate=("a", "c"))
add_up = ml.jit(lambda a, c: a + c, donate=("a",))
same = ml.define_op(
    "results.same", shapes=lambda x: x, rule="elementwise",
    kernels={"torch": lambda x: x, "numpy": lambda x: x},
)  # fmt: skip


def alias(x: Any) -> tuple[Any, Any]:
    y = x * 2
    return y, mnp.stop_gradient(mnp.stop_gradient(y))


def handed_on(x: Any) -> tuple[Any, Any]:
    """A loop that leaves one of its carries as it is."""
    y = x * 2
    _, kept = ml.scan(lambda carry, i: ((carry[0] + 1, carry[1]), None), (x, y), length=2)[0]
    return y, kept


def exchanged(x: Any) -> tuple[Any, Any]:
    """A loop that makes two carries of one."""
    a, b = ml.scan(lambda carry, i: ((carry[1], carry[1]), None), (x, x * 2), length=3)[0]
    return a, b


CASES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "the same twice": lambda x: (x * 2,) * 2,
    "an alias": alias,
    "an input twice": lambda x: (x, x),
    "an input and an alias of it": lambda x: (x, mnp.stop_gradient(x)),
    "one constant twice": lambda x: (mnp.zeros(3) + 1, mnp.zeros(3) + 1),
    "a carry that is handed on": handed_on,
    "carries that are one": exchanged,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=str)
def test_each_result_can_be_given_up(name: str, mesh: ml.Mesh) -> None:
    expected = add_numbers(*ml.jit(CASES[name])(ml.NumpyBackend().ones(3)))
    x = ml.TorchBackend(mesh, device="cpu").ones(3)
    found = add_numbers(*ml.jit(CASES[name])(x))
    for array, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array.numpy(), right.numpy())
    np.testing.assert_array_equal(x.numpy(), np.ones(3))


@pytest.mark.parametrize("function", [lambda x: (x, x * 2), lambda x: (same(x), x * 2)])
def test_what_was_passed_in_stays_when_what_came_out_is_given_up(function: Any) -> None:
    x = ml.TorchBackend(device="cpu").ones(3)
    y, _ = ml.jit(function)(x)
    assert y.torch().data_ptr() == x.torch().data_ptr()  # no copy is made
    assert add_up(y, x).numpy().tolist() == [2, 2, 2]
    assert x.numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize(("donate", "returned"), [((), "x.view_as(x)"), ((0,), "x")])
def test_an_input_that_is_given_up_is_returned_as_it_is(
    donate: tuple[int, ...], returned: str
) -> None:
    """That takes no time of a call."""
    builder = Builder()
    x = builder.input(TensorType((3,), DType.float32), "x")
    text = write(program_of(ml.Mesh(), builder.build({"y": x})), donate=donate).text
    assert f"    {returned},  # y: float32[3]\n" in text
