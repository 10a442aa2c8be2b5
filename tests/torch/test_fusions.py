"""Fusions of elementwise ops and reductions: what is in one, and that its kernels compute the same."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.ir import Builder, Graph
from mithril.ir.graph import Phase
from mithril.ir.operand import apply
from mithril.ops.optimizer import AdamWStep
from mithril.types import DType, TensorType
from mithril_torch.program import fusions
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.program.fusion_text import write_fusion
from mithril_torch.program.fusions import Fusion, form_fusions
from mithril_torch.program.module import write
from mithril_torch.program.recompute import recompute_elementwise
from mithril_torch.program.runtime_library import fusions as running
from mithril_torch.program.runtime_library.loss import cross_entropy_gradient
from torch.fx.experimental.proxy_tensor import make_fx

from tests.profiles import scaled
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of PyTorch's own
SHAPE = (64, 96)
FUNCTIONS = (mnp.exp, mnp.tanh, mnp.sin, mnp.square, mnp.abs)


@pytest.fixture(scope="module")
def auto() -> ml.Backend:
    return ml.TorchBackend(device="cpu", jit="auto")


def rows(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def fusions_of(graph: Graph) -> list[Fusion]:
    return [node.op for node in graph.nodes if isinstance(node.op, Fusion)]


def agree(function: Any, backend: ml.Backend, *arrays: np.ndarray) -> None:
    """Compare a function, and its gradients, with NumPy's."""

    def loss(*given: Any) -> Any:
        return (function(*given) ** 2.0).sum()

    places = tuple(range(len(arrays)))
    found = []
    for on in (ml.NumpyBackend(), backend):
        passed = [on.array(x) for x in arrays]
        slopes = ml.jit(ml.grad(loss, argnums=places), backend=on)
        for _ in range(2):  # nothing that is kept was written over
            results = (ml.jit(function, backend=on)(*passed), *slopes(*passed))
        found.append([x.numpy() for x in results])
        for given_, x in zip(arrays, passed, strict=True):
            np.testing.assert_array_equal(x.numpy(), given_)
    for expected, x in zip(*found, strict=True):
        np.testing.assert_allclose(x, expected, *TOLERANCE["float32"])


# ------------------------------------------------------------------ what is in a fusion


def build(function: Any, *shapes: tuple[int, ...]) -> Graph:
    builder = Builder()
    types = (TensorType(shape, DType.float32) for shape in shapes)
    given_ = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
    return builder.build({"y": function(*given_)})


def test_products_stay_outside() -> None:
    graph = build(lambda x, y: mnp.tanh(mnp.exp(x @ y) + 1.0) @ y, SHAPE, (96, 96))
    formed = form_fusions(graph)
    (fusion,) = fusions_of(formed)
    assert [node.op.name for node in formed.nodes if node.op.name != "constant"] == [
        "einsum", "fusion", "einsum",
    ]  # fmt: skip
    assert {node.op.name for node in fusion.body.nodes} == {"constant", "exp", "add", "tanh"}


def test_a_fusion_that_saves_little_is_none() -> None:
    graph = build(lambda x: mnp.tanh(mnp.exp(x)), (4, 4))
    assert not fusions_of(form_fusions(graph))
    graph = build(lambda x: mnp.sin(mnp.tanh(mnp.exp(x))), (4, 4))  # but for two calls of kernels
    assert fusions_of(form_fusions(graph))
    assert fusions_of(form_fusions(build(lambda x: mnp.tanh(mnp.exp(x)), SHAPE)))


def test_one_elementwise_op_is_no_fusion() -> None:
    assert not fusions_of(form_fusions(build(mnp.exp, (1024, 1024))))


def test_a_fusion_ends_before_what_reads_it() -> None:
    """What is elementwise behind a product is another fusion than what is before it."""
    graph = build(lambda x: mnp.exp(mnp.tanh(mnp.sin(mnp.exp(x)) @ x.T)), (96, 96))
    assert len(fusions_of(form_fusions(graph))) == 2


def test_what_reads_the_same_is_in_one_fusion() -> None:
    def function(x: Any) -> Any:
        first, second = mnp.exp(x), mnp.tanh(x)
        return (first @ x) @ second

    (fusion,) = fusions_of(form_fusions(build(function, (96, 96))))
    assert len(fusion.body.outputs) == 2


def test_a_view_of_a_result_is_outside() -> None:
    graph = build(lambda x: mnp.tanh(mnp.exp(x)).reshape(96, 64), SHAPE)
    assert [node.op.name for node in form_fusions(graph).nodes] == ["fusion", "reshape"]


