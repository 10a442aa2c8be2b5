"""Time of an op: the roofline model over its operations and the bytes it reads and writes.

Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures" (2009): an op is bound by arithmetic or by memory, whichever takes longer. What an
engine fuses into its neighbours reads and writes nothing of its own.
"""

from __future__ import annotations

from mithril.cost.hardware import Hardware
from mithril.ir import Op
from mithril.ir.op import Types
from mithril.ops.control import After
from mithril.ops.linalg import Einsum
from mithril.plan import Execution
from mithril.types import DType

BATCHED = "batched_product"
"""Whose rate is that of products of float32 of several matrices at once, if it was measured."""
WINDOWS = "_windows"
"""Behind the name of an op that puts a window somewhere: how many of them a second, whatever is
done in each. A convolution of few channels takes as long as its windows do."""


def op_seconds(op: Op, inputs: Types, outputs: Types, hardware: Hardware) -> float:
    """Return the predicted seconds of an op on one device, without what it exchanges.

    Args:
        op: what runs; not one with bodies.
        inputs: types of the local operands.
        outputs: types of the local results.
        hardware: the profile to price with.

    >>> from mithril.cost import SIMULATED
    >>> from mithril.ops.functions import Exp
    >>> from mithril.types import TensorType
    >>> x = TensorType((1000,), DType.float32)
    >>> op_seconds(Exp(), [x], [x], SIMULATED)
    8e-06
    """
    work = op.cost(inputs, outputs)
    product = product_dtype(op, inputs, outputs)
    return work_seconds(op, work.flops, work.bytes, product, hardware, work.windows)


def work_seconds(
    op: Op,
    flops: float,
    nbytes: float,
    product: DType | None,
    hardware: Hardware,
    windows: float = 0.0,
) -> float:
    """Return the predicted seconds of an op whose work is known.

    Args:
        op: what runs.
        flops: its operations on the device.
        nbytes: what it reads and writes there.
        product: the dtype of its operands if it is a product of tensors (see `product_dtype`).
        hardware: the profile to price with.
        windows: that it puts somewhere.
    """
    if op.is_collective or is_free(op, hardware.execution):
        return 0.0
    if is_fused(op, hardware.execution):
        return arithmetic_seconds(op.name, flops, None, hardware)
    computing = arithmetic_seconds(rate_name(op, product), flops, product, hardware, windows)
    return roofline_seconds(computing, nbytes, hardware)


def kernel_seconds(
    flops: float, nbytes: float, product: DType | None, hardware: Hardware, name: str = ""
) -> float:
    """Return the predicted seconds of one kernel.

    Args:
        flops: its operations.
        nbytes: what it reads and writes.
        product: the dtype of its operands if it is a product of tensors.
        hardware: the profile to price with.
        name: of the op, which may have a rate of its own.
    """
    computing = arithmetic_seconds(name, flops, product, hardware)
    return roofline_seconds(computing, nbytes, hardware)


def arithmetic_seconds(
    name: str, flops: float, product: DType | None, hardware: Hardware, windows: float = 0.0
) -> float:
    """Return the predicted seconds of operations alone; arguments are those of `work_seconds`."""
    rate = hardware.op_rate(name, flops)
    if rate is None:
        rate = hardware.vector_rate if product is None else hardware.rate(product, flops)
    each = hardware.op_rate(name + WINDOWS, windows) if windows else None
    return flops / rate + (windows / each if each else 0.0)


def rate_name(op: Op, product: DType | None) -> str:
    """Return the name of the rate at which an op computes, where it has one of its own.

    Args:
        op: what runs.
        product: the dtype of its operands if it is a product of tensors.
    """
    if product is not DType.float32 or not isinstance(op, Einsum):
        return op.name
    left, right, result = op.terms
    return BATCHED if set(left).intersection(right, result) else op.name


def roofline_seconds(computing: float, nbytes: float, hardware: Hardware) -> float:
    """Return the predicted seconds of a kernel.

    Args:
        computing: seconds of its operations alone.
        nbytes: what it reads and writes.
        hardware: the profile to price with.
    """
    return hardware.kernel_seconds + max(computing, nbytes / hardware.bandwidth(nbytes))


def is_free(op: Op, execution: Execution) -> bool:
    """Return whether an engine does nothing for an op: what it makes is in memory already."""
    return isinstance(op, After) or (op.is_view and execution.has_views)


def is_fused(op: Op, execution: Execution) -> bool:
    """Return whether an op is a part of the kernels of its neighbours."""
    return op.is_pointwise and execution.fuses


def product_dtype(op: Op, inputs: Types, outputs: Types) -> DType | None:
    """Return the dtype of the operands of a product of tensors; None for any other op."""
    if not (op.is_product or op.contracts(inputs, outputs)):
        return None
    return next(type.dtype for type in inputs if type.dtype.is_float)
