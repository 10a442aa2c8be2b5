"""`memory_format="channels_last"`: images lie otherwise, and nothing else changes."""

from __future__ import annotations

import math

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P
from mithril.ir import Builder
from mithril.ops.collective import AllReduce
from mithril.ops.conv import convolution
from mithril.types import DType, TensorType
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.program.image_layout import find_convolved, lay_out_images
from mithril_torch.program.module import write
from mithril_torch.program.runtime_library.convolution import as_channels_last
from torch.profiler import profile

from tests.tolerances import TOLERANCE

LAST = torch.channels_last


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.Conv2d(8, kernel_size=3, padding=1, name="first")(input="x", output="a")
    made += ml.Relu()
    made += ml.Conv2d(4, kernel_size=3, name="second")(output="images")
    return made


def trained(backend: ml.Backend) -> tuple[ml.CompiledModel, ml.Array, dict[str, ml.Array]]:
    x = np.random.default_rng(0).standard_normal((4, 3, 10, 10), dtype=np.float32)
    inputs = {"x": backend.array(x, sharding=P(*backend.mesh.names))}
    compiled = ml.compile(model(), backend, shapes=inputs)
    params = compiled.randomize_params(seed=1)
    given = {"images": np.ones((4, 4, 8, 8), np.float32)}
    outputs, gradients = compiled.evaluate(params, inputs, given)
    return compiled, outputs["images"], gradients


@pytest.mark.parametrize("spelt", ["channels_last", "channel_last"])
@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=str)
def test_images_lie_with_their_channels_last(spelt: str, mesh: ml.Mesh) -> None:
    first = ml.TorchBackend(mesh, device="cpu", memory_format="channels_first")
    plain, images, gradients = trained(first)
    laid, found, slopes = trained(ml.TorchBackend(mesh, device="cpu", memory_format=spelt))
    assert "images(" not in plain.code()
    assert laid.code().count("images(") == 4  # x, both weights and the slope, once each
    if mesh.size == 1:
        assert found.torch().is_contiguous(memory_format=LAST)
        assert not images.torch().is_contiguous(memory_format=LAST)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found.numpy(), images.numpy(), rtol, atol)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(slopes[name].numpy(), gradient.numpy(), rtol, atol)


@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=str)
def test_by_default_images_lie_so_inside_of_programs_alone(mesh: ml.Mesh) -> None:
    first = ml.TorchBackend(mesh, device="cpu", memory_format="channels_first")
    _, images, gradients = trained(first)
    laid, found, slopes = trained(ml.TorchBackend(mesh, device="cpu"))
    assert laid.code().count("images(") == 4
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found.numpy(), images.numpy(), rtol, atol)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(slopes[name].numpy(), gradient.numpy(), rtol, atol)
    if mesh.size == 1:
        assert all(x.torch().is_contiguous() for x in (found, *slopes.values()))


def test_convolutions_in_one_dimension_have_no_such_layout() -> None:
    backend = ml.TorchBackend(device="cpu", memory_format="channels_last")
    compiled = ml.compile(ml.Conv1d(4, kernel_size=3), backend, shapes={"input": (2, 3, 9)})
    assert "images(" not in compiled.code()


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_windows_of_one_element_that_skip(layout: str, padding: int) -> None:
    """With PyTorch 2.13, oneDNN writes past the end of the weight's gradient of such images."""
    conv = ml.Conv2d(8, kernel_size=1, stride=2, padding=padding)
    compiled, plain = (
        ml.compile(conv, backend, shapes={"input": (4, 8, 9, 8)})
        for backend in (ml.TorchBackend(device="cpu", memory_format=layout), ml.NumpyBackend())
    )
    params = {name: array.numpy() for name, array in plain.randomize_params(seed=0).items()}
    x = {"input": np.random.default_rng(0).standard_normal((4, 8, 9, 8), dtype=np.float32)}
    slope = {"output": np.ones(plain.evaluate(params, x)["output"].shape, np.float32)}
    (_, found), (_, expected) = (one.evaluate(params, x, slope) for one in (compiled, plain))
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name].numpy(), gradient.numpy(), *TOLERANCE["float32"])
    assert "::2, ::2" in compiled.code()


