"""Convolution: PyTorch's kernels where they fit, else windows of a padded input."""

from __future__ import annotations

from dataclasses import replace

from mithril.spi import Types, ops

from mithril_torch.kernels.empty import zero_without_elements
from mithril_torch.kernels.table import kernel, same
from mithril_torch.program.image_layout import AsChannelsLast, ToChannelsLast, ToContiguous

DIMENSIONS = 3
"""How many spatial dimensions PyTorch's kernels take at most."""


same({
    ToContiguous: "{0}.contiguous()", ToChannelsLast: "images({0})",
    AsChannelsLast: "as_channels_last({0})",
})  # fmt: skip


@kernel(ops.Convolution)
@zero_without_elements
def convolution(op: ops.Convolution, types: Types) -> str:
    """Padding that differs between the sides is stored around the input."""
    rank = len(op.stride)
    if rank > DIMENSIONS:
        out = op.infer(types)[0].shape[2:]
        return f"convolve_windows({{0}}, {{1}}, {_attributes(op)}, {list(out)})"
    zeros, (outer, inner) = [0] * rank, _split(op.padding)
    how = f"{list(op.stride)}, {inner}, {list(op.dilation)}, False, {zeros}, {op.groups}"
    name = "convolution_16" if _is_narrow(types) else "aten.convolution"
    return f"{name}({_pad('{0}', outer)}, {{1}}, None, {how})"


@kernel(ops.ConvolutionInputGradient)
@zero_without_elements
def input_gradient(op: ops.ConvolutionInputGradient, types: Types) -> str:
    """A transposed convolution, which asks for no input of the shape that the gradient has.

    Of the input, elements at the end may be in no window: that many the result is longer by.
    """
    if len(op.stride) > DIMENSIONS:
        return f"convolve_windows_input_gradient({{0}}, {{1}}, {_attributes(op)}, {list(op.size)})"
    outer, inner = _split(op.padding)
    whole = [n + before + after for n, (before, after) in zip(op.size, outer, strict=True)]
    left = [
        (n + 2 * pad - dilation * (width - 1) - 1) % step
        for n, pad, width, step, dilation in zip(
            whole, inner, types[1].shape[2:], op.stride, op.dilation, strict=True
        )
    ]
    how = f"{list(op.stride)}, {inner}, {list(op.dilation)}, True, {left}, {op.groups}"
    name = "convolution_16" if _is_narrow(types) else "aten.convolution"
    text = f"{name}({{0}}, {{1}}, None, {how})"
    if whole == list(op.size):
        return text
    cuts = [f"{before}:{before + n}" for n, (before, _) in zip(op.size, outer, strict=True)]
    return f"{text}[:, :, {', '.join(cuts)}]"


@kernel(ops.ConvolutionWeightGradient)
@zero_without_elements
def weight_gradient(op: ops.ConvolutionWeightGradient, types: Types) -> str:
    """The kernel looks at the shape of the weight only, so it gets memory nobody has written to."""
    if len(op.stride) > DIMENSIONS:
        return f"convolve_windows_weight_gradient({{0}}, {{1}}, {_attributes(op)}, {list(op.size)})"
    (result,) = op.infer(types)
    w = f"blank({{0}}, {list(result.shape)})"
    x, op = _skip_between(op) if _skips(op) else (_pad("{0}", _split(op.padding)[0]), op)
    return _backward(op, "{1}", x, w, _is_narrow(types))


def _skips(op: ops.ConvolutionWeightGradient) -> bool:
    """Return whether a window is one element, and not every element is in a window."""
    return set(op.size) == {1} and any(step > 1 for step in op.stride)


def _skip_between(op: ops.ConvolutionWeightGradient) -> tuple[str, ops.ConvolutionWeightGradient]:
    """Return the text of the elements in windows, and the op on them alone.

    With PyTorch 2.13, oneDNN writes past the end of such a gradient where channels lie last.
    """
    steps = ", ".join(f"::{step}" for step in op.stride)
    rank = len(op.stride)
    dense = replace(op, stride=(1,) * rank, padding=((0, 0),) * rank)
    return f"{_pad('{0}', op.padding)}[:, :, {steps}]", dense


def _backward(op: ops.Convolving, dy: str, x: str, w: str, is_narrow: bool) -> str:
    _, inner = _split(op.padding)
    zeros = [0] * len(op.stride)
    mask = [False, True, False]
    how = f"{list(op.stride)}, {inner}, {list(op.dilation)}, False, {zeros}, {op.groups}, {mask}"
    name = "convolution_backward_16" if is_narrow else "aten.convolution_backward"
    return f"{name}({dy}, {x}, {w}, None, {how})[1]"


def _is_narrow(types: Types) -> bool:
    return types[0].dtype.itemsize == 2


def _attributes(op: ops.Convolving) -> str:
    return f"{list(op.stride)}, {list(op.padding)}, {list(op.dilation)}, {op.groups}"


def _split(padding: ops.Padding) -> tuple[ops.Padding, list[int]]:
    """Return the padding to store around an input and the padding to leave to the kernel."""
    none = ((0, 0),) * len(padding)
    if all(before == after for before, after in padding):
        return none, [before for before, _ in padding]
    return padding, [0] * len(padding)


def _pad(text: str, padding: ops.Padding) -> str:
    return f"pad({text}, {list(padding)}, 0)" if any(map(any, padding)) else text
