"""Calibration: a profile whose figures are measured on an engine, with all devices at work.

What the profile of the kind of device says stands where nothing is measured: the size of its
memory, and links where the mesh has one device.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import version

from mithril.cost.calibrate.compute import (
    ROWS,
    count_products,
    measure_batched_products,
    measure_memory,
    measure_products,
    prepare_reference,
    watch_products,
)
from mithril.cost.calibrate.functions import OpTimer, count_ops
from mithril.cost.calibrate.links import list_axes, list_kinds, measure_levels
from mithril.cost.calibrate.timing import Timer
from mithril.cost.hardware import Calibration, Hardware
from mithril.cost.profiles import find_described
from mithril.cost.profiles.machine import describe_machine
from mithril.cost.rates import Rate
from mithril.cost.work import BATCHED
from mithril.engine import Engine
from mithril.errors import BackendError
from mithril.types import DType

SUFFIX = "-calibrated"


def count_measurements(engine: Engine) -> int:
    """Return how many measurements `calibrate` announces at most."""
    timer = Timer(engine)
    links = len(list_axes(engine.mesh)) * len(list_kinds(engine))
    return len(ROWS) + count_products(timer) + count_ops(engine) + links


def calibrate(
    engine: Engine,
    packages: Sequence[str] = (),
    advance: Callable[[str], None] = lambda what: None,
    seconds: float = 0.2,
) -> Hardware:
    """Return the profile of an engine's devices as they are measured now.

    Args:
        engine: on the mesh whose devices shall be at work.
        packages: whose versions the profile shall tell.
        advance: told of each measurement before it begins.
        seconds: about how long each takes.

    Raises:
        BackendError: the devices are simulated, or of several processes.
    """
    if engine.platform == "simulated":
        raise BackendError(
            f"backend '{engine.name}' simulates its devices, which have no speed of their own; "
            f"calibrate another backend"
        )
    if engine.process_count > 1:
        raise BackendError(
            f"backend '{engine.name}' has devices of {engine.process_count} processes; calibrate "
            f"in one process, and give the file to each by hardware="
        )
    reference = watch_products(engine)
    timer = Timer(engine, seconds, reference)
    call_seconds = timer.measure_call()
    memory = measure_memory(timer, advance)
    products = measure_products(timer, memory.kernel_seconds, advance)
    batched = measure_batched_products(timer, memory.kernel_seconds, advance)
    ops = OpTimer(timer, memory.kernel_seconds, advance)
    functions = ops.measure_functions()
    moving = {**ops.measure_transposes(), **ops.measure_column_sums()}
    sliding = {**ops.measure_convolutions(), **ops.measure_pools()}
    op_rates = {**functions, **sliding, **moving, BATCHED: batched}
    levels, errors = measure_levels(timer, advance)
    base = find_described(engine)
    ordinary = sorted(rate for ((_, rate),) in functions.values())
    found = replace(
        base,
        name=base.name.removesuffix(SUFFIX) + SUFFIX,
        rates=products,
        peaks=_keep_peaks(base, products),
        vector_rate=ordinary[len(ordinary) // 2] if ordinary else products[DType.float32][-1][1],
        memory_bandwidth=memory.bandwidths[-1][1],
        bandwidths=memory.bandwidths,
        op_rates=op_rates,
        kernel_seconds=memory.kernel_seconds,
        call_seconds=call_seconds,
        levels=levels or base.levels,
        unknown_platform="",
        origin="mithril calibrate",
        calibration=Calibration(
            date.today(),
            engine.name,
            engine.device_kind,
            engine.mesh.size,
            describe_machine(),
            engine.execution.fuses,
            engine.execution.in_turn,
            reference.least,
            {name: version(name) for name in ("mithril-core", *packages)}
            | {"python": platform.python_version()},
            {"kernels": memory.error, **errors},
        ),
    )
    return found.as_measured()


def _keep_peaks(described: Hardware, measured: Mapping[DType, Rate]) -> dict[DType, float]:
    """Return what a device is made for, of dtypes that were measured: at least that much."""
    return {
        dtype: max(peak, *(rate for _, rate in measured[dtype]))
        for dtype, peak in described.peaks.items()
        if dtype in measured
    }


__all__ = ["calibrate", "count_measurements", "prepare_reference"]