def residual() -> ml.Model:
    """Two convolutions with norms, activations and a pool, on top of what was there."""
    made = ml.Model()
    made |= ml.Conv2d(8, kernel_size=1, bias=False, name="stem")(input="x", output="a")
    made |= ml.GroupNorm(4, name="groups")(input="a", output="b")
    made |= ml.Conv2d(8, 3, padding=1, bias=False, name="conv")(input="b", output="c")
    made |= ml.BatchNorm(name="norm")(
        input="c", running_mean="mean", running_variance="variance", output="d"
    )
    made |= ml.Relu()(input="d", output="e")
    made |= ml.Add()(inputs=["b", "e"], output="f")
    made |= ml.Gelu()(input="f", output="g")
    made |= ml.MaxPool2d(2)(input="g", output="h")
    made |= ml.Conv2d(4, 3, name="last")(input="h", output="i")
    made |= ml.GlobalAvgPool()(input="i", output="logits")
    made |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return made


def steps(layout: str, count: int) -> tuple[ml.TorchBackend, list[float], object]:
    """Return the losses of some steps of AdamW, and what makes one more."""
    backend = ml.TorchBackend(device="cpu", memory_format=layout)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((4, 3, 8, 8), dtype=np.float32))
    x = x.contiguous(memory_format=LAST if layout == "channels_last" else torch.contiguous_format)
    batch = {"x": backend.array(x), "target": backend.array(np.arange(4, dtype=np.int32))}
    shapes = {**batch, "mean": (8,), "variance": (8,)}
    call = ml.train_step(residual(), backend, ml.optim.adamw(0.05), shapes=shapes, metrics=())
    state, losses = call.init(seed=0), []

    def step() -> float:
        nonlocal state
        state, found = call(state, batch)
        return float(found["loss"].item())

    losses = [step() for _ in range(count)]
    return backend, losses, step


@pytest.mark.parametrize("layout", ["channels_last", "auto"])
def test_a_step_keeps_the_layout_from_one_end_to_the_other(layout: str) -> None:
    """Weights are laid out in the first step; from the second on the input is, and no other."""
    _, expected, _ = steps("channels_first", 4)
    _, losses, step = steps(layout, 3)
    with profile(record_shapes=True) as profiled:
        losses.append(step())
    np.testing.assert_allclose(losses, expected, *TOLERANCE["float32"])
    copies = [
        event
        for event in profiled.events()
        if event.name == "aten::copy_"
        and any(len(shape) == 4 for shape in event.input_shapes)
        and not has_parent(event, ("aten::_convolution", "aten::convolution_backward"))
        and not has_parent(event, ("aten::_fused_adamw_",))
    ]
    assert [event.input_shapes[0] for event in copies] == [[4, 3, 8, 8]]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_images_in_an_arena_are_laid_out_beside_it(layout: str) -> None:
    backend = ml.TorchBackend(device="cpu", memory_format=layout)
    x = np.random.default_rng(0).standard_normal((4, 3, 10, 10), dtype=np.float32)
    made = ml.Model()
    made |= ml.Gelu()(input="x", output="active")
    made |= model()(x="active", images="images")
    compiled = ml.compile(made, backend, shapes={"x": x.shape}, memory_planning="greedy")
    plain = ml.compile(made, ml.NumpyBackend(), shapes={"x": x.shape})
    params = plain.randomize_params(seed=0)
    given = {name: backend.array(array.numpy()) for name, array in params.items()}
    slope = {"images": np.ones((4, 4, 8, 8), np.float32)}
    outputs, gradients = compiled.evaluate(given, {"x": x}, slope)
    expected, slopes = plain.evaluate(params, {"x": x}, slope)
    for name, array in {**expected, **slopes}.items():
        found = {**outputs, **gradients}[name].numpy()
        np.testing.assert_allclose(found, array.numpy(), *TOLERANCE["float32"])


def has_parent(event: object, names: tuple[str, ...]) -> bool:
    """Whether PyTorch's own function does it, as in eager mode: it copies gradients of weights."""
    parent = event.cpu_parent
    while parent is not None and parent.name not in names:
        parent = parent.cpu_parent
    return parent is not None


