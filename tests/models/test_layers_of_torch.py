"""Layers and losses have the numbers of PyTorch's, name by name."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest

from tests.models.evaluate import random, run
from tests.tolerances import TOLERANCE

torch = pytest.importorskip("torch")
F = torch.nn.functional
RTOL, ATOL = TOLERANCE["float32"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides"),
]
Call = Callable[..., "torch.Tensor"]


def agree(layer: ml.Layer, theirs: Call, **inputs: np.ndarray) -> None:
    """Compare a layer on random parameters with a function of the inputs and those parameters."""
    found, params = run_alone(layer, **inputs)
    given = [torch.from_numpy(np.array(x)) for x in (inputs | params).values()]
    expected = theirs(*given).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


def shown(value: object) -> str:
    return str(value) if isinstance(value, ml.Layer) else ""


def run_alone(layer: ml.Layer, **inputs: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the output of a layer, and its parameters; a lone layer has no optional inputs."""
    model = ml.Model()
    model |= layer(**{name: f"the {name}" for name in inputs}, output="output")
    outputs, params = run(model, **{f"the {name}": x for name, x in inputs.items()})
    return outputs["output"], {name.partition(".")[2]: x for name, x in params.items()}


NUMBERS = np.concatenate([[-1000, -100, -3, 0, 3, 100, 1000], np.linspace(-5, 5, 29)])
ROWS = NUMBERS.astype(np.float32).reshape(6, 6)


@pytest.mark.parametrize(
    ("layer", "theirs"),
    [
        (ml.LeakyRelu(), F.leaky_relu),
        (ml.LeakyRelu(0.3), lambda input: F.leaky_relu(input, 0.3)),
        (ml.Elu(0.7), lambda input: F.elu(input, 0.7)),
        (ml.Softplus(2.0), lambda input: F.softplus(input, 2.0)),
        (ml.Mish(), F.mish),
        (ml.HardSwish(), F.hardswish),
        (ml.Glu(), F.glu),
        (ml.Glu(0), lambda input: F.glu(input, 0)),
    ],
    ids=lambda given: str(given) if isinstance(given, ml.Layer) else "",
)
def test_activations(layer: ml.Layer, theirs: Call) -> None:
    agree(layer, theirs, input=ROWS)


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 5), (2, 6, 4, 3)], ids=str)
def test_group_norm(shape: tuple[int, ...]) -> None:
    x = 3 * random(*shape) + 2
    agree(
        ml.GroupNorm(3, 0.1),
        lambda input, weight, bias: F.group_norm(input, 3, weight, bias, 0.1),
        input=x,
    )
    agree(ml.GroupNorm(2, affine=False), lambda input: F.group_norm(input, 2), input=x)


@pytest.mark.parametrize("shape", [(3, 6, 5), (2, 6, 4, 3)], ids=str)
def test_instance_norm(shape: tuple[int, ...]) -> None:
    x = 3 * random(*shape) + 2
    agree(ml.InstanceNorm(), F.instance_norm, input=x)
    agree(
        ml.InstanceNorm(0.1, True),
        lambda input, weight, bias: F.instance_norm(input, weight=weight, bias=bias, eps=0.1),
        input=x,
    )


def test_rms_norm_with_an_offset() -> None:
    agree(
        ml.RMSNorm(offset=1.0),
        lambda input, weight: F.rms_norm(input, (6,), weight + 1.0, 1e-6),
        input=random(4, 6),
    )
    params = ml.compile(
        ml.RMSNorm(offset=1.0), ml.NumpyBackend(), shapes={"input": (4, 6)}
    ).randomize_params()
    assert not params["weight"].numpy().any()


LINE, IMAGE, VOLUME = random(2, 4, 9), random(2, 4, 7, 6), random(2, 4, 3, 5, 4)


