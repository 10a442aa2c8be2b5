"""Measures what a device computes: products by size and dtype, memory, kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mithril.cost.calibrate.timing import Reference, Step, Timer, make_type, subtract
from mithril.cost.rates import Rate
from mithril.engine import Engine
from mithril.ir import Op, Tensor
from mithril.ir.operand import apply, apply_one
from mithril.ops.arithmetic import Add
from mithril.ops.control import After
from mithril.ops.linalg import Einsum
from mithril.ops.reduce import Sum
from mithril.types import DType, TensorType

DTYPES = (DType.float32, DType.bfloat16, DType.float16, DType.float64)
PRODUCT_SIZES = (16, 32, 64, 128, 256, 512, 768)
FORMS = ("ab,cb->ac", "ab,bc->ac", "ba,bc->ac")
"""Of a product by a weight [out, in]: forward, and the gradients of its input and of the weight."""
BATCHED_FORMS = ("eab,ecb->eac", "eab,ebc->eac", "eba,ebc->eac")
"""The same of several matrices at once, as of heads and experts."""
MATRICES, BATCHED_SIZES = 8, (64, 192)
ROWS_PER_COLUMN = 4
"""Training has more rows than features; a weight's gradient is then a long sum for few results."""
WATCHED = 256
"""Columns of the products that tell when the machine is slower: a few thousandths of a second."""
LONGEST_PRODUCT = 0.1
"""Seconds of one product beyond which no larger one is measured."""
COLUMNS = 256
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
SMALL = 16
"""So many rows of a kernel, or fewer, stay in the nearest cache: they tell what a kernel costs."""
CLEAR = 3.0
"""So many times what starting a kernel costs a kernel has to take to tell of anything else."""


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
    bandwidths = [(moved, moved / subtract(took, start)) for moved, took in sure]
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


def watch_products(engine: Engine) -> Reference:
    """Return what tells whether products take longer than they did, on all devices of an engine."""
    return Reference.start(prepare_reference(engine))


def prepare_reference(engine: Engine) -> Callable[[], None]:
    """Return a function that runs a few products on all devices, until they are done.

    What it takes at least, to what it took when a profile was measured
    (`Calibration.reference_seconds`), is how many times slower the machine is now.

    Args:
        engine: of the devices.
    """
    types = [make_type(WATCHED, WATCHED), make_type(ROWS_PER_COLUMN * WATCHED, WATCHED)]
    return Timer(engine).prepare(_train(FORMS), types)


def measure_batched_products(
    timer: Timer, kernel_seconds: float, advance: Callable[[str], None]
) -> Rate:
    """Return the operations a second of products of several matrices of float32 at once.

    Args:
        timer: of the engine.
        kernel_seconds: what starting a kernel costs.
        advance: told of each measurement before it begins.
    """
    points = []
    for size in BATCHED_SIZES:
        rows = ROWS_PER_COLUMN * size
        advance(f"{MATRICES} products, {rows} x {size}")
        types = [make_type(MATRICES, size, size), make_type(MATRICES, rows, size)]
        took = timer.measure(_train(BATCHED_FORMS), types) / len(BATCHED_FORMS)
        flops = 2.0 * MATRICES * rows * size**2
        points.append((flops, flops / subtract(took, kernel_seconds)))
    return tuple(points)


def _train(forms: Sequence[str]) -> Step:
    """Return what multiplies by a weight as training does, and makes its gradient.

    The gradients do not need each other, so that an engine may compute them side by side.
    """
    forward, backward, gradient = map(Einsum, forms)

    def step(weight: Tensor, operands: Sequence[Tensor]) -> Tensor:
        x = operands[1]
        y = apply_one(forward, x, weight)
        return apply_one(After(), apply_one(gradient, y, x), apply_one(backward, y, weight))

    return step


def count_products(timer: Timer) -> int:
    """Return how many products are measured at most."""
    dtypes = sum(dtype in timer.engine.dtypes for dtype in DTYPES)
    return len(PRODUCT_SIZES) * dtypes + len(BATCHED_SIZES)


def _measure_dtype(
    timer: Timer, dtype: DType, kernel_seconds: float, advance: Callable[[str], None]
) -> Rate:
    points, seconds = [], 0.0
    for size in PRODUCT_SIZES:
        rows = ROWS_PER_COLUMN * size
        advance(f"product, {rows} x {size} {dtype}")
        # Eight times the work of the size before.
        if 8 * seconds > LONGEST_PRODUCT:
            continue
        types = [make_type(size, size, dtype=dtype), make_type(rows, size, dtype=dtype)]
        share = 1.0 if dtype == DType.float32 else 0.5
        seconds = timer.quickly(share).measure(_train(FORMS), types) / len(FORMS)
        points.append((2.0 * rows * size**2, seconds))
    sure = [point for point in points[:-1] if point[1] > CLEAR * kernel_seconds] + points[-1:]
    return tuple((flops, flops / subtract(took, kernel_seconds)) for flops, took in sure)