@pytest.mark.parametrize(
    ("shape", "is_filter"),
    [((8, 4, 3, 3), True), ((8, 4, 1, 5), True), ((8, 4, 32, 32), False), ((8, 4, 3), False)],
)
def test_filters_lie_as_convolutions_want_them(shape: tuple[int, ...], is_filter: bool) -> None:
    """From the start: otherwise each call of a forward would copy them."""
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    x = ml.TorchBackend(device="cpu").array(array)
    np.testing.assert_array_equal(x.numpy(), array)
    assert (not x.torch().is_contiguous()) == is_filter
    plain = ml.TorchBackend(device="cpu", memory_format="channels_first").array(array)
    assert plain.torch().is_contiguous()


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_weights_and_their_gradients_travel_as_they_lie(zero: int) -> None:
    steps = []
    for backend in (
        ml.TorchBackend(ml.Mesh(data=2), device="cpu"),
        ml.NumpyBackend(ml.Mesh(data=2)),
    ):
        made = model()
        made |= ml.Mean(axis=(0, 1, 2, 3))(input="images", output="loss")
        step = ml.train_step(
            made, backend, ml.optim.adamw(1e-2), loss="loss", shapes={"x": (4, 3, 10, 10)},
            in_shardings={"x": P("data")}, zero=zero, fusion_bytes=1024,
        )  # fmt: skip
        state = step.init(seed=0)
        x = np.random.default_rng(0).standard_normal((4, 3, 10, 10), dtype=np.float32)
        for _ in range(2):
            state, _ = step(state, {"x": x})
        steps.append((step, state))
    (step, state), (_, expected) = steps
    for name, value in expected.params.items():
        np.testing.assert_allclose(
            state.params[name].numpy(), value.numpy(), *TOLERANCE["float32"], err_msg=name
        )
    stage = step.plan.only_stage
    assert stage is not None
    codegen = CodegenOptions(channels_last=True, contiguous_results=True)
    text = write(stage.program, codegen=codegen).text
    sent, back = (text.count(f".permute({order})") for order in ("0, 2, 3, 1", "0, 3, 1, 2"))
    assert sent == back == {0: 2, 1: 4, 3: 5}[zero]  # gradients, and weights that are gathered
    if not zero:  # nobody waits for a sum before the last one is under way
        assert text.count("all_reduce(") > 1
        assert text.rindex("all_reduce(") < text.index(".wait()")


def test_what_no_convolution_reads_travels_as_it_is() -> None:
    """Scores of attention, say, beside a convolution."""
    builder = Builder()
    image = builder.input(TensorType((2, 3, 8, 8), DType.float32), "image")
    weight = builder.input(TensorType((4, 3, 3, 3), DType.float32), "weight")
    scores = builder.input(TensorType((2, 4, 16, 16), DType.float32), "scores")
    graph = builder.build({
        "made": convolution(image, weight), "sum": builder.apply(AllReduce(("data",), "sum"), scores)[0],
    })  # fmt: skip
    assert "transpose" not in [node.op.name for node in lay_out_images(graph).nodes]
    assert find_convolved(graph) == {*graph.inputs[:2]}


@pytest.mark.parametrize("channels", [1, 5])
def test_images_of_one_channel_and_filters_of_one_pixel_make_channels_last(channels: int) -> None:
    """The strides of neither say where channels lie."""
    made = ml.Model()
    made |= ml.Conv2d(6, kernel_size=3, padding=1, name="body")(input="x", output="a")
    made |= ml.Silu()(input="a", output="b")
    made |= ml.Conv2d(channels, kernel_size=1, name="head")(input="b", output="images")
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8), dtype=np.float32)
    found = []
    for backend in (ml.TorchBackend(device="cpu"), ml.NumpyBackend()):
        compiled = ml.compile(made, backend, shapes={"x": x.shape}, differentiable=["x"])
        params = compiled.randomize_params(seed=0)
        dy = {"images": np.ones((2, channels, 8, 8), np.float32)}
        found.append((compiled, compiled.evaluate(params, {"x": x}, dy)))
    (laid, (_, slopes)), (_, (_, expected)) = found
    assert laid.code().count("as_channels_last(") == (channels == 1)
    for name, slope in expected.items():
        np.testing.assert_allclose(
            slopes[name].numpy(), slope.numpy(), *TOLERANCE["float32"], err_msg=name
        )
    image = torch.randn(2, 1, 8, 8)
    filters = torch.randn(1, 6, 1, 1)
    told = torch.conv_transpose2d(as_channels_last(image), filters)
    assert told.is_contiguous(memory_format=LAST)
    assert torch.equal(told, torch.conv_transpose2d(image, filters))