@pytest.mark.parametrize(
    ("layer", "theirs", "x"),
    [
        (ml.Conv1d(6, 3, padding="same", dilation=2), lambda x, w, b: F.conv1d(x, w, b, padding="same", dilation=2), LINE),
        (ml.Conv1d(6, 4, padding="same"), lambda x, w, b: F.conv1d(x, w, b, padding="same"), LINE),
        (ml.Conv1d(6, 3, padding="valid"), lambda x, w, b: F.conv1d(x, w, b, padding="valid"), LINE),
        (ml.Conv1d(6, 3, 2, ((2, 0),)), lambda x, w, b: F.conv1d(F.pad(x, (2, 0)), w, b, 2), LINE),
        (ml.Conv2d(6, (3, 2), padding="same", groups=2), lambda x, w, b: F.conv2d(x, w, b, padding="same", groups=2), IMAGE),
        (ml.Conv2d(6, 3, padding=((0, 1), 2)), lambda x, w, b: F.conv2d(F.pad(x, (2, 2, 0, 1)), w, b), IMAGE),
        (ml.Conv3d(6, (2, 3, 2), (1, 2, 1), (0, 1, 1)), lambda x, w, b: F.conv3d(x, w, b, (1, 2, 1), (0, 1, 1)), VOLUME),
        (ml.Conv3d(6, 3, padding="same"), lambda x, w, b: F.conv3d(x, w, b, padding="same"), VOLUME),
        (ml.ConvTranspose1d(6, 3, 2, 1, 1, 2), lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1, 2), LINE),
        (ml.ConvTranspose1d(6, 3, dilation=2), lambda x, w, b: F.conv_transpose1d(x, w, b, dilation=2), LINE),
        (ml.ConvTranspose1d(6, 4, 2, ((1, 2),)), lambda x, w, b: F.conv_transpose1d(x, w, b, 2)[..., 1:-2], LINE),
        (ml.ConvTranspose2d(6, 2, 2), lambda x, w, b: F.conv_transpose2d(x, w, b, 2), IMAGE),
        (ml.ConvTranspose2d(4, (3, 2), (2, 3), (1, 0), (1, 2), 2), lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2), 2), IMAGE),
    ],
    ids=shown,
)  # fmt: skip
def test_convolutions(layer: ml.Layer, theirs: Call, x: np.ndarray) -> None:
    agree(layer, theirs, input=x)


