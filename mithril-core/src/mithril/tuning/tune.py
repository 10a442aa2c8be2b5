"""auto_tune: from a model and devices, or what devices there would be, to the best strategy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from mithril.compiler.options import check_precision
from mithril.cost import Hardware, as_hardware
from mithril.engine.planned import PLANNED
from mithril.errors import BackendError, GraphError, OptionError, PlanError, kind_of
from mithril.keywords import checked_keywords
from mithril.mesh import Mesh
from mithril.models import Layer, Model
from mithril.models.composition import Composition
from mithril.models.statistics import find_unsaid
from mithril.option_checks import check_choice, check_flag, check_output, is_number
from mithril.options import Precision
from mithril.runtime.backend import Backend
from mithril.runtime.specification import TensorSpec, as_spec
from mithril.runtime.strategy import OBJECTIVES, Strategy
from mithril.runtime.training.optimizer import Optimizer, check_optimizer
from mithril.sharding.search import LATENCY, THROUGHPUT
from mithril.tuning.measure import MOST, can_measure, check_measurable, measure_best
from mithril.tuning.model import TunedModel, find_component
from mithril.tuning.progress import Progress
from mithril.tuning.search import Search
from mithril.tuning.space import SEARCHED, SPACES, explain_none, list_configs
from mithril.types import to_python
from mithril.units import format_bytes

LOSS = "loss"
"""The output that a train step makes smaller where nothing is said."""
PLANNING_SHARE = 0.5
"""The part of the budget that planning may take where the rest is for measuring."""


@checked_keywords()
def auto_tune(
    model: Model | Layer,
    backend: Backend | Hardware | str | Path,
    *,
    input_shapes: Mapping[str, object],
    tuning_objective: str = "throughput",
    tuning_budget_hours: float = 2.0,
    strategy_space: str = "mixed_parallel",
    devices: int | None = None,
    optimizer: Optimizer | None = None,
    loss: str = LOSS,
    outputs: Sequence[str] | None = None,
    precision: Precision | None = None,
    measure: bool | None = None,
    record: str | Path | None = None,
    progress: bool | None = None,
) -> Strategy:
    """Return the best strategy that is found for a model: how it is split and run.

    Configurations (what each mesh axis splits, stages, micro-batches, ZeRO, what is computed again)
    are taken the best estimate first; one whose lower bound is above the best plan so far is left
    out without a plan. The rest are planned and priced. On devices that are there the best plan of
    each use of the mesh is measured, in a process beside this one, and the fastest is taken.

    Args:
        model: a Model, or a single layer. What it says itself of its tensors stays as it is.
        backend: where it runs, with its mesh; or what devices there would be, as `hardware=` takes
            it, of which the mesh is chosen, too.
        input_shapes: for each input a shape, an array, or a `TensorSpec`.
        tuning_objective: `throughput` is the time of a step, forward and backward; `latency` that
            of a forward alone; `memory_usage` the bytes on the fullest device; `communication`
            those that a device sends.
        tuning_budget_hours: the most that it takes; a small space ends long before.
        strategy_space: `data`, `tensor`, `pipeline`, `mixed` (data, tensor and sequences), or
            `mixed_parallel`, which is all of them.
        devices: how many there would be; for `backend` that is none.
        optimizer: plan a train step with it: its state counts, and ZeRO's stages 1 and 2 are tried.
        loss: the output that a train step makes smaller.
        outputs: which values are wanted, as `compile` takes them; for a train step that is none.
        precision: of the model; by default that of the backend.
        measure: whether the best plans are measured; by default where devices are there and the
            objective is time: bytes are known without.
        record: a file in which each measurement is kept, and found again when a tuning that was
            stopped begins anew.
        progress: whether a bar shows how far it is; by default in a terminal.

    Returns:
        A strategy for `compile(partition_strategy=…)`, `train_step`, and files.

    Raises:
        OptionError: an option is unknown or contradicts another.
        PlanError: no strategy of the space can be planned, or none fits into memory.

    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.FeedForward(64, name="mlp")(input="x", output="y")
    >>> shapes = {"x": (64, 32)}
    >>> found = ml.auto_tune(
    ...     model, "h100-sxm", input_shapes=shapes, devices=4, strategy_space="data"
    ... )
    >>> found.in_shardings
    {'x': P('data')}
    """
    if not isinstance(model, Model | Layer):
        raise GraphError(
            f"auto_tune() takes a Model or a layer, not {kind_of(model)}; make one, such as "
            f"ml.Linear(3)"
        )
    check_choice("tuning_objective", tuning_objective, OBJECTIVES)
    check_choice("strategy_space", strategy_space, SPACES)
    budget = read_budget(tuning_budget_hours)
    where, hardware, dtypes = _read_devices(backend, devices, precision)
    if outputs is not None and optimizer is not None:
        raise OptionError(
            f"outputs={outputs!r} is given together with optimizer=, whose train step returns the "
            f"loss; name it by loss=, and leave out outputs="
        )
    if optimizer is None and loss != LOSS:
        raise OptionError(
            f"loss={loss!r} has no effect without optimizer=, whose train step makes it smaller; "
            f"give one, or leave out loss="
        )
    if record is not None:
        check_output("record", record)
    tuned = TunedModel(
        model,
        _read_shapes(input_shapes, find_component(model, outputs), dtypes),
        hardware,
        dtypes,
        tuning_objective,
        None if optimizer is None else check_optimizer(optimizer),
        loss,
        backend if isinstance(backend, Backend) else None,
        outputs,
    )
    tuned = tuned.complete()
    measures = _read_measure(measure, backend, tuning_objective)
    if record is not None and not measures:
        raise OptionError(
            f"record={str(record)!r} has no effect, as nothing is measured; give an open backend "
            f"that can measure and an objective that is time, or leave it out"
        )
    planning = budget * (PLANNING_SHARE if measures else 1.0)
    with Progress(progress) as bar:
        search = Search(
            tuned,
            budget=planning,
            tell=bar.show_planned,
            searches=strategy_space in SEARCHED,
            measures=measures,
        )
        found = search.run(list_configs(tuned, strategy_space, where))
        least = search.least_memory
        if not found and hardware.memory_bytes is not None and least > hardware.memory_bytes:
            raise _refuse_memory(least, hardware)
        if not found:
            why = next(iter(search.refusals), "") or explain_none(tuned, strategy_space, where)
            raise PlanError(
                f"auto_tune finds no strategy in space '{strategy_space}' for {_describe(where)}; "
                f"{why}; try another space or mesh"
            )
        fitting = [candidate for candidate in found if candidate.price and candidate.price.fits]
        if not fitting:
            least = min(c.price.memory for c in found if c.price)
            raise _refuse_memory(least, hardware, len(search.unplanned))
        if not measures:
            return search.describe(fitting[0])
        assert isinstance(backend, Backend)
        strategies = [search.describe(chosen) for chosen in search.choose_to_measure(MOST)]
        left = budget - bar.seconds
        return measure_best(backend, tuned, strategies, left, record, bar, has_to=bool(measure))


def read_budget(hours: object) -> float:
    """Return a budget in seconds.

    Raises:
        OptionError: it is no time above 0.
    """
    value = to_python(hours)
    if not is_number(value) or not 0 < value < math.inf:
        raise OptionError(
            f"tuning_budget_hours={hours!r} is no time to tune in; give hours above 0, such as 0.1"
        )
    return 3600.0 * float(value)


def _read_devices(
    given: object, devices: int | None, precision: Precision | None
) -> tuple[Mesh | int, Hardware, Precision]:
    if isinstance(given, Backend):
        if devices is not None:
            raise OptionError(
                f"devices={devices!r} is for hardware that is not here; the backend has "
                f"{given.mesh!r}: leave it out"
            )
        dtypes = given.precision if precision is None else given.check_precision(precision)
        return given.mesh, given.hardware, dtypes
    if not isinstance(given, Hardware | str | Path):
        raise BackendError(
            f"auto_tune() takes a backend or hardware, not {kind_of(given)}; give "
            f"ml.NumpyBackend(…), or the name of a profile, such as 'h100-sxm'"
        )
    if type(devices) is not int or devices < 1:
        raise OptionError(
            f"devices={devices!r} is no number of devices; say how many of '{given}' there are, "
            f"such as devices=8"
        )
    dtypes = Precision() if precision is None else check_precision(precision)
    return devices, as_hardware(given), dtypes


def _read_shapes(
    given: object, component: Composition | Layer, precision: Precision
) -> dict[str, TensorSpec]:
    names = list(component.input_ports)
    unsaid = find_unsaid(component, given) if isinstance(given, Mapping) else []
    if not isinstance(given, Mapping) or {*given, *unsaid} != set(names):
        known = list(given) if isinstance(given, Mapping) else given
        raise GraphError(
            f"input_shapes is {known!r}, and the model takes {names}; give each a shape, or "
            f"an ml.TensorSpec"
        )

    def read(name: str, shape: object) -> TensorSpec:
        listed = tuple(shape) if isinstance(shape, list) else shape
        return as_spec(listed, f"input '{name}'", precision.default)

    return {name: read(name, given[name]) for name in names if name in given}


def _read_measure(measure: bool | None, backend: object, objective: str) -> bool:
    is_time = objective in (THROUGHPUT, LATENCY)
    there = backend if isinstance(backend, Backend) else None
    if there is not None and there.engine.platform == PLANNED:
        there = None
    if measure is None:
        return is_time and there is not None and can_measure(there)
    if not check_flag("measure", measure):
        return False
    if not is_time:
        raise OptionError(
            f"measure=True takes times, and tuning_objective={objective!r} is about bytes, which a "
            f"plan tells without being run; leave measure out, or tune for 'throughput'"
        )
    if there is None:
        raise OptionError(
            "measure=True needs devices, and there are none; give an open backend, or leave it out"
        )
    check_measurable(there)
    return True


def _refuse_memory(least: float, hardware: Hardware, unplanned: int = 0) -> PlanError:
    rest = f", with {unplanned} configurations unplanned for want of time" if unplanned else ""
    return PlanError(
        f"auto_tune finds no strategy that fits: the least is {format_bytes(int(least))} on a "
        f"device of {format_bytes(hardware.memory_bytes or 0)}{rest}; use more devices, a "
        f"smaller batch, or a narrower precision"
    )


def _describe(where: Mesh | int) -> str:
    return repr(where) if isinstance(where, Mesh) else f"{where} devices"


__all__ = ["auto_tune", "read_budget"]
