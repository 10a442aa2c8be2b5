"""What layers refuse: shapes, dtypes and options that cannot be, with words that name the layer."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.errors import MithrilError, OptionError, ShapeError

from tests.models.evaluate import random, run

X = random(2, 6, 5)
CLASSES = np.zeros((2, 6), np.int32)


def of_ports(layer: ml.Layer, **inputs: np.ndarray) -> None:
    """Run a layer with all of these inputs connected."""
    model = ml.Model()
    model |= layer(**{name: f"the {name}" for name in inputs})
    run(model, **{f"the {name}": x for name, x in inputs.items()})


@pytest.mark.parametrize(
    ("layer", "inputs", "error", "text"),
    [
        (ml.GroupNorm(4), {"input": X}, ShapeError, "cannot divide 6 channels into 4 groups; choose num_groups that divides 6"),
        (ml.GroupNorm(1), {"input": X[0, 0]}, ShapeError, r"needs an input \[batch, channels, ...\], not float32\[5\]"),
        (ml.InstanceNorm(), {"input": X[..., 0]}, ShapeError, r"has 1 element in each channel of float32\[2, 6\], which would become 0"),
        (ml.Embedding(7, 4, padding_idx=7), {"input": CLASSES}, OptionError, "has padding_idx=7 for 7 ids; choose one of 0…6, or -1 for the last"),
        (ml.Conv3d(4, 2), {"input": X}, ShapeError, r"needs an input \[batch, channels, depth, height, width\]"),
        (ml.ConvTranspose1d(4, 2, groups=3), {"input": X}, ShapeError, "cannot divide 6 channels and 4 filters into 3 groups; choose groups that divide both"),
        (ml.ConvTranspose1d(4, 2, output_padding=1), {"input": X}, ShapeError, r"conv_transpose has output_padding \(1,\) with stride \(1,\).*'conv_transpose1d_0'"),
        (ml.ConvTranspose2d(4, 2), {"input": X}, ShapeError, r"needs an input \[batch, channels, height, width\]"),
        (ml.GlobalAvgPool(), {"input": X[0]}, ShapeError, r"needs an input \[batch, channels, \*spatial\], not float32\[6, 5\]"),
        (ml.AdaptiveMaxPool1d(2), {"input": X[..., :0]}, ShapeError, "pools float32.2, 6, 0., which has no elements along dimension 2; give at least one"),
        (ml.AdaptiveAvgPool2d(2), {"input": X}, ShapeError, r"needs an input \[batch, channels, height, width\]"),
        (ml.Glu(), {"input": X}, ShapeError, "glu halves dimension -1 of float32.2, 6, 5., and its size is odd.*'glu"),
        (ml.HingeLoss(), {"input": CLASSES, "target": CLASSES}, ShapeError, r"layer 'hinge_loss_0' takes floats, not int32\[2, 6\]; convert them with astype"),
        (ml.L1Loss(), {"input": X, "target": X[0]}, ShapeError, r"compares input float32\[2, 6, 5\] with target float32\[6, 5\]; give both the same shape"),
        (ml.CosineLoss(0.5), {"input": X, "target": X}, OptionError, "has margin=0.5 and no labels that it could be for; connect label="),
        (ml.CosineLoss(), {"input": X, "target": X, "label": X}, ShapeError, "compares input .* give both the same shape"),
        (ml.CrossEntropy(ignore_index=1), {"input": X, "target": X}, OptionError, "has ignore_index=1 and probabilities as targets, which have no index; remove it, or give classes"),
        (ml.CrossEntropy(), {"input": X, "target": CLASSES.astype(bool)}, ShapeError, "the target must be integers of shape .2, 6., one class per position, or probabilities"),
        (ml.CrossEntropy(), {"input": X, "target": CLASSES, "weight": X[0, 0, :4]}, ShapeError, r"has logits float32\[2, 6, 5\] and class weights float32\[4\]; give floats of shape \(5,\), one for each class"),
        (ml.BinaryCrossEntropy(), {"input": X, "target": X, "weight": random(3, 2, 6, 5)}, ShapeError, r"has losses float32\[2, 6, 5\] and weight float32\[3, 2, 6, 5\]; give a shape that broadcasts"),
        (ml.KLDivergence("batchmean"), {"input": X[0, 0, 0], "target": X[0, 0, 0]}, ShapeError, r"has reduction='batchmean' and a scalar float32\[\]; give \[batch, ...\], or choose another"),
    ],
    ids=str,
)  # fmt: skip
def test_shapes(layer: ml.Layer, inputs: dict, error: type[MithrilError], text: str) -> None:
    with pytest.raises(error, match=text):
        of_ports(layer, **inputs)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ml.L1Loss("average"), "'reduction' is 'average'; it must be 'mean', 'sum' or 'none'"),
        (lambda: ml.KLDivergence("batch"), "'reduction' is 'batch'; it must be 'mean', 'batchmean', 'sum' or 'none'"),
        (lambda: ml.CrossEntropy(label_smoothing=1.5), "'label_smoothing' is 1.5; it must be a number from 0 to 1"),
        (lambda: ml.CrossEntropy(ignore_index="no"), "'ignore_index' is 'no'; it must be an integer or None"),
        (lambda: ml.QuantileLoss(1.0), "'quantile' is 1.0; it must be a number between 0 and 1"),
        (lambda: ml.Softplus(0), "'beta' is 0; it must be a positive, finite number"),
        (lambda: ml.Conv1d(4, 3, padding=(2, 0)), r"'padding' is \(2, 0\); it must be an integer from 0, 'same', 'valid', or for each dimension an integer or \(before, after\), such as \(\(1, 0\),\)"),
        (lambda: ml.Conv2d(4, 3, padding="some"), r"'padding' is 'some'; it must be .* such as \(\(1, 0\), 2\)"),
        (lambda: ml.Conv2d(4, 3, padding=(1, (0, -1))), "'padding' is .1, .0, -1..; it must be"),
        (lambda: ml.ConvTranspose2d(4, 3, padding="same"), "'padding' is 'same'; it must be an integer from 0, or for each dimension"),
        (lambda: ml.ConvTranspose2d(4, 3, output_padding=-1), "'output_padding' is -1; it must be an integer from 0 or two of them"),
        (lambda: ml.Conv3d(4, (3, 3)), r"'kernel_size' is \(3, 3\); it must be a positive integer or three of them"),
        (lambda: ml.MaxPool2d(2, (1, 2, 3)), r"'stride' is \(1, 2, 3\); it must be a positive integer, two of them, or None"),
        (lambda: ml.AdaptiveAvgPool1d((2,)), r"'output_size' is \(2,\); it must be a positive integer"),
        (lambda: ml.AdaptiveAvgPool2d((2, 0)), r"'output_size' is \(2, 0\); it must be a positive integer, or two of them or None"),
        (lambda: ml.FeedForward(4, ml.Relu), "'activation' is <class .*; it must be one of .* or a function of a tensor"),
    ],
)  # fmt: skip
def test_options(make, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make()