@pytest.mark.parametrize(
    ("layer", "theirs", "x"),
    [
        (ml.MaxPool1d(3, 2, 1), lambda x: F.max_pool1d(x, 3, 2, 1), LINE),
        (ml.MaxPool1d(2), lambda x: F.max_pool1d(x, 2), LINE),
        (ml.AvgPool1d(3, 2, 1), lambda x: F.avg_pool1d(x, 3, 2, 1), LINE),
        (ml.AvgPool1d(3, 2, 1, False), lambda x: F.avg_pool1d(x, 3, 2, 1, False, False), LINE),
        (ml.AvgPool1d(2, 1, ((1, 0),)), lambda x: F.avg_pool1d(F.pad(x, (1, 0)), 2, 1), LINE),
        (ml.MaxPool2d(3, 2, "same"), lambda x: F.max_pool2d(F.pad(x, (0, 1, 1, 1), value=-np.inf), 3, 2), IMAGE),
        (ml.GlobalAvgPool(keepdims=True), lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
        (ml.GlobalMaxPool(), lambda x: x.amax((2, 3)), IMAGE),
        *((ml.AdaptiveAvgPool1d(n), lambda x, n=n: F.adaptive_avg_pool1d(x, n), LINE) for n in (1, 2, 3, 4, 9, 11)),
        *((ml.AdaptiveMaxPool1d(n), lambda x, n=n: F.adaptive_max_pool1d(x, n), LINE) for n in (1, 2, 3, 7)),
        *((ml.AdaptiveAvgPool2d(n), lambda x, n=n: F.adaptive_avg_pool2d(x, n), IMAGE) for n in (1, 3, (7, 3), (None, 4))),
        *((ml.AdaptiveMaxPool2d(n), lambda x, n=n: F.adaptive_max_pool2d(x, n), IMAGE) for n in (2, (3, 4), (None, 3))),
    ],
    ids=shown,
)  # fmt: skip
def test_pools(layer: ml.Layer, theirs: Call, x: np.ndarray) -> None:
    agree(layer, theirs, input=x)


def test_strided_same_padding_is_that_of_jax() -> None:
    lax = pytest.importorskip("jax.lax")
    for size, kernel, stride in ((7, 4, 2), (8, 3, 3), (5, 2, 3), (6, 1, 2)):
        x = random(2, 3, size)
        outputs, params = run(ml.Conv1d(4, kernel, stride, "same", bias=False), input=x)
        expected = lax.conv_general_dilated(x, params["weight"], (stride,), "SAME")
        np.testing.assert_allclose(outputs["output"], expected, rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ losses

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
INPUT, TARGET = random(4, 5), random(4, 5, seed=1)


@REDUCTIONS
@pytest.mark.parametrize(
    ("loss", "theirs"),
    [
        (ml.MeanSquaredError, F.mse_loss),
        (ml.L1Loss, F.l1_loss),
        (ml.HuberLoss, F.huber_loss),
        (lambda **how: ml.HuberLoss(0.3, **how), lambda x, y, **how: F.huber_loss(x, y, delta=0.3, **how)),
        (ml.KLDivergence, F.kl_div),
        (lambda **how: ml.KLDivergence(log_target=True, **how), lambda x, y, **how: F.kl_div(x, y, log_target=True, **how)),
        (ml.BinaryCrossEntropyWithLogits, F.binary_cross_entropy_with_logits),
    ],
)  # fmt: skip
def test_losses(loss: Callable[..., ml.Layer], theirs: Call, reduction: str) -> None:
    target = TARGET
    if theirs is F.kl_div or theirs is F.binary_cross_entropy_with_logits:
        target = abs(np.round(TARGET, 1)).clip(0, 1)  # some zeros, some ones
        assert (target == 0).any()
    agree(
        loss(reduction=reduction),
        lambda input, target: theirs(input, target, reduction=reduction),
        input=INPUT * 10,
        target=target,
    )


def test_batchmean() -> None:
    agree(
        ml.KLDivergence("batchmean"),
        lambda input, target: F.kl_div(input, target, reduction="batchmean"),
        input=INPUT, target=abs(TARGET),
    )  # fmt: skip


@REDUCTIONS
def test_binary_cross_entropy(reduction: str) -> None:
    shares = np.float32([[0, 1, 0.5, 0.2], [1, 0, 1e-30, 1 - 1e-6]])
    target = np.float32([[0, 1, 0.3, 1], [0, 1, 0.5, 0]])
    agree(
        ml.BinaryCrossEntropy(reduction),
        lambda input, target, weight: F.binary_cross_entropy(input, target, weight, reduction=reduction),
        input=shares, target=target, weight=abs(random(4)),
    )  # fmt: skip
    agree(
        ml.BinaryCrossEntropyWithLogits(reduction),
        lambda input, target, weight, pos_weight: F.binary_cross_entropy_with_logits(
            input, target, weight, pos_weight=pos_weight, reduction=reduction
        ),
        input=10 * random(2, 4), target=target, weight=abs(random(2, 1)), pos_weight=abs(random(4)),
    )  # fmt: skip


@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [None, -100, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(
    reduction: str, smoothing: float, ignored: int | None, weighted: bool
) -> None:
    logits, target = random(4, 7, 5), np.random.default_rng(0).integers(0, 5, (4, 7), np.int32)
    if ignored is not None:
        target[1, 2:] = ignored
    more = {"weight": abs(random(5))} if weighted else {}

    def theirs(input, target, weight=None):
        return F.cross_entropy(
            input.movedim(-1, 1), target.long(), weight, reduction=reduction,
            ignore_index=-100 if ignored is None else ignored, label_smoothing=smoothing,
        )  # fmt: skip

    layer = ml.CrossEntropy(reduction, ignored, smoothing)
    agree(layer, theirs, input=logits, target=target, **more)


@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_probabilities(reduction: str, smoothing: float, weighted: bool) -> None:
    more = {"weight": abs(random(5))} if weighted else {}
    shares = abs(random(4, 7, 5, seed=3))

    def theirs(input, target, weight=None):
        return F.cross_entropy(
            input.movedim(-1, 1), target.movedim(-1, 1), weight, reduction=reduction,
            label_smoothing=smoothing,
        )  # fmt: skip

    layer = ml.CrossEntropy(reduction, label_smoothing=smoothing)
    agree(layer, theirs, input=random(4, 7, 5), target=shares, **more)


def test_a_mean_of_nothing_but_ignored_targets_is_nan_as_in_pytorch() -> None:
    target = np.full(4, -100, np.int32)
    given = {"input": random(4, 5), "target": target}
    with np.errstate(invalid="ignore"):
        assert np.isnan(run_alone(ml.CrossEntropy(ignore_index=-100), **given)[0])
    assert run_alone(ml.CrossEntropy("sum", -100), **given)[0] == 0.0


@REDUCTIONS
def test_hinge_quantile_and_cosine(reduction: str) -> None:
    sign = np.sign(TARGET)
    agree(
        ml.HingeLoss(0.7, reduction),
        lambda input, target: _reduce((0.7 - input * target).clamp(min=0), reduction),
        input=INPUT, target=sign,
    )  # fmt: skip
    agree(
        ml.QuantileLoss(0.8, reduction),
        lambda input, target: _reduce(
            torch.maximum(0.8 * (target - input), -0.2 * (target - input)), reduction
        ),
        input=INPUT, target=TARGET,
    )  # fmt: skip
    agree(
        ml.CosineLoss(0.1, reduction),
        lambda input, target, label: F.cosine_embedding_loss(
            input, target, label, margin=0.1, reduction=reduction
        ),
        input=INPUT, target=TARGET, label=np.float32([1, -1, -1, 1]),
    )  # fmt: skip


def _reduce(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()


# ------------------------------------------------------------------ tables and attention


def test_the_row_of_padding_gives_zeros_and_gets_no_gradient() -> None:
    ids = np.int32([[1, 6, 3], [6, 0, 1]])
    theirs = torch.nn.Embedding(7, 4, padding_idx=6)
    slopes = random(2, 3, 4)
    (theirs(torch.from_numpy(ids)) * torch.from_numpy(slopes)).sum().backward()
    weight = theirs.weight.detach().numpy()
    assert not weight[6].any()
    for row in (6, -1):
        backend = ml.NumpyBackend()
        compiled = ml.compile(ml.Embedding(7, 4, padding_idx=row), backend)
        outputs, gradients = compiled.evaluate(
            {"weight": weight}, {"input": ids}, {"output": slopes}
        )
        np.testing.assert_array_equal(outputs["output"].numpy(), weight[ids])
        np.testing.assert_allclose(gradients["weight"].numpy(), theirs.weight.grad, RTOL, ATOL)


@pytest.mark.parametrize("key_dim", [8, 6])
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention(key_dim: int, masked: bool) -> None:
    value_dim = 8 if key_dim == 8 else 5
    inputs = {
        "input": random(3, 5, 8),
        "key": random(3, 4, key_dim),
        "value": random(3, 4, value_dim),
    }
    if masked:
        inputs["key_padding_mask"] = np.arange(4) >= np.array([[4], [2], [3]])
        inputs["attention_bias"] = random(5, 4, seed=9)
    found, params = run_alone(ml.MultiHeadAttention(2), **inputs)
    theirs = torch.nn.MultiheadAttention(8, 2, kdim=key_dim, vdim=value_dim, batch_first=True)
    parts = {n: torch.from_numpy(params[f"{n}.weight"]) for n in "qkvo"}
    with torch.no_grad():
        if key_dim == 8:
            theirs.in_proj_weight.copy_(torch.cat([parts[n] for n in "qkv"]))
        else:
            for n in "qkv":
                getattr(theirs, f"{n}_proj_weight").copy_(parts[n])
        theirs.in_proj_bias.copy_(torch.cat([torch.from_numpy(params[f"{n}.bias"]) for n in "qkv"]))
        theirs.out_proj.weight.copy_(parts["o"])
        theirs.out_proj.bias.copy_(torch.from_numpy(params["o.bias"]))
        given = {n: torch.from_numpy(x) for n, x in inputs.items()}
        padding = given.get("key_padding_mask")
        expected, _ = theirs(
            given["input"], given["key"], given["value"],
            key_padding_mask=None if padding is None else torch.zeros(3, 4).masked_fill(padding, -np.inf),
            attn_mask=given.get("attention_bias"), need_weights=False,
        )  # fmt: skip
    np.testing.assert_allclose(found, expected.numpy(), rtol=RTOL, atol=ATOL)