def names_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_what_is_in_no_fusion_stays_where_it_was() -> None:
    """A sum is the last that reads a large product; what it makes is read at the end."""
    builder = Builder()
    x = builder.input(TensorType((256, 256), DType.float32), "x")
    product = x @ x
    total = product.sum()
    graph = builder.build({"total": total, "y": (x @ x.T) @ x})
    assert names_of(form_fusions(graph)) == names_of(graph)


def test_a_fusion_runs_early_where_that_frees_memory() -> None:
    def build_on(late: Any) -> list[str]:
        builder = Builder()
        x = builder.input(TensorType((256, 256), DType.float32), "x")
        y = late(mnp.exp(x @ x))
        return names_of(form_fusions(builder.build({"y": y, "z": (x @ x.T) @ x})))

    sums = build_on(lambda x: mnp.tanh(x).sum(axis=0))
    assert sums.index("fusion") == 1
    large = build_on(lambda x: mnp.tanh(x + 1.0))
    assert large.index("fusion") > 1


def test_sharing_a_small_operand_makes_no_fusion() -> None:
    """The update of a bias is not computed with the loss, which is read at the end, too."""
    builder = Builder()
    x = builder.input(TensorType((256, 256), DType.float32), "x")
    bias = builder.input(TensorType((256,), DType.float32), "bias")
    graph = builder.build({"loss": mnp.tanh(x + bias).sum(), "bias": mnp.exp(bias) * 2.0})
    (fusion,) = fusions_of(form_fusions(graph))
    assert {node.op.name for node in fusion.body.nodes} == {"add", "tanh", "sum"}


def test_dtypes_without_a_sign_are_in_none() -> None:
    builder = Builder()
    x = builder.input(TensorType((512, 512), DType.uint16), "x")
    assert not fusions_of(form_fusions(builder.build({"y": (x + x) * x})))


# ------------------------------------------------------------------ programs


def step_of(backend: ml.Backend, **options: Any) -> tuple[Any, Any, dict[str, ml.Array]]:
    rng = np.random.default_rng(3)
    ids = {n: rng.integers(0, 64, (4, 32)).astype(np.int32) for n in ("tokens", "target")}
    batch = {name: backend.array(x) for name, x in ids.items()}
    model = with_loss(gpt(64, Sizes(layers=2, width=64, heads=2, hidden=128, context=32)))
    optimizer = ml.optim.adamw(1e-3)
    step = ml.train_step(model, backend, optimizer, shapes=batch, **options)
    return step, step.init(seed=1), batch


def text_of(step: Any) -> str:
    """Return the program of a step on one device of PyTorch's."""
    program = step.plan.stages[0].program
    return write(program, codegen=CodegenOptions(fusions=True)).text


def losses(backend: ml.Backend, **options: Any) -> list[float]:
    step, state, batch = step_of(backend, **options)
    found = []
    for _ in range(4):
        state, metrics = step(state, batch)
        found.append(float(metrics["loss"].item()))
    return found


def test_a_step_of_training_computes_the_same(auto: ml.Backend) -> None:
    expected = losses(ml.NumpyBackend())
    np.testing.assert_allclose(losses(auto), expected, *TOLERANCE["float32"])
    text = text_of(step_of(auto)[0])
    assert text.count("compile_fusion(") < text.count("= fusion_")  # layers that are alike share
    assert "cross_entropy_gradient(" in text
    assert ", over=" in text  # the gradient of logits takes their place


@pytest.mark.slow
def test_ranks_compute_the_same_with_parameters_at_rest() -> None:
    found = losses(ml.TorchBackend(ml.Mesh(data=2), device="cpu", jit="auto"), zero=3)
    np.testing.assert_allclose(found, losses(ml.NumpyBackend()), *TOLERANCE["float32"])


@pytest.mark.slow
def test_bfloat16_keeps_its_dtypes(auto: ml.Backend) -> None:
    """Norms, the loss and their gradients; a wrong dtype would end the program."""
    found = losses(auto, precision=ml.Precision(compute_dtype="bfloat16"))
    np.testing.assert_allclose(found, losses(ml.NumpyBackend()), rtol=0.02)


