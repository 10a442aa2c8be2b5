"""Products that oneDNN computes: the same numbers, which products they are, and on what machines."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
import torch
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.ir import Builder, Graph
from mithril.ops.linalg import Einsum
from mithril.testing.arrays import floats
from mithril.testing.evaluate import apply
from mithril.types import DType, TensorType
from mithril_torch import engine as engines
from mithril_torch.kernels.linalg import onednn_product
from mithril_torch.program import onednn
from mithril_torch.program.fusing import EinsumAdd, EinsumInto, OneDnnProduct
from mithril_torch.program.onednn import is_onednn_faster, use_onednn

from tests.tolerances import TOLERANCE
from tests.torch.test_primitives import run

SIZES = {"a": 6, "b": 5, "c": 4, "d": 3, "e": 2}
SMALL = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=3)
HAS_ONEDNN = torch.backends.mkldnn.is_available()
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="PyTorch is built without oneDNN")


def operands(equation: str, **sizes: int) -> list[np.ndarray]:
    left, right = equation.partition("->")[0].split(",")
    known = SIZES | sizes
    arrays = [floats(*(known[c] for c in term), seed=len(term)) for term in (left, right)]
    return [array.astype(np.float32) for array in arrays]


@needs_onednn
@pytest.mark.parametrize("size", [1, 6, 40])
@pytest.mark.parametrize(
    "equation",
    ["ab,cb->ac", "ab,bc->ac", "ba,bc->ac", "ba,cb->ac", "ba,bc->ca", "abc,dc->abd", "abc,cd->dab",
     "ab,cdb->acd", "abc,bcd->ad", "bac,bd->acd", "abc,dbc->da"],
)  # fmt: skip
def test_products_equal_those_of_numpy(equation: str, size: int) -> None:
    """Whichever operand lies turned around, and whichever of both is the smaller."""
    op, arrays = Einsum(equation), operands(equation, a=size)
    (wanted,) = apply(op, *arrays)
    (found,) = run(OneDnnProduct(op), *arrays)
    np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"])


@needs_onednn
@pytest.mark.parametrize("equation", ["ab,cb->ac", "ba,bc->ac", "abc,dc->abd"])
def test_a_vector_is_added(equation: str) -> None:
    arrays = operands(equation)
    (product,) = apply(Einsum(equation), *arrays)
    bias = floats(product.shape[-1], seed=9).astype(np.float32)
    (found,) = run(OneDnnProduct(EinsumAdd(equation)), *arrays, bias)
    np.testing.assert_allclose(found, product + bias, *TOLERANCE["float32"])


def test_the_smaller_operand_is_copied() -> None:
    """Of the gradient of a weight both lie turned around."""
    op = OneDnnProduct(Einsum("ba,bc->ac"))
    wide = [TensorType((512, 1024), DType.float32), TensorType((512, 256), DType.float32)]
    assert onednn_product(op, wide) == "multiply({1}.t(), {0}.t()).t().contiguous()"
    assert onednn_product(op, wide[::-1]) == "multiply({0}.t(), {1}.t())"
    assert onednn_product(op, wide).into == "{out}.copy_(multiply({1}.t(), {0}.t()).t())"


def test_a_sum_grows_in_its_place() -> None:
    types = [TensorType(shape, DType.float32) for shape in ((512, 256), (512, 256), (256, 256))]
    text = onednn_product(OneDnnProduct(EinsumInto("ba,bc->ac")), types)
    assert text == "{2}.add_(multiply({0}.t(), {1}.t()))"


# ---------------------------------------------------------------- which products


def product_of(equation: str, *shapes: tuple[int, ...], dtype: DType = DType.float32) -> Graph:
    builder = Builder()
    inputs = [builder.input(TensorType(shape, dtype), name) for shape, name in zip(shapes, "xy")]  # noqa: B905
    (made,) = builder.apply(Einsum(equation), *inputs)
    return builder.build({"z": made})


@pytest.mark.parametrize(
    ("equation", "shapes", "dtype", "is_chosen"),
    [
        ("ab,cb->ac", [(128, 128), (128, 128)], "float32", True),
        ("ab,cb->ac", [(128, 127), (128, 127)], "float32", False),  # small
        ("ab,cb->ac", [(7, 1024), (1024, 1024)], "float32", False),  # few rows
        ("ab,cb->ac", [(1024, 1024), (7, 1024)], "float32", False),  # few columns
        ("ab,cb->ac", [(128, 128), (128, 128)], "float64", False),  # oneDNN has none
        ("ab,cb->ac", [(128, 128), (128, 128)], "bfloat16", False),  # oneDNN's already
        ("eab,ecb->eac", [(4, 128, 128), (4, 128, 128)], "float32", False),  # many products
    ],
)
def test_which_products_are_chosen(equation, shapes, dtype, is_chosen) -> None:
    (node,) = use_onednn(product_of(equation, *shapes, dtype=DType(dtype))).nodes
    assert isinstance(node.op, OneDnnProduct) == is_chosen


# ---------------------------------------------------------------- which machines


@pytest.mark.parametrize(
    ("maker", "capability", "libraries", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("GenuineIntel", "AVX512", True, False),
        ("AuthenticAMD", "AVX2", True, False),
        ("AuthenticAMD", "AVX512", False, False),
    ],
)
def test_which_machines_it_is_for(monkeypatch, maker, capability, libraries, expected) -> None:
    monkeypatch.setattr(onednn, "describe_processor", lambda: f"vendor_id\t: {maker}\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: libraries)
    assert is_onednn_faster.__wrapped__() == expected


def test_the_system_names_the_processor() -> None:
    assert onednn.describe_processor().strip()


# ---------------------------------------------------------------- whole programs


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have oneDNN compute every product of float32, on any machine."""
    monkeypatch.setattr(engines, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(onednn, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(onednn, "LEAST_ROWS", 0)


def sides(shapes: dict, **options) -> list[tuple]:
    found = []
    for backend in (ml.NumpyBackend(), ml.TorchBackend(device="cpu", **options)):
        compiled = ml.compile(with_loss(gpt(16, SMALL)), backend, shapes=shapes)
        rng = np.random.default_rng(0)
        inputs = {name: rng.integers(0, 16, (3, 4)).astype(np.int32) for name in shapes}
        found.append(
            (compiled, compiled.evaluate(compiled.randomize_params(0), inputs, {"loss": 1.0}))
        )
    return found


@needs_onednn
@pytest.mark.parametrize("options", [{}, {"allow_tf32": False}])
def test_gradients_of_a_model_equal_those_of_numpy(everywhere, options) -> None:
    shapes = dict.fromkeys(("tokens", "target"), ml.TensorSpec((3, 4), "int32"))
    (_, (losses, wanted)), (compiled, (outputs, found)) = sides(shapes, **options)
    assert compiled.code().count("multiply(") > 20
    np.testing.assert_allclose(
        outputs["loss"].numpy(), losses["loss"].numpy(), *TOLERANCE["float32"]
    )
    for name, gradient in wanted.items():
        np.testing.assert_allclose(
            found[name].numpy(), gradient.numpy(), *TOLERANCE["float32"], err_msg=name
        )


def test_where_it_is_not_available_pytorch_multiplies(monkeypatch) -> None:
    from mithril_torch.program.runtime_library.product import multiply

    x, weight, bias = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert torch.equal(multiply(x, weight, bias), torch.nn.functional.linear(x, weight, bias))
