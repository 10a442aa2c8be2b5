"""train_step: forward, backward, and the optimiser's update as one plan.

The update is appended to the joint graph before anything is laid out, so that it is partitioned,
priced and explained like the rest, and a step is one program on every device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mithril.compiler import PlanOptions
from mithril.compiler.collector import pause_collector
from mithril.compiler.compression_options import check_names, read_compression
from mithril.compiler.options import refuse_of_other
from mithril.errors import (
    BackendError,
    OptionError,
    listing,
)
from mithril.keywords import checked_keywords, list_argument_names, refuse_unknown
from mithril.models import Layer, Model
from mithril.optim import Diloco
from mithril.option_checks import check_choice
from mithril.partition.compression import Compression
from mithril.partition.replicas import Replicas
from mithril.runtime.backend import Backend
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.compiling import compile
from mithril.runtime.offload_options import read_state_arena
from mithril.runtime.strategy.apply import Applied, refuse_other
from mithril.runtime.training.choose_zero import AUTO, choose_stage
from mithril.runtime.training.diloco import DilocoStep
from mithril.runtime.training.loss_scale import LossScale, read_loss_scale
from mithril.runtime.training.optimizer import (
    Optimizer,
    check_optimizer,
)
from mithril.runtime.training.planner import METRICS, StepPlanner, check_loss
from mithril.runtime.training.replicas import cut_kinds, find_batches
from mithril.runtime.training.step import TrainStep
from mithril.runtime.zero import STAGES, Zero, read_zero

OF_MODELS_ALONE = dict.fromkeys(
    ("inference", "donate", "differentiable", "outputs", "out_shardings"), "leave it out"
)
"""Options of compile that make no sense for a step."""


@checked_keywords()
def train_step(
    model: Model | Layer,
    backend: Backend,
    optimizer: Optimizer,
    *,
    loss: str = "loss",
    shapes: Mapping[str, object],
    zero: int | str | None = None,
    zero_axis: str | Sequence[str] | None = None,
    loss_scale: float | str | None = None,
    metrics: Collection[str] = METRICS,
    offload_optimizer: bool = False,
    **options: Any,
) -> TrainStep | DilocoStep:
    """Return a step of training: a function from state and batch to the next state and metrics.

    Forward, backward and update are one plan, which is partitioned and priced as a whole. The state
    is given up by each call: its memory is that of the next one.

    Args:
        model: a Model, or a single layer, with a scalar output of floats.
        backend: where it runs.
        optimizer: one of `ml.optim`, or any object with `init(params)` and
            `apply(gradients, state, params)`; with `ml.optim.diloco` parts of a mesh axis train by
            themselves, each on its part of the inputs that are split over it.
        loss: the output that is minimised; its gradient is one.
        shapes: for each input a shape, an array, or a `TensorSpec`, as `compile` takes them. With
            `ml.optim.diloco` batches that were placed otherwise than these say are moved there.
        zero: what is split over the axis that splits the batch, besides what the model says
            (ZeRO): 0 nothing, 1 the optimiser's state, and parameters between steps, which the
            next forward gathers once, 2 gradients, too, which are then split in each micro-batch,
            not when they are summed over all, 3 parameters, too, which each phase gathers anew.
            `auto` takes the one that is predicted to be the fastest of those that fit. By default
            what `fsdp_config` of the backend says, or 0.
        zero_axis: that mesh axis, or several of them; `data` by default.
        loss_scale: a number that the loss is multiplied with for the backward, so that gradients of
            float16 do not vanish, or `dynamic`: a step whose gradients overflow is left out and
            counted, and the scale is halved; it is doubled after 2000 others.
        metrics: which of `gradient_norm` and `learning_rate` a step tells besides the scalars of
            the model; a norm reads all gradients once more.
        offload_optimizer: keep the optimiser's state in the host arena between steps (where that
            lies says `host_arena`); each part of it is on the device while it is updated.
        options: those of `compile`; `inference` and `donate` are not among them.

    Raises:
        OptionError: an option is unknown, or the optimiser is none.
        GraphError: there is no such output, or it is no scalar of floats.
        MeshError: the mesh has no axis `zero_axis`.
        PlanError: devices have too little memory, or there is nothing to offload.

    >>> import mithril as ml, numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(1, name="line")(input="x", output="y")
    >>> model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    >>> step = ml.train_step(
    ...     model, ml.NumpyBackend(), ml.optim.sgd(0.1), shapes={"x": (4, 2), "t": (4, 1)}
    ... )
    >>> state = step.init(seed=0)
    >>> batch = {"x": np.ones((4, 2), np.float32), "t": np.ones((4, 1), np.float32)}
    >>> state, metrics = step(state, batch)
    >>> list(metrics), state.step.item()
    (['loss', 'gradient_norm', 'learning_rate'], 1)
    """
    _refuse_options(options)
    if not isinstance(backend, Backend):
        raise BackendError(
            f"train_step() takes a backend, not {backend!r}; open one, such as ml.NumpyBackend()"
        )
    if (strategy := options.get("partition_strategy")) is not None:
        found = refuse_other(strategy)
        zero, zero_axis = Applied(found).merge_zero(zero, zero_axis)
        options["partition_strategy"] = found.without_zero()
    zero = backend.parallelism.zero if zero is None else zero
    is_auto = isinstance(zero, str) and zero == AUTO
    stage = read_zero(STAGES[-1] if is_auto else zero, zero_axis, backend.mesh)
    scale = read_loss_scale(loss_scale)
    arena = read_state_arena(offload_optimizer, options, backend)
    if isinstance(optimizer, Diloco) and arena is not None:
        raise OptionError(
            "offload_optimizer=True is given with ml.optim.diloco, whose parts compute with a "
            "state each; leave out either"
        )
    given = options.pop("gradient_compression", None)
    compression = read_compression(given, backend.mesh, backend.compression)
    if options.get("load_balancing"):  # which has to know how long layers take
        options["shapes"] = shapes
    compiled = compile(model, backend, zero=0, gradient_compression={}, **options)
    # Parts that train by themselves each need their own part of a batch, wherever it was placed.
    by_parts = isinstance(optimizer, Diloco)
    settings = compiled.settings.with_shapes(shapes, moves_placed=by_parts)
    compiled = compiled.with_settings(settings)
    if isinstance(optimizer, Diloco) and compiled.settings.accumulate > 1:
        raise OptionError(
            f"a batch is cut into {compiled.settings.accumulate} micro-batches, and parts of mesh "
            f"axis '{optimizer.axis}' that train by themselves (ml.optim.diloco) take theirs at "
            f"once; leave out accumulate="
        )
    check_names(compression, compiled.parameters)
    _check_compression(compression, optimizer, loss_scale)

    if isinstance(optimizer, Diloco) and is_auto:
        raise OptionError(
            f"zero='{AUTO}' is given with ml.optim.diloco, whose parts are timed apart; say a stage"
        )

    def make(laid: CompiledModel) -> TrainStep | DilocoStep:
        def make_with(zero: Zero, is_strict: bool) -> Any:
            plan = replace(laid.settings.plan, compression=compression)
            plan = replace(plan, strict_memory=plan.strict_memory or is_strict)
            return _make(laid, optimizer, loss, shapes, zero, scale, plan, arena, metrics)

        knows_memory = backend.hardware.memory_bytes is not None
        made: TrainStep | DilocoStep = (
            choose_stage(make_with, stage, knows_memory=knows_memory)
            if is_auto
            else make_with(stage, False)
        )
        return made

    if not compiled.settings.lays_axes:
        return make(compiled)
    as_given = compiled.with_axes(backend.mesh.order or backend.mesh.names)
    return make(compiled.with_axes(*as_given.choose_axes(make(as_given).plan)))


@pause_collector()
def _make(
    compiled: CompiledModel,
    optimizer: Optimizer | Diloco,
    loss: str,
    shapes: Mapping[str, object],
    stage: Zero,
    scale: LossScale | None,
    plan: PlanOptions,
    arena: str | None,
    metrics: Collection[str],
) -> TrainStep | DilocoStep:
    """Return the step of a compiled model, whose axes lie as they shall; see `train_step`."""
    whole = compiled
    compiled = compiled.keeping_all()  # a memory budget is that of the step
    kinds = compiled.read_kinds(shapes)
    rule = optimizer if isinstance(optimizer, Diloco) else None
    everything = dict(zip(compiled.inputs, kinds, strict=True))
    batches = frozenset[str]()
    if rule is not None:  # from here on the model is that of one part
        mesh = compiled.backend.mesh
        batches = find_batches(everything, rule.axis, mesh)
        compiled = compiled.with_settings(compiled.settings.without_axis(rule.axis))
        shapes = cut_kinds(everything, batches, rule.axis, mesh)
        kinds = list(shapes.values())
        plan = plan.without_axis(rule.axis)
    asked = compiled.ask((), kinds)
    seeded = (check_loss(loss, compiled, asked.traced),)
    if stage.stage or asked.cuts_loops:
        # How parameters are computed with, or on which stages, is chosen for the model alone.
        compiled.decide_shardings(kinds, seeded)
    if stage.stage == 3:  # the model knows it, too: a state's parameters are evaluated as they lie
        compiled = compiled.resting(stage, kinds)
        if asked.has_stages:  # on which of them each rests
            compiled.decide_shardings(kinds, seeded)
    given = dict(zip(compiled.inputs, kinds, strict=True))
    planner = StepPlanner(
        compiled, check_optimizer(rule.inner if rule else optimizer), loss, given, stage, scale,
        plan, arena, _read_metrics(metrics),
    )  # fmt: skip
    if stage.stage in (1, 2):  # a step gathers them once; an evaluation, as it needs them
        compiled = compiled.resting(stage, kinds)
        if asked.has_stages:
            compiled.decide_shardings(kinds, seeded)
    step = TrainStep(compiled, planner, scale)
    if rule is None:
        return step
    parts = planner.split(Replicas(rule.axis, batches, frozenset()), everything)
    return DilocoStep(TrainStep(whole, parts, scale), step, rule)


def _check_compression(asked: Compression, optimizer: object, loss_scale: object) -> None:
    if not asked.keeps_state:
        return
    if isinstance(optimizer, Diloco):
        raise OptionError(
            f"{asked.said} keeps a state from step to step, which parts that train by themselves "
            f"(ml.optim.diloco) have no place for; use a form without error feedback"
        )
    if loss_scale is not None:
        raise OptionError(
            f"{asked.said} keeps a state of gradients, which loss_scale={loss_scale!r} changes "
            f"from step to step; compute in bfloat16 without a scale, or use a form without error "
            f"feedback"
        )


def _read_metrics(metrics: Collection[str]) -> tuple[str, ...]:
    if not isinstance(metrics, Collection):
        raise OptionError(f"metrics={metrics!r} names none; give some of {listing(METRICS)}, or ()")
    given = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in given:
        check_choice("metrics", name, METRICS)
    return tuple(name for name in METRICS if name in given)


def _refuse_options(options: Mapping[str, object]) -> None:
    refuse_of_other("train_step()", options, OF_MODELS_ALONE)
    own = [name for name in list_argument_names(train_step) if name != "options"]
    handed_on = [
        name for name in list_argument_names(compile) if name not in {*own, *OF_MODELS_ALONE}
    ]
    refuse_unknown("train_step()", options, own + handed_on)


__all__ = ["train_step"]