@st.composite
def expressions(draw: st.DrawFn) -> Any:
    """Draw a function of two matrices: chains, sums over rows or columns, products between."""
    steps = draw(st.lists(st.integers(0, 11), min_size=3, max_size=7))

    def function(x: Any, y: Any) -> Any:
        kept = [x, y]
        for number, step in enumerate(steps):
            a, b = kept[-1], kept[number % len(kept)]
            if step < 5:
                made = FUNCTIONS[step](mnp.tanh(a))
            elif step == 5:
                made = a * b - a
            elif step == 6:
                made = a / (1.0 + mnp.abs(b).sum(1, keepdims=True))
            elif step == 7:
                made = mnp.maximum(a, b.mean(0))
            elif step == 8:
                made = a.reshape(6, 24).reshape(12, 12) + mnp.transpose(b)
            elif step == 9:
                made = mnp.broadcast_to(a.sum(1, keepdims=True), a.shape) * 0.1
            elif step == 10:
                made = mnp.concatenate([a[:5], b[5:]])
            else:
                made = mnp.tanh((a @ mnp.transpose(b)) @ a)
            kept.append(made)
        return kept[-1]

    return function


@pytest.mark.slow
@settings(max_examples=scaled(6))
@given(function=expressions())
def test_random_functions_agree(auto: ml.Backend, function: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusions, "LEAST_BYTES", 0)
        agree(function, auto, rows(1, (12, 12)), rows(2, (12, 12)))


def test_an_operand_that_lies_otherwise_gets_kernels_of_its_own() -> None:
    run = running.compile_fusion(lambda x: (torch.tanh(torch.exp(x)) + 1.0,))
    x, made, make = torch.tensor(rows()), [], running.make_kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "make_kernels", lambda *of: made.append(of) or make(*of))
        for tensor in (x, x.t().contiguous().t(), x):
            (found,) = run(tensor)
            torch.testing.assert_close(found, torch.tanh(torch.exp(x)) + 1.0)
    assert [operands[0].stride() for _, operands, _ in made] == [(96, 1), (1, 64)]


def test_results_share_no_memory() -> None:
    """A compiler may give back an operand, or one result twice."""
    run = running.compile_fusion(lambda x: (x + 0.0, x * 1.0))
    x = torch.ones(8)
    first, second = run(x)
    places = {t.untyped_storage().data_ptr() for t in (x, first, second)}
    assert len(places) == 3
    assert running.is_apart([x], [x + 1, x + 2])
    assert not running.is_apart([x], [x.view(2, 4)])


def test_an_operand_is_written_over_once() -> None:
    """Reading the function to compile it calls it, which is no call of the program."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.copy_(x + 1)
        return (x * 2,)

    run = running.compile_fusion(function, over=0)
    x = torch.zeros(8)
    for times in (1, 2):
        made, doubled = run(x)
        assert made is x
        assert x.tolist() == [times] * 8
        assert doubled.tolist() == [2 * times] * 8


def test_a_view_of_what_is_written_over_is_no_memory_of_its_own() -> None:
    """The second result would be the first in another shape."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.copy_(x.exp())
        return (x.reshape(16), x.sin())

    x = torch.zeros(4, 4)
    made, view, _ = running.compile_fusion(function, over=0)(x)
    assert view.data_ptr() != made.data_ptr() == x.data_ptr()
    assert view.tolist() == [1.0] * 16


def test_results_are_dense() -> None:
    """What grows in the memory of a result needs a place for each element."""
    (made,) = running.compile_fusion(lambda x: (x.sum(1, keepdim=True).expand(4, 4),))(
        torch.ones(4, 4)
    )
    assert made.add_(made.clone()).tolist() == [[8.0] * 4] * 4


@pytest.mark.slow
def test_what_shares_memory_is_not_written_over(auto: ml.Backend) -> None:
    def views(x: Any, w: Any, wide: Any) -> Any:
        h = x @ w
        v = mnp.tanh(mnp.exp(mnp.sin(h)) * 2.0)
        r = v.reshape(48, 192)
        q = r + mnp.sin(mnp.exp(r)) @ wide
        return 0.01 * (v @ (q.reshape(96, 96) @ w))

    def spread(x: Any, w: Any) -> Any:
        s = mnp.broadcast_to(mnp.exp(x).sum(1, keepdims=True), x.shape)
        return 0.01 * (s + mnp.tanh(mnp.exp(x) - s) @ w)

    x, w = 0.05 * rows(1, (96, 96)), 0.05 * rows(2, (96, 96))
    agree(views, auto, x, w, 0.05 * rows(3, (192, 192)))
    agree(spread, auto, x, w)


