"""Measures what a device computes: products by size and dtype, memory, kernels, functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mithril.cost.calibrate.timing import Step, Timer, make_type
from mithril.cost.compiled_form import LayOut
from mithril.cost.hardware import Rate
from mithril.cost.work import is_fused
from mithril.ir import Op, Tensor
from mithril.ir.operand import apply, apply_one
from mithril.ops.arithmetic import Add, Multiply
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.control import after
from mithril.ops.conv import (
    Convolution,
    ConvolutionInputGradient,
    ConvolutionWeightGradient,
    Convolving,
)
from mithril.ops.functions import Erf, Tanh
from mithril.ops.linalg import Einsum
from mithril.ops.nn import Gelu, GeluGradient, Silu, SiluGradient, Softmax, SoftmaxGradient
from mithril.ops.normalization import LayerNorm, LayerNormGradient, RmsNorm, RmsNormGradient
from mithril.ops.reduce import Sum
from mithril.ops.shape import Transpose
from mithril.types import DType, Shape, TensorType

DTYPES = (DType.float32, DType.bfloat16, DType.float16, DType.float64)
PRODUCT_SIZES = (16, 32, 64, 128, 256, 512, 1024)
FORMS = ("ab,cb->ac", "ab,bc->ac", "ba,bc->ac")
"""Of a product by a weight [out, in]: forward, and the gradients of its input and of the weight."""
LONGEST = 0.1
"""Seconds of one product or convolution beyond which no larger one is measured."""
COLUMNS = 256
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
SMALL = 16
"""So many rows of a kernel, or fewer, stay in the nearest cache: they tell what a kernel costs."""
CLEAR = 3.0
"""So many times what starting a kernel costs a kernel has to take to tell of anything else."""
FUNCTION_ROWS = 1024
ATTENTION = (4, 128, 4, 64)
"""Batch, sequence, heads and their size."""
CONSTANT_ERROR = 1e-5
IMAGES, WINDOW = ((8, 64, 16, 16), (32, 64, 32, 32)), (64, 64, 3, 3)
"""Batch, channels and sizes, of small and large images; channels and a window that keeps all of
them."""
ORDERS = ((0, 2, 3, 1), (0, 3, 1, 2), (1, 2, 3, 0), (3, 0, 1, 2))
"""In which libraries take images: channels last, the batch last, and back."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What kernels cost whose arithmetic is nothing.

    Args:
        kernel_seconds: what starting one costs.
        bandwidths: bytes a second by the bytes that a kernel reads and writes.
        error: of the fit, see `Line.error`.
    """

    kernel_seconds: float
    bandwidths: Rate
    error: float


def measure_memory(timer: Timer, advance: Callable[[str], None]) -> Memory:
    """Return what kernels cost by the bytes that they read and write.

    Args:
        timer: of the engine.
        advance: told of each measurement before it begins.
    """
    starts, points = [], []
    for rows in ROWS:
        advance(f"memory, {rows} x {COLUMNS}")
        type = make_type(rows, COLUMNS)
        if rows <= SMALL:
            starts.append(_time_kernel(timer, type))
        if rows >= SMALL:
            seconds = timer.measure(_repeat(Add()), [type, type], steps=1)
            points.append((3.0 * type.nbytes, seconds))
    # The smallest kernels hardly read anything: what they take is what starting one costs.
    start = min(starts)
    error = math.sqrt(sum((one / start - 1) ** 2 for one in starts[:2]) / 2)
    # Where starting is most of the time, noise would decide what the rest is.
    sure = [(moved, took) for moved, took in points[:-1] if took > CLEAR * start] + points[-1:]
    bandwidths = [(moved, moved / max(took - start, took / 4)) for moved, took in sure]
    return Memory(start, tuple(bandwidths), error)


def _time_kernel(timer: Timer, type: TensorType) -> float:
    """Return the seconds of a small kernel."""
    if not timer.engine.execution.fuses:
        return timer.measure(_repeat(Add()), [type, type])
    # Additions in a row would be one kernel; a sum over rows ends one.
    return timer.measure(_add_sum, [type])


def _add_sum(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
    del operands
    return apply_one(Add(), x, apply_one(Sum((1,), keepdims=True), x))


def _repeat(op: Op) -> Step:
    """Return an op whose first result takes the place of its first operand."""
    return lambda x, operands: apply(op, x, *operands[1:])[0]


class _Apart:
    """Times ops whose operands come from memory, and whose results go there.

    A compiler makes a chain of ops one kernel, in which it computes values anew for each use, and
    leaves out what brings operands into the order of a library. Beside other ops it is not so.

    Args:
        timer: of the engine.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._known: dict[TensorType, float] = {}

    def measure(self, step: Step, types: Sequence[TensorType]) -> float:
        """Return the seconds of an op; see `Timer.measure`."""
        if not self._timer.engine.execution.fuses:
            return self._timer.measure(step, types)
        seconds = self._timer.measure(lambda x, operands: step(after(x, x), operands), types)
        return max(seconds - self._find_gap(types[0]), seconds / 4)

    def _find_gap(self, type: TensorType) -> float:
        """Return the seconds of what keeps a tensor apart."""
        if type not in self._known:
            self._known[type] = self._timer.measure(lambda x, operands: after(x, x), [type])
        return self._known[type]


