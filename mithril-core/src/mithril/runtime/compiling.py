"""compile: from a model and what is asked of it to a compiled model; every argument is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mithril.compiler import PlanOptions
from mithril.compiler.communication_options import read_communication
from mithril.compiler.compression_options import (
    check_names,
    check_stateless,
    read_compression,
    read_gather_dtype,
)
from mithril.compiler.options import (
    OF_FUNCTIONS,
    OF_STEPS,
    check_uneven,
    read_accumulate,
    read_policy,
    refuse_of_other,
)
from mithril.compiler.plugin_passes import read_passes
from mithril.compiler.recompute_options import name_axes, read_recompute
from mithril.compiler.search_options import read_search
from mithril.errors import BackendError, GraphError, OptionError, kind_of
from mithril.keywords import refuse_unknown
from mithril.mesh import PartitionSpec
from mithril.models import Layer, Model
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition
from mithril.models.outputs import choose_outputs
from mithril.models.trace import input_names, output_names, parameter_names
from mithril.option_checks import check_flag
from mithril.options import PipelineOptions, Precision
from mithril.runtime.backend import Backend
from mithril.runtime.balancing import Job, balance_stages, read_balancing, search_stages
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.input_shardings import join_shardings
from mithril.runtime.memory_planning import read_memory_planning
from mithril.runtime.offload_options import read_offload
from mithril.runtime.searching import OPTION, check_searched, join_annotations, read_fixed
from mithril.runtime.settings import (
    Choice,
    Settings,
    Shardings,
    check_accumulate,
    check_stages_for,
    read_at_rest,
    read_differentiable,
    read_donated,
    read_limit,
    read_pipeline,
    read_shardings,
)
from mithril.runtime.strategy import Strategy
from mithril.runtime.strategy.apply import OPTION as STRATEGY
from mithril.runtime.strategy.apply import apply_strategy
from mithril.runtime.zero import Zero, read_zero

NOT_GIVEN: Any = None
"""Stands for an argument that must be given: what is said of None is said of none."""


def compile(
    model: Model | Layer,
    backend: Backend = NOT_GIVEN,
    *,
    shapes: Mapping[str, object] | None = None,
    outputs: Sequence[str] | None = None,
    inference: bool = False,
    uneven: str | None = None,
    in_shardings: Shardings = None,
    out_shardings: Shardings = None,
    at_rest: Shardings = None,
    zero: int | None = None,
    zero_axis: str | Sequence[str] | None = None,
    donate: Choice = (),
    precision: Precision | None = None,
    differentiable: Sequence[str] = (),
    max_reshard_bytes: int | None = None,
    strict_memory: bool = False,
    accumulate: int | None = None,
    gradient_accumulation: bool | None = None,
    gradient_accumulation_steps: int | None = None,
    mixed_precision_policy: Mapping[str, object] | None = None,
    pipeline: PipelineOptions | None = None,
    pipeline_schedule: str | Sequence[str] | None = None,
    partition_strategy: Strategy | None = None,
    load_balancing: bool | None = None,
    load_balancing_algorithm: str | None = None,
    profiling_based_partitioning: bool | None = None,
    partition_hooks: bool = False,
    memory_planning: str | None = None,
    overlap_communication: bool | None = None,
    communication_overlap_strategy: str | None = None,
    pipeline_communication: bool | None = None,
    collective_ops: str | Mapping[str, str | Mapping[str, str]] | None = None,
    async_collective_ops: bool | None = None,
    all_reduce_fusion: bool | None = None,
    fusion_bytes: int | str | None = None,
    collective_optimization: bool | None = None,
    communication_optimization: bool | None = None,
    gradient_compression: object = None,
    gather_dtype: str | None = None,
    checkpointing: str | float | Mapping[str, str] | None = None,
    activation_checkpointing: str | float | Mapping[str, str] | None = None,
    rematerialization: bool | None = None,
    rematerialization_policy: Mapping[str, str] | None = None,
    recomputation_granularity: str | None = None,
    activation_offload: bool = False,
    offload_threshold: float | None = None,
    spill_to_host: bool = False,
    spill_threshold_mb: float | None = None,
    host_arena: str | None = None,
    auto_partition: bool | None = None,
    partition_objective: str | None = None,
    partition_search_space: str | None = None,
    partition_constraints: Mapping[str, object] | None = None,
    max_memory_per_device: int | str | None = None,
    passes: Sequence[str] = (),
    **options: object,
) -> CompiledModel:
    """Compile a model for a backend.

    The compiled model is a snapshot: later changes of the model do not reach it.

    Args:
        model: a Model, or a single layer.
        backend: where it runs.
        shapes: for each input a shape, an array, or a `TensorSpec`; then the plan is made at once
            that the first evaluation is expected to run: of outputs and gradients, as `plan_for`
            makes it, or of outputs alone with `inference`. What they say of shardings holds for
            inputs that nobody placed, of other sizes, too; placed ones keep how they lie.
        outputs: which values are the outputs, by name and in this order; layers, inputs and
            parameters that they do not need are left out. By default the model's.
        inference: turns dropout off.
        uneven: what happens when a dimension is split that does not divide: `pad` its parts, or
            `error`; by default as the backend does.
        in_shardings: how inputs shall lie: one PartitionSpec for all, or one per input name; what
            lies otherwise is moved there, and NumPy arrays are put there at once. Here, and
            wherever else a PartitionSpec is taken, the sharding of an array of the mesh is one.
        out_shardings: how outputs must leave: one PartitionSpec for all, or one per output name;
            their axes must be the mesh's, on one device, too.
        at_rest: how parameters are kept between uses, by patterns of their names, or one
            PartitionSpec for all but scalars, as `model.at_rest` says it; these rules come last.
        zero: 3 keeps every parameter of which `at_rest` says nothing split over `zero_axis`, too,
            besides how it is computed with (ZeRO's stage 3): it is gathered where a phase needs it,
            and its gradient scattered. 2 scatters the gradients alone. 1 is for `train_step`. By
            default what `fsdp_config` of the backend says, or 0.
        zero_axis: the mesh axis that splits the batch, or several of them; `data` by default.
        donate: what is given up by each evaluation: its arguments `params`, `inputs` and
            `output_gradients` by name or position, or patterns of the names of inputs and
            parameters. Such arrays cannot be used afterwards, and results may take their memory.
        precision: the dtypes of parameters, linear algebra and activations; by default the
            backend's.
        differentiable: inputs whose gradients are wanted, too; they come with the parameters'.
        max_reshard_bytes: refuse a plan that moves more bytes than this, per device and time, only
            because two shardings do not fit together (reductions and what is kept at rest aside).
        strict_memory: refuse a plan that devices have too little memory for, or that cannot be
            told of; otherwise there is a `MithrilWarning`, with what would help.
        accumulate: into how many micro-batches a batch is cut, one after another. Outputs and
            gradients are those of the whole batch, and devices exchange gradients once.
        gradient_accumulation: whether it is cut at all.
        gradient_accumulation_steps: another name of `accumulate`.
        mixed_precision_policy: another form of `precision`: float dtypes of `params`, `compute` and
            `gradients`; gradients of parameters then leave in the last one.
        pipeline: how the stages of a pipeline run.
        pipeline_schedule: the schedule alone, as `PipelineOptions` takes it.
        partition_strategy: what `ml.auto_tune` found, or an `ml.Strategy` from a file: how
            parameters and inputs are split, stages, micro-batches, ZeRO's stage and what is
            computed again. It is for one model and one mesh; what is said besides must not
            contradict it.
        load_balancing: put the layers of a model into stages, one after another along the mesh axis
            `pipeline` (or `stage`, or that of `pipeline=`), so that the slowest stage is as fast as
            can be. It needs `shapes`. Stages that the model says itself stay, and the plan says so.
        load_balancing_algorithm: `optimal`, the default, finds the best cut by dynamic programming;
            `greedy` ends a stage as soon as it has its share of the time that is left.
        profiling_based_partitioning: take the times of layers from a run on the backend, forward
            and backward, instead of predicted ones.
        partition_hooks: put each layer, and each collective, into a range of the framework's
            profiler that has its name.
        memory_planning: `greedy` lays results out before anything runs, at fixed offsets in one
            block a device, which is made once and used again at every call; what leaves a program
            is never in it. `dynamic`, the default, takes memory when a result is made and gives it
            back when nobody needs it any more. XLA lays its programs out in either case.
        overlap_communication: whether collectives go on beside what computes: True is the strategy
            `auto`, False `none`. By default as the backend does, and that is `auto`. Where an
            engine orders a program itself, or waits for each collective, `explain()` says so.
        communication_overlap_strategy: `auto` has collectives start one block ahead of their use,
            as far as memory budgets allow, and work follow those that cannot, and products computed
            in parts while other parts travel, where a step is predicted to be shorter then;
            `decompose` has all products computed so that can be; `bucket` has all that a block
            needs travel in one buffer, one block ahead, in any case; `none` waits for each at once.
        pipeline_communication: whether what is large travels in chunks, on which what needs it
            starts, or behind which what makes it goes on, where a step is predicted to be shorter
            then; see docs/overlap.md. False by default.
        collective_ops: how collectives are carried out: an algorithm for all kinds that it does, or
            by kind (`{"all_reduce": "ring"}`), or by kind and mesh axis. `ring`, `tree`, `direct`,
            `recursive_halving` and `hierarchical` put permutes, and collectives over sub-axes, in
            the place of one; `native` is the backend's own, `auto` what is predicted to take least
            time. By default as the backend does, and that is `native`; see docs/communication.md.
        async_collective_ops: another name of `overlap_communication`.
        all_reduce_fusion: whether all-reduces of one group travel together in flat buffers, as
            large as is predicted to pay; True by default.
        fusion_bytes: the most that such a buffer, or one of what is gathered or scattered, holds: a
            number of bytes, or a text such as `"2 MB"`; a larger value travels alone.
        collective_optimization: True has every pass over communication on `auto`: overlap and
            fusion, as is so by default, and algorithms; `explain()` then says what they did. False
            has none of them run: no overlap, and each value travels alone.
        communication_optimization: another name of `collective_optimization`.
        gradient_compression: how gradients of parameters travel where devices add them up: `fp16`,
            `bf16` or `int8`, an `ml.GradientCompression`, which says for which axes and names, or a
            mapping from patterns of parameter names to these, or to None for plain sums; the last
            pattern that matches holds. By default as the backend does, and that is plainly.
            `powersgd`, and error feedback, are for `train_step`, which keeps their state.
        gather_dtype: `bf16` or `fp16`: parameters that lie split between programs travel in 16 bits
            to where they are computed with, and lie in all of theirs. By default as the backend
            does, and that is in their own dtype.
        checkpointing: which activations the backward computes again instead of finding them kept:
            `all` but what enters each layer, `none`, `selective` for what costs next to nothing,
            a fraction of the memory that keeping everything takes, a number of bytes that a device
            may hold (`"2 GB"`), or `all` and `none` by patterns of layer paths. Layers are the
            outermost ones that repeat. By default `none`; `plan.memory().policy` says what is done.
        activation_checkpointing: another name of `checkpointing`.
        rematerialization: True is `checkpointing="all"` where that says nothing; False is `none`.
        rematerialization_policy: for mesh axes, `minimal` to keep what a collective over the axis
            has brought, or `full` to exchange it again, which is so by default.
        recomputation_granularity: `layer` or `operation`: what a budget chooses among.
        activation_offload: copy what the backward needs of the forward to the host arena after its
            last use in the forward, and back before its first use in the backward.
        offload_threshold: activations of more elements on a device are offloaded; 1e6 by default.
        spill_to_host: have in the host arena whatever is alive at the moment of the peak, but not
            used then, if it is large enough.
        spill_threshold_mb: that is at least so many MiB; 1024 by default.
        host_arena: where the host arena lies: `memory`, or `file` for files without names in the
            directory for temporary files, which are mapped into memory.
        auto_partition: search for the best way to lay out all that nobody has laid out: inputs,
            parameters, and everything between. What is annotated or placed stays so, and neither
            the model nor its inputs need to be; `explain()` says what the best costs at least. By
            default as the backend's `auto_sharding`, and that is no search.
        partition_objective: what is minimised: `throughput`, the predicted time of outputs and
            gradients, which is so by default; `latency`, that of outputs alone; `memory_usage`,
            what a device holds between phases, and then the time; `communication`, the predicted
            time of collectives, and then that of work.
        partition_search_space: what may be split: `data`, nothing but the leading dimension of
            inputs; `fully_sharded`, that, while every parameter rests split if it can be;
            `tensor`, everything else; `mixed`, or `mixed_parallel`, everything, which is so by
            default; `annotations`, nothing, so that what is said is priced as a search prices;
            `pipeline`: layers are cut into stages along the mesh axis `pipeline`, so that the
            slowest is as fast as can be, and nothing else is searched. That needs `shapes`.
        partition_constraints: a mapping of limits: `max_memory_per_device`, `max_all_reduce_size`
            in bytes (`"1 GB"`), `forbid`, a list of collectives that may not occur (`all_to_all`)
            and of pairs of a pattern of names and a mesh axis over which what it matches is not
            split, and `shardings`, PartitionSpecs by patterns of names of inputs and parameters.
        max_memory_per_device: the most bytes that a device may hold, as `plan.memory()` says it:
            `"16 GB"`.
        passes: of plugins, by name, such as `["acme.fold"]`, in the order in which they run: those
            over the graph before gradients are added, those over programs last. The plan's notes
            name them.
        options: none; those of `jit` that make no sense here are refused by name.

    Raises:
        OptionError: an option is unknown or not available yet.
        MeshError: an annotation does not fit the backend's mesh.
        GraphError: the model is incomplete, or a name does not exist.
        PlanError: a hidden move is larger than `max_reshard_bytes`, or devices have too little
            memory and `strict_memory` is set; with `shapes`, or at the first evaluation.
    """
    refuse_of_other("compile()", options, OF_FUNCTIONS | OF_STEPS)
    refuse_unknown("compile()", options, compile.__kwdefaults__ or ())
    if not isinstance(backend, Backend):
        raise BackendError(
            f"compile() takes a backend, not {backend!r}; open one, such as ml.NumpyBackend()"
        )
    snapshot = _snapshot(model)
    if outputs is not None:
        snapshot = choose_outputs(snapshot, outputs)
    by_strategy: dict[str, Annotation] = {}
    inputs_by_strategy: Mapping[str, PartitionSpec] = {}
    if partition_strategy is not None:
        applied, snapshot = apply_strategy(partition_strategy, snapshot, backend.mesh)
        found = applied.strategy
        by_strategy, inputs_by_strategy = found.annotate(), found.in_shardings
        zero, zero_axis = applied.merge_zero(zero, zero_axis)
        zero = 0 if zero == 1 == found.zero else zero  # evaluate() has no state of an optimiser
        zero_axis = zero_axis if zero else None
        pipeline = applied.merge("pipeline", pipeline, found.pipeline)
        if found.accumulate > 1:
            accumulate = applied.merge("accumulate", accumulate, found.accumulate)
        if found.auto_partition:
            auto_partition = applied.merge("auto_partition", auto_partition, True)
            partition_objective = applied.merge(
                "partition_objective", partition_objective, found.auto_partition
            )
        if found.checkpointing != "none":
            checkpointing = applied.merge("checkpointing", checkpointing, found.checkpointing)
    balancing = read_balancing(
        load_balancing, load_balancing_algorithm, profiling_based_partitioning
    )
    policy = backend.uneven if uneven is None else check_uneven(uneven)
    count = read_accumulate(accumulate, gradient_accumulation, gradient_accumulation_steps)
    recompute = read_recompute(
        {
            "checkpointing": checkpointing,
            "activation_checkpointing": activation_checkpointing,
            "rematerialization": rematerialization,
            "rematerialization_policy": rematerialization_policy,
            "recomputation_granularity": recomputation_granularity,
        }
    )
    gradients = None
    if mixed_precision_policy is not None:
        if precision is not None:
            raise OptionError(
                "precision= is given together with mixed_precision_policy=; give one form"
            )
        precision, gradients = read_policy(mixed_precision_policy)
    dtypes = backend.precision if precision is None else backend.check_precision(precision)
    notes: tuple[str, ...] = ()
    job = Job(backend, shapes, dtypes, read_pipeline(pipeline, pipeline_schedule), inference)
    asked = read_search(
        {
            "auto_partition": auto_partition,
            "partition_objective": partition_objective,
            "partition_search_space": partition_search_space,
            "partition_constraints": partition_constraints,
            "max_memory_per_device": max_memory_per_device,
        },
        backend.mesh,
        backend.search,
    )
    search, searched = asked.search, None
    if search is not None and search.is_of_stages:
        snapshot, searched = search_stages(snapshot, search, job)
        search = None
    if balancing is not None:
        snapshot, notes = balance_stages(snapshot, balancing, job)
    inputs, outputs = input_names(snapshot), output_names(snapshot)
    parameters = parameter_names(snapshot)
    communication = read_communication(
        collective_optimization=collective_optimization,
        communication_optimization=communication_optimization,
        overlap_communication=overlap_communication,
        async_collective_ops=async_collective_ops,
        communication_overlap_strategy=communication_overlap_strategy,
        pipeline_communication=pipeline_communication,
        all_reduce_fusion=all_reduce_fusion,
        fusion_bytes=fusion_bytes,
        default=backend.communication,
    )
    communication = communication.with_algorithms(
        collective_ops,
        backend.mesh,
        backend.engine.library,
        backend.name,
        is_said=(collective_optimization, communication_optimization) != (None, None),
    )
    fixed = read_fixed(asked.shardings, parameters, inputs, backend.mesh)
    compression = read_compression(gradient_compression, backend.mesh, backend.compression)
    check_names(compression, parameters)
    if gradient_compression is not None:
        check_stateless(compression)
    settings = Settings(
        inference=check_flag("inference", inference),
        plan=communication.apply(
            PlanOptions(
                precision=dtypes,
                pads=policy == "pad",
                max_reshard_bytes=read_limit(max_reshard_bytes),
                strict_memory=check_flag("strict_memory", strict_memory),
                gradients=gradients,
                recompute=name_axes(recompute, backend.mesh),
                compression=compression,
                gather=read_gather_dtype(gather_dtype, backend.gather_dtype),
                offload=read_offload(
                    activation_offload,
                    offload_threshold,
                    spill_to_host,
                    spill_threshold_mb,
                    host_arena,
                    inference=inference,
                ),
                search=search,
                passes=read_passes(passes),
            )
        ),
        accumulate=count,
        zero=_read_zero(zero, zero_axis, backend),
        in_shardings=join_shardings(
            {
                STRATEGY: read_shardings(
                    inputs_by_strategy, inputs, backend.mesh, f"in_shardings of {STRATEGY}", "input"
                ),
                OPTION: fixed.inputs,
                "in_shardings": read_shardings(
                    in_shardings, inputs, backend.mesh, "in_shardings", "input"
                ),
            }
        ),
        annotations=join_annotations(by_strategy, fixed.parameters),
        out_shardings=read_shardings(
            out_shardings, outputs, backend.mesh, "out_shardings", "output"
        ),
        at_rest=read_at_rest(at_rest, parameters, backend.mesh),
        donated=read_donated(donate, inputs, parameters, outputs),
        differentiable=read_differentiable(differentiable, inputs),
        partition_hooks=check_flag("partition_hooks", partition_hooks),
        memory_planning=read_memory_planning(memory_planning),
        pipeline=job.pipeline,
        lays_axes=backend.is_topology_aware,
        notes=notes,
        searched=searched,
        strategy=partition_strategy,
    ).with_shapes(shapes)
    check_searched(snapshot, settings)
    alone = pipeline is None
    given = f"pipeline_schedule={pipeline_schedule!r}" if alone else f"pipeline={pipeline!r}"
    check_stages_for(snapshot, settings.pipeline, given)
    check_accumulate(snapshot, count)
    compiled = CompiledModel(snapshot, backend, settings)
    if shapes is not None:
        compiled.plan_for(shapes, gradients=not inference)
    return compiled


def _read_zero(zero: int | None, axis: str | Sequence[str] | None, backend: Backend) -> Zero:
    stage = backend.parallelism.zero if zero is None else zero
    if stage == 1 and not isinstance(stage, bool):
        raise OptionError(
            "zero=1 splits the state of an optimiser, which evaluate() does not have; give it to "
            "train_step(), or 2 or 3 to compile()"
        )
    return read_zero(stage, axis, backend.mesh)


def _snapshot(model: object) -> Composition | Layer:
    if isinstance(model, Model):
        return model.snapshot()
    if isinstance(model, Layer):
        return model
    raise GraphError(
        f"compile() takes a Model or a layer, not {kind_of(model)}; make one, such as ml.Linear(3)"
    )
