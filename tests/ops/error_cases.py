"""Errors of attention, positions, activations, lists and windows: rows of `test_errors`."""

# A text stands on one line, so that it can be searched for.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mithril import ops
from mithril.errors import MithrilError, OptionError, ShapeError
from mithril.ir import Builder
from mithril.ops.rope_scaling import read_scaling
from mithril.types import DType, TensorType


def _calls(function: Callable[..., Any], *shapes: tuple[Any, ...]) -> Callable[[], Any]:
    """Return the call that traces a function of tensors; a shape may begin with a dtype."""

    def call() -> Any:
        builder, tensors = Builder(), []
        for number, shape in enumerate(shapes):
            dtype, sizes = (shape[0], shape[1:]) if isinstance(shape[0], DType) else (F32, shape)
            tensors.append(builder.input(TensorType(tuple(sizes), dtype), f"x{number}"))
        return function(*tensors)

    return call


F32, BOOL = DType.float32, DType.bool_
HEADS = (4, 4, 2, 6)
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 2, "original_max_position_embeddings": 64}  # fmt: skip

CASES: list[tuple[Callable[[], Any], type[MithrilError], str]] = [
    (_calls(lambda x: ops.attention(x, x, x, soft_cap=5.0, context_parallel="ring"), HEADS), OptionError, "attention has soft_cap=5.0 and context_parallel='ring', whose blocks are computed by kernels without one; remove one of them"),
    (_calls(lambda x: ops.attention(x, x, x, sliding_window=0), HEADS), OptionError, "attention has sliding_window=0; give at least 1, which is the position itself"),
    (_calls(lambda x, m: ops.attention(x, x, x, key_padding_mask=m), HEADS, (BOOL, 4, 3)), ShapeError, "attention has key_padding_mask bool[4, 3]; give booleans [4, 4], [batch, keys], true where a key is padding"),
    (_calls(lambda x, m: ops.attention(x, x, x, bias=m), HEADS, (BOOL, 4, 4)), ShapeError, "attention has a bias bool[4, 4]; give floats, which are added to the scores, and booleans as a mask"),
    (_calls(lambda x, m: ops.attention(x, x, x, mask=m), HEADS, (BOOL, 4, 4)), ShapeError, "attention cannot tell whether mask bool[4, 4] is [batch, keys] or [queries, keys]; give padding as key_padding_mask, true where a key is padding, and a mask of queries and keys as [1, 4, 4]"),
    (_calls(lambda x, m: ops.attention(x, x, x, mask=m), (3, 4, 2, 6), (BOOL, 3, 4)), ShapeError, "attention has scores [3, 2, 4, 4] and a mask bool[3, 4], which is [batch, keys]; give padding as key_padding_mask, true where a key is padding"),
    (_calls(lambda q, v: ops.attention(q, q, v), (4, 4, 2, 0), HEADS), ShapeError, "attention has q float32[4, 4, 2, 0], whose head_dim is 0, so that every score is 0; give at least 1"),
    # positions
    (lambda: read_scaling(4.0), OptionError, "rope_scaling is a float; give a mapping, such as {'rope_type': 'linear', 'factor': 4.0}"),
    (lambda: read_scaling({"rope_type": "llama"}), OptionError, "rope_scaling has rope_type='llama'; choose 'linear', 'llama3', 'yarn'; did you mean 'llama3'?"),
    (lambda: read_scaling({"type": "linear", "facter": 2.0}), OptionError, "rope_scaling 'linear' has no 'facter'; it takes 'factor'; did you mean 'factor'?"),
    (lambda: read_scaling({"type": "yarn", "factor": 2.0}), OptionError, "rope_scaling 'yarn' needs 'original_max_position_embeddings'; give all of 'factor', 'original_max_position_embeddings'"),
    (lambda: read_scaling({"type": "linear", "factor": True}), OptionError, "rope_scaling 'linear' has factor=True; give a positive number"),
    (lambda: read_scaling(LLAMA3), OptionError, "rope_scaling 'llama3' has low_freq_factor=4 and high_freq_factor=2; the second must be larger"),
    # optimisers
    (_calls(lambda p, g: ops.adamw_step(p, g, p, p, 0.1, 1), (4, 3), (4,)), ShapeError, "adamw_step takes parameter, gradient and moments of floats of one shape, not float32[4, 3], float32[4], float32[4, 3], float32[4, 3]; give each the shape of the parameter"),
    (_calls(lambda p, r: ops.adamw_step(p, p, p, p, r, 1), (4,), (1,)), ShapeError, "adamw_step takes a learning rate and a count that are scalars, a float and a number, not float32[1], float32[]; give one of each for all elements"),
    (_calls(lambda p: ops.adamw_step(p, p, p, p, 0.1, 1, b2=1), (4,)), OptionError, "adamw_step has b2=1; give at least 0 and less than 1"),
    (_calls(lambda p: ops.adamw_step(p, p, p, p, 0.1, 1, eps=-1.0), (4,)), OptionError, "adamw_step has eps=-1.0; give a number of at least 0"),
    # activations
    (_calls(ops.glu, (4, 3)), ShapeError, "glu halves dimension -1 of float32[4, 3], and its size is odd; choose an even size"),
    (_calls(ops.relu, (BOOL, 4)), ShapeError, "op 'relu' needs numbers, not bool; cast it first"),
    # several tensors
    (_calls(ops.concatenate, (2, 3)), ShapeError, "concatenate takes a list of tensors, not float32[2, 3]; give [x, y], or unstack(x) for the rows of one"),
    (_calls(ops.stack, (2, 3)), ShapeError, "stack takes a list of tensors, not float32[2, 3]; give [x, y], or unstack(x) for the rows of one"),
    # windows
    (_calls(lambda x, w: ops.convolution(x, w, padding="sane"), (2, 3, 4), (4, 3, 2)), OptionError, "convolution's padding='sane' does not exist; did you mean 'same'?; known: 'same', 'valid'"),
    (_calls(lambda x, w: ops.convolution(x, w, padding=(1.5,)), (2, 3, 4), (4, 3, 2)), ShapeError, "convolution's padding is 1.5, which is no integer; give one"),
    (_calls(lambda x, w: ops.convolution(x, w, padding=((1, 2, 3),)), (2, 3, 4), (4, 3, 2)), ShapeError, "convolution's padding has (1, 2, 3) for a dimension; give one number, or two as (before, after)"),
    (_calls(lambda x, w: ops.convolution(x, w, stride=True), (2, 3, 4), (4, 3, 2)), ShapeError, "convolution's stride is True, which is no integer; give one"),
    (_calls(lambda x, w: ops.convolution(x, w, groups=2.0), (2, 3, 4), (4, 3, 2)), ShapeError, "convolution's groups is 2.0, which is no integer; give one"),
    (_calls(lambda x, w: ops.convolution(x, w, padding="same", stride=0), (2, 3, 4), (4, 3, 2)), ShapeError, "convolution has stride (0,), dilation (1,) and padding ((0, 0),); steps must be 1 or more, padding 0 or more"),
    (_calls(lambda x, w: ops.convolution(x, w, padding="same"), (2, 3), (4, 3)), ShapeError, "convolution takes an input [batch, channels, *spatial] and a weight [out, in / groups, *window] of one rank, not float32[2, 3] and float32[4, 3]; add the missing dimensions"),
    (_calls(lambda x: ops.max_pool(x, 2.0), (2, 3, 4)), ShapeError, "max_pool's window is 2.0, which is no integer; give one"),
    (_calls(lambda x: ops.avg_pool(x, 2, count_padding="no"), (2, 3, 4)), OptionError, "avg_pool's count_padding='no' is neither True nor False; give one of them"),
    # transposed convolutions
    (_calls(lambda x, w: ops.conv_transpose(x, w, padding="same"), (2, 3, 4), (3, 4, 2)), ShapeError, "conv_transpose's padding is 'same', which is no integer; give one"),
    (_calls(ops.conv_transpose, (2, 3, 4), (4, 3, 2)), ShapeError, "conv_transpose takes an input [batch, channels, *spatial] and a weight [channels, out / groups, *window] of one rank, not float32[2, 3, 4] and float32[4, 3, 2]; make them fit"),
    (_calls(lambda x, w: ops.conv_transpose(x, w, stride=2, output_padding=2), (2, 3, 4), (3, 4, 2)), ShapeError, "conv_transpose has output_padding (2,) with stride (2,); choose less than the stride"),
    (_calls(lambda x, w: ops.conv_transpose(x, w, padding=2), (2, 3, 3), (3, 4, 2)), ShapeError, "conv_transpose of float32[2, 3, 3] with weight float32[3, 4, 2] has spatial sizes (0,); pad by less than ((2, 2),)"),
    (_calls(lambda x: ops.einsum("ij,jk", x), (2, 3)), ShapeError, "einsum 'ij,jk' has 2 terms in front of -> and operands are 1; write a term for each"),
    (_calls(lambda x: ops.einsum("ijk->i", x), (2, 3)), ShapeError, "einsum 'ijk->i' has the term 'ijk' for an operand of shape (2, 3), which has 2 dimensions; write a letter for each, or ... for those without one"),
    (_calls(lambda x: ops.einsum("i", x), (2, 3)), ShapeError, "einsum 'i' has the term 'i' for an operand of shape (2, 3), which has 2 dimensions; write a letter for each, or ... for those without one"),
    (_calls(lambda x: ops.einsum("ij->ik", x), (2, 3)), ShapeError, "einsum 'ij->ik' has 'k' behind -> which no operand has; name each dimension of the result once, after one of an operand"),
    (_calls(lambda x: ops.einsum("ij->ii", x), (2, 3)), ShapeError, "einsum 'ij->ii' has 'i' behind -> twice; name each dimension of the result once, after one of an operand"),
    (_calls(lambda x: ops.einsum("...i->i", x), (2, 3)), ShapeError, "einsum '...i->i' has no ... behind -> for the 1 dimensions that it stands for; write it there, or sum over them first"),
    (_calls(lambda x: ops.einsum("i..j", x), (2, 3)), ShapeError, "einsum 'i..j' has the term 'i..j'; write a letter for each dimension and ... for all others, such as '...ab,bc->...ac'"),
    (_calls(lambda x, y: ops.einsum("ij,jk", x, y), (2, 3), (4, 5)), ShapeError, "einsum 'ij,jk' cannot contract (2, 3) with (4, 5); 'j' is 3 and 4; make the sizes equal"),
    (_calls(lambda x, y: ops.einsum("...i,j...", x, y), (2, 3), (4, 5)), ShapeError, "einsum '...i,j...' cannot contract (2, 3) with (4, 5); a dimension of ... is 2 and 5; make the sizes equal"),
    (_calls(lambda x: ops.einsum("ij,", x, 2.0), (2, 3)), ShapeError, "einsum 'ij,' takes tensors, not a float; put an array on a backend, and multiply by a number"),
    (_calls(lambda x: ops.einsum("ij,j", x, np.ones(3)), (2, 3)), ShapeError, "einsum 'ij,j' takes tensors, not a numpy.ndarray; put an array on a backend, and multiply by a number"),
    (_calls(lambda x: ops.einsum([0, 1], x), (2, 3)), ShapeError, "einsum's equation is [0, 1]; give a text, such as 'ab,bc->ac', and operands"),
    (_calls(lambda x, y: ops.einsum("i,i", x, y), (DType.int32, 3), (DType.int32, 3)), ShapeError, "einsum 'i,i->' needs equal float dtypes, not int32, int32; cast"),
    (_calls(ops.arcsin, (DType.int32, 3)), ShapeError, "op 'arcsin' needs a float dtype, not int32; cast it first"),
    (_calls(ops.arctan2, (DType.int32, 3), (DType.int32, 3)), ShapeError, "op 'arctan2' needs a float dtype, not int32; cast it first"),
    (_calls(lambda x: ops.repeat_elements(x, -1), (3,)), ShapeError, "repeat repeats 3 elements (-1,) times; give one number of 0 or more, or one for each element"),
    (_calls(lambda x: ops.repeat_elements(x, [1, 2], 0), (3, 2)), ShapeError, "repeat repeats 3 elements (1, 2) times; give one number of 0 or more, or one for each element"),
    (_calls(lambda x: ops.repeat_elements(x, x), (DType.int32, 3)), ShapeError, "repeat's repeats are a traced int32[3], and its values decide the size of the result; give a list of integers"),
    (_calls(lambda x: ops.diff(x, -1), (3,)), ShapeError, "diff's n is -1; give 0 or more, how many times differences are taken"),
    (_calls(ops.meshgrid, (3, 2)), ShapeError, "meshgrid takes vectors, not float32[3, 2]; reshape it to one dimension"),
    (_calls(lambda x: ops.meshgrid(x, indexing="yx"), (3,)), OptionError, "meshgrid's indexing='yx' does not exist; known: 'xy', 'ij'"),
    (lambda: ops.meshgrid([1, 2], 3), ShapeError, "meshgrid takes vectors, one of them a tensor, not a list; give an array of a backend, such as backend.array(…)"),
    (lambda: ops.Abs().infer([TensorType((3,), BOOL)]), ShapeError, "op 'abs' needs numbers, not bool; cast it first"),
]  # fmt: skip