def measure_products(
    timer: Timer, kernel_seconds: float, advance: Callable[[str], None]
) -> dict[DType, Rate]:
    """Return the operations a second of products by dtype and size.

    Args:
        timer: of the engine.
        kernel_seconds: what starting a kernel costs.
        advance: told of each measurement before it begins.
    """
    dtypes = [dtype for dtype in DTYPES if dtype in timer.engine.dtypes]
    return {dtype: _measure_dtype(timer, dtype, kernel_seconds, advance) for dtype in dtypes}


def _train(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """Multiply a matrix in the ways in which training does."""
    for equation in FORMS:
        x = apply_one(Einsum(equation), x, operands[1])
    return x


def count_products(timer: Timer) -> int:
    """Return how many measurements `measure_products` makes at most."""
    return len(PRODUCT_SIZES) * sum(dtype in timer.engine.dtypes for dtype in DTYPES)


def _measure_dtype(
    timer: Timer, dtype: DType, kernel_seconds: float, advance: Callable[[str], None]
) -> Rate:
    points, seconds = [], 0.0
    for size in PRODUCT_SIZES:
        advance(f"product, {size} x {size} {dtype}")
        # Eight times the work of the size before.
        if 8 * seconds > LONGEST:
            continue
        type = make_type(size, size, dtype=dtype)
        share = 1.0 if dtype == DType.float32 else 0.5
        seconds = timer.quickly(share).measure(_train, [type, type]) / len(FORMS)
        points.append((2.0 * size**3, seconds))
    sure = [point for point in points[:-1] if point[1] > CLEAR * kernel_seconds] + points[-1:]
    return tuple((flops, flops / max(took - kernel_seconds, took / 4)) for flops, took in sure)


def list_functions(kernels: frozenset[str]) -> dict[Op, tuple[TensorType, ...]]:
    """Return the ops whose rates are measured one by one, with the types of their operands.

    Applied to their own results for long they leave no values, such as infinities, that libraries
    treat apart.

    Args:
        kernels: names of the ops that the engine runs itself.
    """
    x, row = make_type(FUNCTION_ROWS, COLUMNS), make_type(COLUMNS)
    column = make_type(FUNCTION_ROWS)
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


def measure_functions(
    timer: Timer, kernel_seconds: float, advance: Callable[[str], None]
) -> Mapping[str, Rate]:
    """Return the operations a second of ops by name, where they are not those of their memory.

    Args:
        timer: of the engine.
        kernel_seconds: what starting a kernel costs.
        advance: told of each measurement before it begins.
    """
    found: dict[str, Rate] = {}
    apart = _Apart(timer)
    for op, types in list_functions(timer.engine.kernels).items():
        advance(op.name)
        seconds = apart.measure(_repeat(op), types)
        start = 0.0 if is_fused(op, timer.engine.execution) else kernel_seconds
        flops = op.cost(types, op.infer(types)).flops
        found[op.name] = ((float(flops), flops / max(seconds - start, seconds / 4)),)
    return found


def measure_transposes(
    timer: Timer, kernel_seconds: float, advance: Callable[[str], None]
) -> Mapping[str, Rate]:
    """Return the elements a second that are put into another order, where a compiler does that.

    Args:
        timer: of the engine.
        kernel_seconds: what starting a kernel costs.
        advance: told of each measurement before it begins.
    """
    if not timer.engine.execution.lays_out:
        return {}
    advance(LayOut.name)
    sizes = (ATTENTION, IMAGES[1])
    return {LayOut.name: tuple(_measure_transpose(timer, x, kernel_seconds) for x in sizes)}


def _measure_transpose(timer: Timer, shape: Shape, kernel_seconds: float) -> tuple[float, float]:
    """Return the elements of a tensor, and how many are put into another order in a second."""

    def step(x: Tensor, operands: Sequence[Tensor]) -> Tensor:
        for order in ORDERS:
            x = after(apply_one(Transpose(order), x), x)
        return x

    types, count = [make_type(*shape)], len(ORDERS)
    apart = timer.measure(lambda x, operands: after(x, x), types)
    seconds = timer.measure(step, types) / count
    seconds = max(seconds - apart, seconds / 4)
    size = math.prod(shape)
    return float(size), size / max(seconds - kernel_seconds, seconds / 4)


def list_convolutions(kernels: frozenset[str]) -> tuple[Convolving, ...]:
    """Return a convolution and its gradients, which are measured one by one.

    Args:
        kernels: names of the ops that the engine runs itself.
    """
    op = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    known = (op, op.input_gradient(IMAGES[0][2:]), op.weight_gradient(WINDOW[2:]))
    return known if kernels >= {one.name for one in known} else ()


def measure_convolutions(
    timer: Timer, kernel_seconds: float, advance: Callable[[str], None]
) -> Mapping[str, Rate]:
    """Return the operations a second of a convolution and of its gradients, by name.

    Args:
        timer: of the engine.
        kernel_seconds: what starting a kernel costs.
        advance: told of each measurement before it begins.
    """
    found: dict[str, Rate] = {}
    for op in list_convolutions(timer.engine.kernels):
        advance(op.name)
        rates = [_measure_convolution(timer, op, IMAGES[0], kernel_seconds)]
        if _count_operations(IMAGES[1]) / rates[0][1] <= LONGEST:
            rates.append(_measure_convolution(timer, op, IMAGES[1], kernel_seconds))
        found[op.name] = tuple(rates)
    return found


def _measure_convolution(
    timer: Timer, op: Convolving, images: Shape, kernel_seconds: float
) -> tuple[float, float]:
    """Return the operations of a convolution, and how many it does in a second."""
    types = [make_type(*images), make_type(*WINDOW)]
    if isinstance(op, ConvolutionInputGradient):
        op = op.input_gradient(images[2:])
    seconds = timer.measure(_convolve(op), types)
    if isinstance(op, ConvolutionWeightGradient):
        seconds = max(seconds - timer.measure(_convolve(op.forward()), types), seconds / 4)
    flops = _count_operations(images)
    return flops, flops / max(seconds - kernel_seconds, seconds / 4)


def _count_operations(images: Shape) -> float:
    return 2.0 * math.prod(images) * math.prod(WINDOW[1:])


def _convolve(op: Op) -> Step:
    """Return an op of convolution; the gradient of a weight is convolved with in its turn."""
    if isinstance(op, ConvolutionWeightGradient):
        return lambda x, operands: apply_one(
            op.forward(), x, apply_one(Multiply(), apply_one(op, x, operands[0]), operands[1])
        )
    return lambda x, operands: apply_one(op, x, operands[1])
