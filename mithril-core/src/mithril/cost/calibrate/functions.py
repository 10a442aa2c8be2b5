"""Measures ops one by one whose rates are their own: functions, convolutions, transposes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mithril.cost.calibrate.timing import Step, Timer, make_type, subtract
from mithril.cost.compiled_form import ColumnSum, LayOut
from mithril.cost.rates import Rate
from mithril.cost.work import WINDOWS, is_fused
from mithril.engine import Engine
from mithril.ir import Op, Tensor
from mithril.ir.operand import apply, apply_one
from mithril.ops.arithmetic import Add, Multiply
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.control import After, after
from mithril.ops.conv import (
    Convolution,
    ConvolutionInputGradient,
    ConvolutionWeightGradient,
    Convolving,
)
from mithril.ops.functions import Erf, Tanh
from mithril.ops.nn import Gelu, GeluGradient, Silu, SiluGradient, Softmax, SoftmaxGradient
from mithril.ops.normalization import LayerNorm, LayerNormGradient, RmsNorm, RmsNormGradient
from mithril.ops.pool import AvgPool, AvgPoolGradient, MaxPool, MaxPoolGradient
from mithril.ops.reduce import Sum
from mithril.ops.shape import Transpose
from mithril.types import Shape, TensorType

LONGEST = 0.1
"""Seconds of a convolution beyond which no larger one is measured."""
ROWS, COLUMNS = 1024, 256
NARROW, WIDE = (1024, 256), (2048, 1024)
"""Matrices whose columns are summed."""
ATTENTION = (4, 128, 4, 64)
"""Batch, sequence, heads and their size."""
CONSTANT_ERROR = 1e-5
IMAGES, WINDOW = ((8, 64, 16, 16), (32, 64, 32, 32)), (3, 3)
"""Batch, channels and sizes, of small and large images; a window that keeps all of them."""
FEW = 4
"""Channels of which hardly anything but the windows of a convolution costs."""
NOTICED = 0.1
"""The share of what a convolution of few channels takes that windows have at least, to be told from
noise."""
ORDERS = ((0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 3, 0), (3, 0, 1, 2))
"""In which libraries take images: channels last, the batch last, and back."""


def count_ops(engine: Engine) -> int:
    """Return how many ops an `OpTimer` measures."""
    kernels = engine.kernels
    listed = len(list_functions(kernels)) + len(list_convolutions(kernels))
    return listed + len(list_pools(kernels)) + 2 * engine.execution.lays_out


class OpTimer:
    """Times ops; each is given as operations a second by their number.

    A compiler makes a chain of ops one kernel, in which it computes values anew for each use, and
    leaves out what brings operands into the order of a library. Beside other ops it is not so:
    functions are measured with operands that come from memory, and results that go there.

    Args:
        timer: of the engine.
        kernel_seconds: what starting a kernel costs.
        advance: told of each measurement before it begins.
    """

    def __init__(self, timer: Timer, kernel_seconds: float, advance: Callable[[str], None]) -> None:
        self._timer, self._kernel_seconds, self._advance = timer, kernel_seconds, advance
        self._gaps: dict[TensorType, float] = {}

    def measure_functions(self) -> Mapping[str, Rate]:
        """Return the rates of ops by name, where they are not those of their memory."""
        return self._measure_all(list_functions(self._timer.engine.kernels))

    def measure_pools(self) -> Mapping[str, Rate]:
        """Return the rates of pools and of their gradients, by name."""
        return self._measure_all(list_pools(self._timer.engine.kernels))

    def _measure_all(self, ops: Mapping[Op, Sequence[TensorType]]) -> Mapping[str, Rate]:
        engine, found = self._timer.engine, {}
        for op, types in ops.items():
            self._advance(op.name)
            seconds = self._measure_apart(op, types)
            start = 0.0 if is_fused(op, engine.execution) else self._kernel_seconds
            flops = float(op.cost(types, op.infer(types)).flops)
            found[op.name] = ((flops, flops / subtract(seconds, start)),)
        return found

    def measure_convolutions(self) -> Mapping[str, Rate]:
        """Return the rates of a convolution and of its gradients, and of their windows, by name.

        With few channels it takes as long as its windows do, and with many as its operations.
        """
        found: dict[str, Rate] = {}
        for op in list_convolutions(self._timer.engine.kernels):
            self._advance(op.name)
            narrow = (IMAGES[1][0], FEW, *IMAGES[1][2:])
            took = [(images, self._time_convolution(op, images)) for images in (narrow, IMAGES[0])]
            rate = _count_operations(IMAGES[0]) / took[1][1]
            if _count_operations(IMAGES[1]) / rate <= LONGEST:
                took.append((IMAGES[1], self._time_convolution(op, IMAGES[1])))
            each = _solve_window(*took[0], *took[1])
            found[op.name] = tuple(_find_rate(*one, each) for one in took[1:])
            if each * _count_windows(narrow) > NOTICED * took[0][1]:
                found[op.name + WINDOWS] = ((_count_windows(narrow), 1 / each),)
        return found

    def measure_transposes(self) -> Mapping[str, Rate]:
        """Return the elements that are put into another order, where a compiler does that."""
        if not self._timer.engine.execution.lays_out:
            return {}
        self._advance(LayOut.name)
        return {LayOut.name: tuple(map(self._measure_transpose, (ATTENTION, IMAGES[1])))}

    def measure_column_sums(self) -> Mapping[str, Rate]:
        """Return the elements that sums of columns add up, where a compiler makes them kernels."""
        if not self._timer.engine.execution.lays_out:
            return {}
        self._advance(ColumnSum.name)
        return {ColumnSum.name: tuple(self._measure_column_sum(x) for x in (NARROW, WIDE))}

    def _measure_apart(self, op: Op, types: Sequence[TensorType]) -> float:
        """Return the seconds of an op whose first result takes the place of its first operand."""
        is_kept_apart = self._timer.engine.execution.fuses

        def step(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
            return apply(op, after(x, x) if is_kept_apart else x, *operands[1:])[0]

        gap = self._find_gap(types[0]) if is_kept_apart else 0.0
        return subtract(self._timer.measure(step, types), gap)

    def _time_convolution(self, op: Convolving, images: Shape) -> float:
        """Return the seconds of a convolution of as many channels as images have."""
        types = [make_type(*images), make_type(images[1], images[1], *WINDOW)]
        if isinstance(op, ConvolutionInputGradient):
            op = op.input_gradient(images[2:])
        seconds = self._timer.measure(_convolve(op), types)
        if isinstance(op, ConvolutionWeightGradient):
            seconds = subtract(seconds, self._timer.measure(_convolve(op.forward()), types))
        return subtract(seconds, self._kernel_seconds)

    def _measure_transpose(self, shape: Shape) -> tuple[float, float]:
        def step(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
            for order in ORDERS:
                x = after(apply_one(Transpose(order), x), x)
            return x

        type = make_type(*shape)
        seconds = subtract(self._timer.measure(step, [type]) / len(ORDERS), self._find_gap(type))
        return float(type.size), type.size / subtract(seconds, self._kernel_seconds)

    def _measure_column_sum(self, shape: Shape) -> tuple[float, float]:
        """Return the rate of a sum, which is added to each row so that the next one needs it."""

        def add_sum(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
            total = apply_one(Sum((0,), keepdims=False), x)
            return apply_one(After(), apply_one(Add(), x, total), x)

        def add(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
            return apply_one(After(), apply_one(Add(), x, operands[1]), x)

        x, row = make_type(*shape), make_type(shape[1])
        seconds = self._timer.measure(add_sum, [x])
        seconds = subtract(seconds, self._timer.measure(add, [x, row]))
        return float(x.size), x.size / subtract(seconds, self._kernel_seconds)

    def _find_gap(self, type: TensorType) -> float:
        """Return the seconds of what keeps a tensor apart."""
        if type not in self._gaps:
            self._gaps[type] = self._timer.measure(lambda x, operands: after(x, x), [type])
        return self._gaps[type]


def list_functions(kernels: frozenset[str]) -> dict[Op, tuple[TensorType, ...]]:
    """Return the ops whose rates are measured one by one, with the types of their operands.

    Applied to their own results for long they leave no values, such as infinities, that libraries
    treat apart.

    Args:
        kernels: names of the ops that the engine runs itself.
    """
    x, row = make_type(ROWS, COLUMNS), make_type(COLUMNS)
    column = make_type(ROWS)
    heads = make_type(*ATTENTION)
    batch, length, count, _ = ATTENTION
    total = make_type(batch, count, length)
    known: dict[Op, tuple[TensorType, ...]] = {
        Tanh(): (x,),
        Erf(): (x,),
        Gelu(approximate=False): (x,),
        GeluGradient(approximate=False): (x, x),
        Silu(): (x,),
        SiluGradient(): (x, x),
        Softmax(-1): (x,),
        SoftmaxGradient(-1): (x, x),
        LayerNorm(CONSTANT_ERROR): (x, row, row),
        LayerNormGradient(): (x, row, column, column, x),
        RmsNorm(CONSTANT_ERROR): (x, row),
        RmsNormGradient(): (x, row, column, x),
        Attention(causal=True, scale=0.1): (heads, heads, heads),
        AttentionGradient(causal=True, scale=0.1): (heads, heads, heads, heads, total, heads),
    }
    return {op: types for op, types in known.items() if op.name in kernels}


def list_convolutions(kernels: frozenset[str]) -> tuple[Convolving, ...]:
    """Return a convolution and its gradients, which are measured one by one.

    Args:
        kernels: names of the ops that the engine runs itself.
    """
    op = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    known = (op, op.input_gradient(IMAGES[0][2:]), op.weight_gradient(WINDOW))
    return known if kernels >= {one.name for one in known} else ()


def list_pools(kernels: frozenset[str]) -> dict[Op, tuple[TensorType, ...]]:
    """Return pools and their gradients, which are measured one by one; see `list_functions`.

    Args:
        kernels: names of the ops that the engine runs itself.
    """
    x, ones, pads = make_type(*IMAGES[0]), (1, 1), ((1, 1), (1, 1))
    known: dict[Op, tuple[TensorType, ...]] = {
        MaxPool(WINDOW, ones, pads): (x,),
        MaxPoolGradient(WINDOW, ones, pads): (x, x, x),
        AvgPool(WINDOW, ones, pads, count_padding=False): (x,),
        AvgPoolGradient(WINDOW, ones, pads, count_padding=False, size=IMAGES[0][2:]): (x,),
    }
    return {op: types for op, types in known.items() if op.name in kernels}


def _count_operations(images: Shape) -> float:
    return 2.0 * math.prod(images) * images[1] * math.prod(WINDOW)


def _count_windows(images: Shape) -> float:
    return float(images[0] * math.prod(images[2:]))


def _solve_window(narrow: Shape, short: float, wide: Shape, long: float) -> float:
    """Return the seconds of a window where operations take what they do in both convolutions."""
    share = _count_operations(narrow) / _count_operations(wide)
    rest = short - share * long
    return max(rest / (_count_windows(narrow) - share * _count_windows(wide)), 0.0)


def _find_rate(images: Shape, seconds: float, each: float) -> tuple[float, float]:
    """Return operations, and how many a second besides windows of so many seconds each."""
    flops = _count_operations(images)
    return flops, flops / subtract(seconds, each * _count_windows(images))


def _convolve(op: Op) -> Step:
    """Return an op of convolution; the gradient of a weight is convolved with in its turn."""
    if isinstance(op, ConvolutionWeightGradient):
        return lambda x, operands: apply_one(
            op.forward(), x, apply_one(Multiply(), apply_one(op, x, operands[0]), operands[1])
        )
    return lambda x, operands: apply_one(op, x, operands[1])
