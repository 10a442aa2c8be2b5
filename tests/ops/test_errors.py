"""Every error of the ops, by its text; a new `raise` without a case here fails the last test."""

# A text stands on one line, so that it can be searched for.

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mithril
import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import KernelTable
from mithril.errors import (
    BackendError,
    GraphError,
    MithrilError,
    OptionError,
    ShapeError,
    ShardingError,
)
from mithril.ir import Builder, Graph, Op
from mithril.ops.expansion import gradient_by_expansion
from mithril.ops.host import to_host, verify_host
from mithril.testing.evaluate import apply
from mithril.types import DType, TensorType, as_dtype, check_number, promote

from tests.ops.custom_cases import CASES as CUSTOM
from tests.ops.error_cases import CASES as MORE

F32, I32, BOOL = DType.float32, DType.int32, DType.bool_


def f(*shape: int) -> TensorType:
    return TensorType(shape, F32)


def i(*shape: int) -> TensorType:
    return TensorType(shape, I32)


def b(*shape: int) -> TensorType:
    return TensorType(shape, BOOL)


def infers(op: Op, *types: TensorType) -> Callable[[], Any]:
    """Return the call that applies an op to operands of these types."""
    return lambda: op.infer(types)


def calls(function: Callable[..., Any], *types: TensorType) -> Callable[[], Any]:
    """Return the call that traces a function."""

    def call() -> Any:
        builder = Builder()
        return function(*(builder.input(t, f"x{n}") for n, t in enumerate(types)))

    return call


def runs(op: Op, *arrays: np.ndarray) -> Callable[[], Any]:
    """Return the call that runs a kernel."""
    return lambda: apply(op, *arrays)


def differentiates(op: Op, *types: TensorType, through: int = 0) -> Callable[[], Any]:
    """Return the call that asks an op for its gradient through one of its results."""

    def call() -> Any:
        builder = Builder()
        inputs = [builder.input(t, f"x{n}") for n, t in enumerate(types)]
        outputs = builder.apply(op, *inputs)
        return op.gradient(
            inputs, outputs, [y if n == through else None for n, y in enumerate(outputs)]
        )

    return call


def conv(stride: tuple = (1,), padding: tuple = ((0, 0),), dilation: tuple = (1,), groups: int = 1):
    return ops.Convolution(stride, padding, dilation, groups)


def pool(window: tuple = (2,), stride: tuple = (1,), padding: tuple = ((0, 0),)):
    return ops.MaxPool(window, stride, padding)


ATTENTION = ops.Attention(False, 1.0)
HEADS = f(2, 4, 2, 3)
ROWS = (f(4, 6), f(6), f(6))

RAGGED = (
    "values do not form an array; setting an array element with a sequence. The requested array has "
    "an inhomogeneous shape after 1 dimensions. The detected shape was (2,) + inhomogeneous part.; "
    "give equal lengths"
)


def on_host() -> Graph:
    """Return a graph that computes with what lies in the host arena."""
    builder = Builder()
    x = builder.input(TensorType((3,), F32), "x")
    return builder.build({"y": to_host(x) + 1.0})