def test_casts_round(auto: ml.Backend) -> None:
    """What 16 bits lose is not nothing: error feedback adds it up."""

    def lost(x: Any) -> Any:
        y = mnp.tanh(x) * 3.0
        return y - y.astype("bfloat16").astype("float32")

    x = rows(5, (256, 256))
    found = ml.jit(lost, backend=auto)(auto.array(x)).numpy()
    expected = ml.jit(lost)(ml.NumpyBackend().array(x)).numpy()
    assert np.abs(expected).max() > 1e-3
    assert np.abs(found).max() == pytest.approx(np.abs(expected).max(), rel=0.1)


def test_threads_may_call_first_at_once() -> None:
    run = running.compile_fusion(lambda x: (x.exp() + 1.0, x.sin()))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, [torch.zeros(8, n) for n in (1, 2, 3)]))
    assert [tuple(first.shape) for first, _ in found] == [(8, 1), (8, 2), (8, 3)]
    assert not logging.getLogger("torch._inductor.standalone_compile").disabled


def test_zeros_of_two_signs_are_two_fusions() -> None:
    def function(x: Any, y: Any) -> Any:
        first = mnp.exp(mnp.abs(x)) * 0.0 + mnp.abs(x)
        second = mnp.exp(mnp.abs(y)) * -0.0 + mnp.abs(y)
        return (first @ first) @ (second @ second)

    found = fusions_of(form_fusions(build(function, (96, 96), (96, 96))))
    assert len({"\n".join(write_fusion("fusion", fusion)) for fusion in found}) == 2


def test_a_target_that_is_no_class_gives_nan_where_it_does_without() -> None:
    logits, total, g = torch.randn(4, 6), torch.zeros(4), torch.ones(4)
    targets = torch.tensor([1, 9, -3, 2])
    expected = cross_entropy_gradient(logits, targets, total, g)
    given_ = (logits, targets, total, g, False)  # all of them, as make_fx wants
    found = make_fx(cross_entropy_gradient)(*given_)(*given_)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found.isnan().sum() == 2


# ------------------------------------------------------------------ what is computed again


def test_what_costs_nothing_is_not_kept_for_the_backward(auto: ml.Backend) -> None:
    """Of silu(gate) * up the backward reads silu(gate), which it can make of the gate it has."""

    @ml.layer
    def Gated(x: Any, up: Any, w: Any) -> Any:  # noqa: N802
        return (ml.ops.silu(x) * up) @ w

    texts = []
    for backend in (ml.TorchBackend(device="cpu"), auto):
        model = ml.Model()
        model |= Gated()(x="x", up="up", w="w", output="y")
        given_ = {n: backend.array(rows(i)) for i, n in enumerate(("x", "up"))}
        given_["w"] = backend.array(rows(3, (96, 8)))
        compiled = ml.compile(model, backend, shapes=given_, differentiable=["x", "up", "w"])
        compiled.evaluate({}, given_, {"y": backend.array(rows(4, (64, 8)))})
        texts.append(compiled.code())
    plain, again = (text.count("aten.silu(") for text in texts)
    assert (plain, again) == (1, 2)


def test_nothing_is_computed_again_of_what_was_written_over() -> None:
    """An update may write over a parameter before the backward ends."""
    builder = Builder()
    x = builder.input(TensorType((8, 8), DType.float32), "x")
    gain, state = (builder.input(TensorType((8,), DType.float32), n) for n in ("gain", "state"))
    ones = builder.input(TensorType((), DType.float32), "ones")
    kept = x * gain
    read = mnp.exp(kept)
    with builder.at(phase=Phase.update):
        step = AdamWStep(0.9, 0.99, 1e-8, 0.0, in_place=(0,))
        moved = apply(step, gain, state, state, state, ones, ones)
    with builder.at(phase=Phase.backward):
        late = kept * x
    graph = builder.build({"read": read, "late": late, "gain": moved[0], "x": x})
    assert len(recompute_elementwise(graph).nodes) == len(graph.nodes)


def test_the_file_of_a_program_has_its_fusions(auto: ml.Backend, tmp_path: Path) -> None:
    model = ml.Model()
    model |= ml.Linear(96, name="up")(input="x", output="h")
    model |= ml.Gelu()(input="h", output="a")
    model |= ml.LayerNorm(name="norm")(input="a", output="y")
    compiled = ml.compile(model, auto, shapes={"x": auto.array(rows())})
    text = compiled.eject(tmp_path / "step.py").read_text()
    assert "def compile_fusion(" in text
    assert "fusion_0 = compile_fusion(fusion_0)" in text