CASES: list[tuple[Callable[[], Any], type[MithrilError], str]] = [
    *CUSTOM,
    *MORE,
    # types
    (lambda: as_dtype("flaot32"), ShapeError, "dtype 'flaot32' is not supported; known: 'bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'bfloat16', 'float16', 'float32', 'float64'; did you mean 'float32'?"),
    (lambda: promote(I32, F32), ShapeError, "dtypes int32 and float32 do not mix; the array API standard promotes within one kind only; cast one side, such as x.astype('float32')"),
    (calls(lambda x: x[0.5:2], f(4)), ShapeError, "cannot slice from 0.5 to 2 in steps of None; give integers, or dynamic_slice for a start that is computed"),
    (calls(lambda x: ops.stack([x, None]), f(2)), ShapeError, "cannot stack None; give tensors of one shape"),
    # elementwise
    (infers(ops.Add(), f(2), i(2)), ShapeError, "op 'add' meets dtypes float32, int32; cast one side"),
    (infers(ops.Exp(), i(2)), ShapeError, "op 'exp' needs a float dtype, not int32; cast it first"),
    (infers(ops.LogicalAnd(), b(2), f(2)), ShapeError, "op 'logical_and' needs bool, not bool, float32; compare or cast first"),
    (infers(ops.Where(), f(2), f(2), f(2)), ShapeError, "op 'where' needs a bool condition, not float32; compare first"),
    (infers(ops.Add(), f(2, 3), f(2)), ShapeError, "op 'add' cannot broadcast shapes (2, 3) and (2,); sizes must be equal or 1, aligned at the right"),
    (lambda: f(*[1] * 65), ShapeError, "a tensor of float32 would have 65 dimensions, and 64 is the most; merge some with reshape"),
    (lambda: ops.add(1, 2), ShapeError, "an op on two Python scalars has no array; compute it in Python"),
    (calls(lambda x: x + "1", f(2)), ShapeError, "cannot compute with a str here; pass a Python number or an array of the same backend, such as backend.array(…)"),
    (calls(lambda x: x + np.ones(2), f(2)), ShapeError, "cannot compute with a numpy.ndarray here; pass a Python number or an array of the same backend, such as backend.array(…)"),
    # movement
    (infers(ops.Reshape((4,)), f(2, 3)), ShapeError, "cannot reshape float32[2, 3] (6 elements) to (4,) (4 elements); keep the number of elements"),
    (calls(lambda x: x.reshape(4, -1), f(2, 3)), ShapeError, "cannot reshape float32[2, 3] to (4, -1); 6 is not a multiple of 4"),
    (infers(ops.Transpose((0, 0)), f(2, 3)), ShapeError, "cannot transpose float32[2, 3] by (0, 0); name every dimension once"),
    (infers(ops.Broadcast((3, 3)), f(2, 3)), ShapeError, "cannot broadcast float32[2, 3] to (3, 3); sizes must be equal or 1, aligned at the right"),
    (infers(ops.Broadcast((3,)), f(1, 3)), ShapeError, "cannot broadcast float32[1, 3] to (3,); sizes must be equal or 1, aligned at the right"),
    (infers(ops.Slice((0,), (1,), (1,)), f(2, 3)), ShapeError, "cannot slice float32[2, 3] by 1 ranges; one each"),
    (infers(ops.Slice((0,), (4,), (1,)), f(3)), ShapeError, "cannot slice float32[3] from (0,) to (4,); out of range"),
    (infers(ops.Slice((0,), (3,), (0,)), f(3)), ShapeError, "cannot slice float32[3] from (0,) to (3,); out of range"),
    (infers(ops.Pad((-1,), (0,), (0,)), f(3)), ShapeError, "cannot pad float32[3] by ((-1,), (0,), (0,)); one width of 0 or more each"),
    (infers(ops.Concatenate(0), f(2, 3), f(2, 4)), ShapeError, "cannot concatenate float32[2, 3] and float32[2, 4] along dimension 0; all other sizes and the dtypes must be equal"),
    (infers(ops.Concatenate(0), f(2), i(2)), ShapeError, "cannot concatenate float32[2] and int32[2] along dimension 0; all other sizes and the dtypes must be equal"),
    (lambda: ops.concatenate([]), ShapeError, "cannot concatenate no tensors; pass at least one"),
    (calls(lambda x: x[0, 0, 0], f(2, 3)), ShapeError, "cannot index float32[2, 3] with (0, 0, 0); at most 2 indices"),
    (calls(lambda x: x[..., 0, ...], f(2, 3)), ShapeError, "cannot index float32[2, 3] with (Ellipsis, 0, Ellipsis); at most 2 indices"),
    (calls(lambda x: x[::0], f(2)), ShapeError, "cannot index float32[2] with step 0; use another step"),
    (calls(lambda x: x[x > 0], f(2, 3)), ShapeError, "cannot index float32[2, 3] with a mask, bool[2, 3]; how much it picks depends on its values; use where(mask, x, …), or integers"),
    (calls(lambda x, n: x[n, 0], f(2, 3), i(2)), ShapeError, "cannot index float32[2, 3] with a tensor together with another tensor or an integer; index twice"),
    # numbers, order, positions
    (infers(ops.Floor(), b(2)), ShapeError, "op 'floor' needs numbers, not bool; cast it first"),
    (infers(ops.FloorDivide(), b(2), b(2)), ShapeError, "op 'floor_divide' needs numbers, not bool; cast it first"),
    (infers(ops.Power(), b(2), b(2)), ShapeError, "op 'power' needs numbers, not bool; cast it first"),
    (infers(ops.IsNan(), i(2)), ShapeError, "op 'isnan' asks about floats, not int32; cast it first"),
    (infers(ops.BitwiseAnd(), f(2), f(2)), ShapeError, "op 'bitwise_and' needs integers, not float32, float32; cast them"),
    (infers(ops.TopK(1, 4), f(2, 3)), ShapeError, "cannot take the top 4 of dimension 1 of float32[2, 3]; k must be from 1 to 3"),
    (infers(ops.TakeAlong(1), f(2, 3), i(3, 2)), ShapeError, "take_along along dimension 1 of float32[2, 3] has positions int32[3, 2]; they must be integers in the same shape except along that dimension"),
    (infers(ops.ScatterAlong(1, 4), i(2, 3), f(2, 2)), ShapeError, "cannot scatter float32[2, 2] to positions int32[2, 3]; give one position for each update"),
    (infers(ops.MoeDispatch(), f(2, 3), i(2, 4), i(2, 3)), ShapeError, "moe_dispatch gets rows float32[2, 3] and ids int32[2, 4] and int32[2, 3]; give rows [groups, rows, features] and ids [groups, ids]"),
    (infers(ops.MoeDispatch(), f(2, 3, 4), f(2, 4), i(2, 3)), ShapeError, "moe_dispatch gets ids float32[2, 4]; give integers, say int32"),
    (infers(ops.MoeDispatch(), f(2, 3, 4), i(2, 4), i(2, 4)), ShapeError, "moe_dispatch of float32[2, 3, 4] has 4 places to go back; give some for each of 3 rows"),
    (infers(ops.MoeCombine(3), f(2, 4, 4), i(2, 3), i(2, 3)), ShapeError, "moe_combine of float32[2, 4, 4] to 3 rows has 3 ids, and 3 to go back; give as many ids for each row of the result, one back for each of x"),
    (infers(ops.GroupedMatmul(), f(2, 3, 4), i(2, 3), f(5, 6, 4)), ShapeError, "grouped_matmul gets rows float32[2, 3, 4] and ids int32[2, 3]; give rows [groups, blocks, rows, features] and ids [groups, blocks]"),
    (infers(ops.GroupedOuter(3), f(2, 3, 4, 5), f(2, 3, 4, 6), f(2, 3)), ShapeError, "grouped_outer gets rows float32[2, 3, 4, 5] and float32[2, 3, 4, 6] and ids float32[2, 3]; give rows of one float dtype and ids of int32"),
    (infers(ops.GroupedOuter(3, True), f(2, 3, 4, 5), f(2, 3, 4, 6), i(2, 3)), ShapeError, "grouped_outer gets 2 aligned groups for 3 entries; give one each"),
    (infers(ops.GroupedMatmul(), f(2, 3, 4, 5), i(2, 3), f(5, 6, 4)), ShapeError, "grouped_matmul of rows float32[2, 3, 4, 5] meets the stack float32[5, 6, 4]; give matrices with 5 inputs, [entries, outputs, inputs]"),
    (calls(lambda x: ops.var(x, correction=2), f(2)), ShapeError, "cannot take the variance of 2 elements with correction 2; it needs more of them"),
    (infers(ops.AvgPool((2,), (1,), ((0, 0),), True), i(2, 3, 4)), ShapeError, "avg_pool takes floats, not int32[2, 3, 4]; cast it first"),
    (infers(ops.AvgPoolGradient((2,), (1,), ((0, 0),), True, (4,)), f(2, 3, 4)), ShapeError, "avg_pool_gradient gets float32[2, 3, 4] where the result is float32[2, 3, 3]; pass its type"),
    (lambda: ops.randint(None, (2,), 3, 3), OptionError, "randint draws from [3, 3); give the smaller int32 first, less than 2**31 apart"),
    (calls(lambda x: ops.pad(x, [(1, 1, 1)]), f(2, 3)), ShapeError, "cannot pad float32[2, 3] by [(1, 1, 1)]; give (before, after) for each dimension"),
    (calls(lambda x: ops.pad(x, 1.5), f(2, 3)), ShapeError, "pad's widths is 1.5, which is no integer; give one"),
    (calls(lambda x: ops.reshape(x, [2, float("nan")]), f(2, 3)), ShapeError, "a number in reshape's shape is nan, which is no integer; give one"),
    (calls(lambda x: ops.roll(x, 1.5, 0), f(2)), ShapeError, "roll's shift is 1.5, which is no integer; give one"),
    (calls(lambda i, u: ops.scatter_add(i, u, -3), i(1), f(1)), ShapeError, "scatter_add has rows=-3; give a number of 0 or more"),
    (calls(lambda x, y: ops.tensordot(x, y, 3), f(2), f(2)), ShapeError, "tensordot contracts 3 dimensions of float32[2] and float32[2]; give 0 to 1, or a pair of lists"),
    (calls(lambda x, y: ops.tensordot(x, y, [1, 0, 1]), f(2), f(2)), ShapeError, "tensordot has axes [1, 0, 1]; give one list for each operand"),
    (calls(lambda x: ops.split(x, 4), f(6)), ShapeError, "cannot split dimension 0 of float32[6] into 4 equal parts; give a divisor of 6, or the positions at which parts end"),
    (calls(lambda x: x * [[1.0], [2.0, 3.0]], f(2)), ShapeError, RAGGED),
    (calls(lambda x: x * ["a", "b"], f(2)), ShapeError, "values are of type <U1; give lists of numbers, or tensors"),
    (calls(lambda x: x * [1.0, 2.0], f(2)), ShapeError, "a list cannot be taken here, where only float32[2] is known; pass a tensor"),
    (lambda: ops.add([1.0], [2.0]), ShapeError, "an op on two lists of numbers has no array; compute it in NumPy"),
    # compositions
    (lambda: ops.stack([]), ShapeError, "cannot stack no tensors; pass at least one"),
    (calls(lambda x, y: ops.stack([x, y]), f(2), f(3)), ShapeError, "cannot stack float32[2] and float32[3]; the shapes must be equal"),
    (calls(lambda x: ops.squeeze(x, 0), f(2)), ShapeError, "cannot squeeze dimension 0 of float32[2]; only one of size 1 can be left out"),
    (calls(lambda x: ops.moveaxis(x, (0, 1), 0), f(2, 3)), ShapeError, "moveaxis moves 2 dimensions to 1 positions; give one position each"),
    (calls(lambda x: ops.tile(x, (-1,)), f(2)), ShapeError, "tile repeats (-1,) times; numbers of repetitions are 0 or more"),
    (calls(lambda x, y: ops.tensordot(x, y, 1), f(2, 3), f(2, 3)), ShapeError, "tensordot contracts dimensions (1,) of float32[2, 3] with (0,) of float32[2, 3]; their sizes must be equal"),
    (calls(ops.outer, f(2, 3), f(3)), ShapeError, "outer takes two vectors, not float32[2, 3]; reshape it first"),
    (calls(ops.tril, f(2)), ShapeError, "tril takes matrices, not float32[2]; it needs two dimensions"),
    (calls(lambda x: ops.expand_dims(x, (0, 0)), f(2)), ShapeError, "expand_dims names a position twice in (0, 0); name each once"),
    (calls(lambda x: x[:, 3], f(2, 3)), ShapeError, "index 3 is out of range for dimension 1 of float32[2, 3]; use 0 to 2, or -3 to -1"),
    (calls(lambda x: x[[0, 1]], f(2)), ShapeError, "cannot index float32[2] with a list; use integers and slices, or take()"),
    (calls(lambda x: x[True], f(2)), ShapeError, "cannot index float32[2] with a bool; use integers and slices, or take()"),
    (calls(lambda x: x.transpose(0, 2), f(2, 3)), ShapeError, "transpose names dimension 2 of a tensor of rank 2; use 0 to 1, or -2 to -1"),
    # contraction
    (infers(ops.Einsum("ab,bc->ac"), i(2, 3), i(3, 2)), ShapeError, "einsum 'ab,bc->ac' needs equal float dtypes, not int32, int32; cast"),
    (infers(ops.Einsum("ab,bc->a"), f(2, 3), f(3, 2)), ShapeError, "einsum 'ab,bc->a' names 'c' only once; a letter stands for a dimension of at least two of the terms, once in each; sum over others first"),
    (infers(ops.Einsum("aa,ab->ab"), f(2, 2), f(2, 2)), ShapeError, "einsum 'aa,ab->ab' names 'a' twice in one term; a letter stands for a dimension of at least two of the terms, once in each; sum over others first"),
    (infers(ops.Einsum("ab,bc->ac"), f(2), f(3, 2)), ShapeError, "einsum 'ab,bc->ac': 'ab' does not name float32[2]"),
    (infers(ops.Einsum("ab,bc->ac"), f(2, 3), f(4, 2)), ShapeError, "einsum 'ab,bc->ac' cannot contract float32[2, 3] with float32[4, 2]; 'b' is 3 and 4; make the sizes equal"),
    (calls(lambda x: x @ 2, f(2)), ShapeError, "cannot multiply float32[2] @ 2; use * for scalars"),
    (calls(lambda x, y: x @ y, f(2, 3), f(2, 3)), ShapeError, "cannot multiply float32[2, 3] @ float32[2, 3]; the last size of the left and the second to last size of the right must be equal"),
    (calls(lambda x, y: x @ y, f(2, 3), f(2)), ShapeError, "cannot multiply float32[2, 3] @ float32[2]; the last size of the left and the only size of the right must be equal"),
    # reductions
    (infers(ops.Sum((2,), False), f(2, 3)), ShapeError, "op 'sum' cannot reduce dimensions (2,) of float32[2, 3]; name each once, from 0 to 1"),
    (infers(ops.Max((0,), False), b(2)), ShapeError, "op 'max' needs numbers, not bool; use any() or all()"),
    (infers(ops.AllTrue((0,), False), f(2)), ShapeError, "op 'all' needs bool, not float32; compare or cast first"),
    (infers(ops.Min((0,), False), f(0, 2)), ShapeError, "cannot take the min of float32[0, 2] over dimensions (0,); there are no elements"),
    (infers(ops.Argmax(1), f(2, 0)), ShapeError, "cannot take the argmax of float32[2, 0] over dimensions (1,); there are no elements"),
    (calls(lambda x: x.mean(), f(0)), ShapeError, "cannot take the mean of float32[0] over dimensions (0,); there are no elements"),
    (calls(lambda x: x.sum((0, -2)), f(2, 3)), ShapeError, "sum names a dimension twice in (0, -2); name each once"),
    (calls(lambda x: x.sum(-3), f(2, 3)), ShapeError, "sum names dimension -3 of a tensor of rank 2; use 0 to 1, or -2 to -1"),
    # positions
    (infers(ops.Take(), f(2), f(2)), ShapeError, "op 'take' needs integer ids, not float32; cast them, say to int32"),
    (infers(ops.OneHot(0, F32), i(2)), ShapeError, "one_hot has 0 classes; give at least 1"),
    (infers(ops.OneHot(2, F32), b(2)), ShapeError, "op 'one_hot' needs integer ids, not bool; cast them, say to int32"),
    (infers(ops.Take(), f(), i(2)), ShapeError, "cannot take rows of float32[]; the table needs a dimension"),
    (infers(ops.ScatterAdd(2), i(2), f(3)), ShapeError, "cannot scatter float32[3] by ids int32[2]; the leading sizes of the updates must be those of the ids"),
    (runs(ops.Take(), np.ones(3), np.array([3])), ShapeError, "take meets id 3; ids must lie in 0…2; check the ids, or enlarge the table or the number of classes"),
    (runs(ops.ScatterAdd(3), np.array([-1]), np.ones(1)), ShapeError, "scatter_add meets id -1; ids must lie in 0…2; check the ids, or enlarge the table or the number of classes"),
    (infers(ops.DynamicSlice((1,), (4,)), f(2, 3), i()), ShapeError, "dynamic_slice takes 4 elements along dimension 1 of float32[2, 3]; take from 0 to 3"),
    (infers(ops.DynamicSlice((1,), (2,)), f(2, 3)), ShapeError, "dynamic_slice cuts 1 dimensions and has 0 starts; give one for each"),
    (calls(lambda x, n: ops.dynamic_slice(x, n, 2, axis=1), f(2, 3), i(2)), ShapeError, "dynamic_slice starts at int32[2]; a start is an integer scalar, one for each dimension"),
    (calls(lambda x, n: ops.dynamic_update_slice(x, x[:, :1], (0, n)), f(2, 3), f()), ShapeError, "dynamic_update_slice starts at float32[]; a start is an integer scalar, one for each dimension"),
    (calls(lambda x, y: ops.dynamic_update_slice(x, y, (0, 0)), f(2, 3), f(2, 4)), ShapeError, "dynamic_update_slice cannot write float32[2, 4] into float32[2, 3]; the update must have its dtype, as many dimensions, and none that is longer"),
    (calls(lambda x, y: ops.dynamic_update_slice(x, y, 0, axis=1), f(2, 3), f(2)), ShapeError, "dynamic_update_slice cannot write float32[2] into float32[2, 3]; the update must have its dtype, as many dimensions, and none that is longer"),
    (calls(lambda x: ops.dynamic_slice(x, 1, (1, 1)), f(2, 3)), ShapeError, "dynamic_slice has 1 starts for float32[2, 3]; give one for each dimension, or name the one that is cut with axis="),
    (calls(lambda x: ops.dynamic_slice(x, (1, 1), 1), f(2, 3)), ShapeError, "dynamic_slice has 1 sizes for float32[2, 3]; give one for each dimension, or one with axis="),
    (calls(lambda x: ops.dynamic_slice(x, 0.5, 1, axis=0), f(2, 3)), ShapeError, "dynamic slice has start 0.5; give integers, or integer scalars of a backend"),
    # matrices
    (calls(ops.cholesky, f(2, 3)), ShapeError, "cholesky takes square matrices [..., n, n], not float32[2, 3]"),
    (calls(ops.svd, f(3)), ShapeError, "svd takes matrices [..., rows, columns], not float32[3]"),
    (calls(ops.qr, f(2, 0)), ShapeError, "qr takes matrices [..., rows, columns], not float32[2, 0]"),
    (infers(ops.Det(), i(2, 2)), ShapeError, "det needs floats, not int32; cast them, say to float32"),
    (calls(ops.solve, f(2, 2), f(3)), ShapeError, "solve cannot solve float32[2, 2] for float32[3, 1]; leading sizes, rows and dtypes must be equal"),
    (calls(ops.triangular_solve, f(2), f(2)), ShapeError, "triangular_solve cannot solve float32[2] for float32[2]; give matrices [..., n, n] and right sides [..., n, k] or [n]"),
    # random numbers
    (infers(ops.RandomBits((2,), (2,), 0), i()), ShapeError, "random bits need a uint32 scalar as seed, not int32[]; cast it"),
    (lambda: ops.random_bits(None, (2,), width=33), OptionError, "random bits have width 33; give a number from 1 to 32"),
    (lambda: ops.bernoulli(None, (2,), 1.5), OptionError, "probability is 1.5; give a number in [0, 1]"),
    (calls(lambda x: ops.dropout(x, None, 1.0), f(2)), OptionError, "dropout rate is 1.0; give a number in [0, 1)"),
    # neural networks
    (infers(ops.Softmax(0), i(2)), ShapeError, "softmax needs a float dtype, not int32[2]; cast it first"),
    (infers(ops.LogSoftmax(0), f(0)), ShapeError, "cannot take the log_softmax of float32[0]; dimension 0 is empty"),
    (infers(ops.LayerNorm(1e-5), f(4, 6), f(4), f(6)), ShapeError, "layer_norm of float32[4, 6] has gain float32[4] and bias float32[6]; both need one value per element of the last dimension"),
    (infers(ops.RmsNorm(1e-6), f(4, 6), f(4)), ShapeError, "rms_norm of float32[4, 6] has gain float32[4]; it needs one value per element of the last dimension"),
    (infers(ops.BatchNorm(1e-5), f(4), f(4), f(4)), ShapeError, "batch_norm needs [batch, channels, *spatial], not float32[4]; reshape it"),
    (infers(ops.BatchNorm(1e-5), f(4, 6), f(4), f(6)), ShapeError, "batch_norm of float32[4, 6] has gain float32[4] and bias float32[6]; give one value per channel, in the dtype of x"),
    (infers(ops.ChannelMoments(), f(0, 6)), ShapeError, "cannot take the channel_moments of float32[0, 6]; there are no elements in a channel"),
    (infers(ops.ChannelSums(), f(4, 6), f(4), f(4, 6)), ShapeError, "channel_sums of float32[4, 6] has statistics float32[4]; give one number per channel"),
    (infers(ops.ChannelSums(), f(4, 6), f(6), f(4, 5)), ShapeError, "channel_sums of float32[4, 6] has a cotangent float32[4, 5]; make the types equal"),
    (infers(ops.ChannelGradient(4), f(4, 6), f(6), f(6), f(6), f(4, 6), f(6)), ShapeError, "channel_gradient of float32[4, 6] has a cotangent float32[4, 6] and sums float32[6]; it needs the type of x, and what channel_sums gives"),
    (infers(ops.GroupNorm(4, 1e-5), f(2, 6)), ShapeError, "group_norm cannot divide the channels of float32[2, 6] into 4 groups; give [batch, channels, *spatial], and groups that divide the channels"),
    (infers(ops.GroupNorm(2, 1e-5), f(2, 6), f(6), f(2)), ShapeError, "group_norm of float32[2, 6] has gain and bias float32[6] and float32[2]; give one value per channel for each, in the dtype of x"),
    (infers(ops.GroupNorm(2, 1e-5), f(2, 6, 0)), ShapeError, "cannot take the group_norm of float32[2, 6, 0]; there are no elements in a group"),
    (infers(ops.Lstm(False), f(3, 2, 5), f(4, 6, 5), f(4, 6, 5), f(2, 6), f(2, 6)), ShapeError, "lstm of float32[3, 2, 5] is given float32[4, 6, 5], float32[4, 6, 5], float32[2, 6], float32[2, 6]; give weights [4, hidden, features] and [4, hidden, hidden], states [batch, hidden] and biases [4, hidden], in the dtype of x [sequence, batch, features]"),
    (infers(ops.Lstm(False), f(0, 2, 5), f(4, 6, 5), f(4, 6, 6), f(2, 6), f(2, 6)), ShapeError, "lstm of float32[0, 2, 5] has no position to read; give at least one"),
    (calls(ops.rope, f(2, 4, 6)), ShapeError, "rope gets float32[2, 4, 6]; it needs [batch, sequence, heads, head_dim] of a float dtype, with an even head_dim"),
    (calls(ops.rope, f(2, 4, 2, 3)), ShapeError, "rope gets float32[2, 4, 2, 3]; it needs [batch, sequence, heads, head_dim] of a float dtype, with an even head_dim"),
    (calls(lambda x: ops.rope(x, base=0), f(2, 4, 2, 6)), ShapeError, "rope has base 0.0; choose a positive one, such as 10000.0"),
    (calls(ops.rope, f(2, 4, 2, 6), f(4)), ShapeError, "rope of float32[2, 4, 2, 6] has positions float32[4]; give integers of shape (4,), (2, 4), or a scalar to count from"),
    (calls(ops.rope, f(2, 4, 2, 6), i(2)), ShapeError, "rope of float32[2, 4, 2, 6] has positions int32[2]; give integers of shape (4,), (2, 4), or a scalar to count from"),
    (calls(lambda x: ops.rope(x, [0, 1]), f(1, 2, 2, 6)), ShapeError, "rope has positions of type list; pass a tensor of integers, or a number as offset="),
    (lambda: gradient_by_expansion(ops.Exp(), [Builder().input(f(2), "x")], [None]), GraphError, "op 'exp' has no expansion; give it one to differentiate it"),
    (infers(ops.CrossEntropy(), f(4, 6), i(6)), ShapeError, "cross_entropy of logits float32[4, 6] has targets int32[6]; give one integer class per row of logits"),
    (infers(ops.CrossEntropy(), f(4, 0), i(4)), ShapeError, "cross_entropy of logits float32[4, 0] has no classes; give at least one"),
    (runs(ops.CrossEntropy(), np.ones((2, 3)), np.array([0, 3])), ShapeError, "cross_entropy has targets from 0 to 3 for 3 classes; targets must lie in [0, 3); check the targets, or give more classes"),
    # attention
    (infers(ATTENTION, f(2, 4, 3, 3), f(2, 4, 2, 3), f(2, 4, 2, 3)), ShapeError, "attention has q float32[2, 4, 3, 3], k float32[2, 4, 2, 3], v float32[2, 4, 2, 3]; they need shapes [batch, sequence, heads, head_dim] with equal batch, heads of q a multiple of those of k and v, and one float dtype"),
    (infers(ATTENTION, HEADS, HEADS, HEADS, b(2, 4, 4)), ShapeError, "attention has scores [2, 2, 4, 4] and a mask bool[2, 4, 4]; give booleans (true is seen) or floats (added to the scores), each size that of the scores or 1"),
    (infers(ATTENTION, HEADS, HEADS, HEADS, f(2, 3, 4, 4)), ShapeError, "attention has scores [2, 2, 4, 4] and a mask float32[2, 3, 4, 4]; give booleans (true is seen) or floats (added to the scores), each size that of the scores or 1"),
    (infers(ATTENTION, HEADS, HEADS, HEADS, i(1, 1, 4, 4)), ShapeError, "attention has scores [2, 2, 4, 4] and a mask int32[1, 1, 4, 4]; give booleans (true is seen) or floats (added to the scores), each size that of the scores or 1"),
    (infers(ops.Attention(True, 1.0), f(1, 4, 1, 2), f(1, 3, 1, 2), f(1, 3, 1, 2)), ShapeError, "attention has 4 queries and 3 keys and is causal; every query must see at least one key; pass more keys"),
    (infers(ops.AllGatherAttention(True, 1.0), f(1, 4, 1, 2), f(1, 6, 1, 2), f(1, 6, 1, 2)), ShapeError, "causal attention that gathers keys has 4 queries and 6 keys; it balances one sequence over devices; give both the same one, or context_parallel='ulysses'"),
    (infers(ops.RingAttention(False, 1.0), f(1, 4, 1, 2), f(1, 6, 1, 2), f(1, 6, 1, 2)), ShapeError, "ring attention has 4 queries and 6 keys; a device passes on as many keys as it has queries; give both the same sequence, or context_parallel='ulysses'"),
    (calls(lambda x: ops.attention(x, x, x, context_parallel="rings"), HEADS), OptionError, "attention has context_parallel='rings'; did you mean 'ring'?; choose 'ring', 'ulysses', 'all_gather' or None"),
    (calls(lambda x: ops.attention(x, x, x, context_parallel=["ring"]), HEADS), OptionError, "attention has context_parallel=['ring']; did you mean 'ring'?; choose 'ring', 'ulysses', 'all_gather' or None"),
    # loops
    (calls(lambda x: ops.repeat(lambda: (), (), count=2), f(2)), GraphError, "repeat has no carry; give the tensor the first iteration starts from"),
    (calls(lambda x: ops.repeat(lambda x, y: x, (x, x), count=2), f(2)), GraphError, "repeat has 2 carries and its function returns 1 values; return the next value of every carry, as tensors"),
    # convolutions
    (infers(conv(), f(2, 3), f(4, 3)), ShapeError, "convolution takes an input [batch, channels, *spatial] and a weight [out, in / groups, *window] of one rank, not float32[2, 3] and float32[4, 3]; add the missing dimensions"),
    (infers(conv(), i(2, 3, 4), i(4, 3, 2)), ShapeError, "convolution needs equal float dtypes, not int32[2, 3, 4] and int32[4, 3, 2]; cast one side"),
    (infers(conv(groups=3), f(2, 3, 4), f(4, 1, 2)), ShapeError, "convolution has 4 output channels in 3 groups; choose a number of groups that divides them"),
    (infers(conv(groups=2), f(2, 3, 4), f(4, 1, 2)), ShapeError, "convolution of float32[2, 3, 4] has 3 input channels, but weight float32[4, 1, 2] with 2 groups takes 2; make them equal"),
    (infers(conv(), f(2, 3, 4, 4), f(4, 3, 2, 2)), ShapeError, "convolution of float32[2, 3, 4, 4] has attributes for [1] spatial dimensions; give one for each of the 2"),
    (infers(conv(stride=(0,)), f(2, 3, 4), f(4, 3, 2)), ShapeError, "convolution has stride (0,), dilation (1,) and padding ((0, 0),); steps must be 1 or more, padding 0 or more"),
    (infers(conv(padding=((0, -1),)), f(2, 3, 4), f(4, 3, 2)), ShapeError, "convolution has stride (1,), dilation (1,) and padding ((0, -1),); steps must be 1 or more, padding 0 or more"),
    (infers(conv(dilation=(2,)), f(2, 3, 4), f(4, 3, 3)), ShapeError, "convolution of float32[2, 3, 4] has a window of extent (5,), larger than the input padded by ((0, 0),); use a smaller window or more padding"),
    (infers(conv().input_gradient((4,)), f(2, 4, 4), f(4, 3, 2)), ShapeError, "convolution_input_gradient gets float32[2, 4, 4] where the result is float32[2, 4, 3]; pass its type"),
    (infers(conv().weight_gradient((2,)), f(2, 3, 4), f(2, 4, 4)), ShapeError, "convolution_weight_gradient gets float32[2, 4, 4] where the result is float32[2, 4, 3]; pass its type"),
    (calls(lambda x, w: ops.convolution(x, w, stride=(1, 2)), f(2, 3, 4), f(4, 3, 2)), ShapeError, "convolution's stride (1, 2) is given for 2 spatial dimensions, the input has 1; give one number for each"),
    (calls(lambda x, w: ops.convolution(x, w, padding=(1, 2)), f(2, 3, 4), f(4, 3, 2)), ShapeError, "convolution's padding ((1, 1), (2, 2)) is given for 2 spatial dimensions, the input has 1; give one number or (before, after) for each"),
    (infers(pool(), b(2, 3, 4)), ShapeError, "max_pool takes numbers of shape [batch, channels, *spatial], not bool[2, 3, 4]; add the missing dimensions or cast it"),
    (infers(pool(padding=((2, 0),)), f(2, 3, 4)), ShapeError, "max_pool has padding ((2, 0),) for window (2,); pad by less than the window, so that every window meets the input"),
    (infers(pool(window=(0,)), f(2, 3, 4)), ShapeError, "max_pool has stride (1,), window (0,) and padding ((0, 0),); steps must be 1 or more, padding 0 or more"),
    (infers(pool(window=(5,)), f(2, 3, 4)), ShapeError, "max_pool of float32[2, 3, 4] has a window of extent (5,), larger than the input padded by ((0, 0),); use a smaller window or more padding"),
    (infers(ops.MaxPoolGradient((2,), (1,), ((0, 0),)), f(2, 3, 4), f(2, 3, 3), f(2, 3, 4)), ShapeError, "max_pool_gradient gets float32[2, 3, 4] where the result is float32[2, 3, 3]; pass its type"),
    (infers(ops.Constrain(((), (), ("x",))), f(2, 3)), ShardingError, "cannot constrain float32[2, 3] to P(None, None, 'x'); it has 3 entries; give at most one per dimension"),
    (differentiates(ops.MaxPoolGradient((2,), (1,), ((0, 0),)), f(2, 3, 4), f(2, 3, 3), f(2, 3, 3)), GraphError, "max_pool has no second derivative here; differentiate it once, or pool with mean()"),
    (lambda: KernelTable().register(ops.Exp, ops.Exp)(abs), BackendError, "op 'exp' has a kernel in this table already; register one"),
    (lambda: verify_host(on_host()), GraphError, "op 'add' computes with float32[3], which lies in the host arena; bring it back with from_host before"),
    (calls(lambda x: ops.sum(x, keepdims="no"), f(2, 3)), OptionError, "sum's keepdims='no' is neither True nor False; give one of them"),
    (calls(lambda x: ops.var(x, correction="a"), f(2, 3)), ShapeError, "var's correction is a str; give a number"),
    (lambda: check_number(0.5, I32), ShapeError, "number is 0.5, which is no int32; that holds the integers from -2147483648 to 2147483647; take another"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), CASES, ids=[text[:48] for _, _, text in CASES])
def test_error_says_what_is_wrong(call, kind: type[MithrilError], text: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call()


def raised() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield place and pattern of every error the ops and their kernels raise."""
    root = Path(mithril.__file__).parent
    elsewhere = {root / "ops" / "own_kernel.py"}  # tests/test_registered_plugins.py has its errors
    ops = (path for path in root.glob("ops/*.py") if path not in elsewhere)
    for path in (root / "types.py", *ops, *root.glob("engine/kernels/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                text = node.exc.args[0]
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                pattern = "".join(
                    re.escape(part.value) if isinstance(part, ast.Constant) else ".*"
                    for part in parts
                )
                yield f"{path.name}:{node.lineno}", re.compile(pattern)


def test_every_error_has_a_case() -> None:
    found, texts = list(raised()), [text for _, _, text in CASES]
    assert len(found) > 100
    assert [f"{at}: {p.pattern}" for at, p in found if not any(map(p.fullmatch, texts))] == []
