"""open_backend: from a name, a mesh and options to a backend; every argument is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mithril.compiler.communication_options import read_communication
from mithril.compiler.compression_options import read_compression, read_gather_dtype
from mithril.compiler.options import BACKEND_LATER, check_uneven, read_precision, refuse_later
from mithril.compiler.search_options import read_auto_sharding
from mithril.cost import Hardware, as_hardware
from mithril.cost.axis_order import OPTION as TOPOLOGY_AWARE
from mithril.cost.axis_order import check_axes
from mithril.cost.topology import check_topology, link_as
from mithril.errors import BackendError, MeshError
from mithril.keywords import checked_keywords, list_argument_names
from mithril.mesh import Mesh
from mithril.option_checks import check_flag
from mithril.options import Precision
from mithril.plugins.launch_options import read_handed_on
from mithril.plugins.opening import list_options, open_engine
from mithril.runtime.backend import Backend
from mithril.runtime.parallelism import OVERLAP, read_parallelism


@checked_keywords()
def open_backend(
    name: str,
    device_mesh: Mesh | int | Sequence[int] | None = None,
    *,
    mesh_axis_names: Sequence[str] | None = None,
    uneven: str = "pad",
    dtype: object = None,
    param_dtype: object = None,
    weight_dtype: object = None,
    compute_dtype: object = None,
    activation_dtype: object = None,
    precision: Precision | None = None,
    hardware: Hardware | str | Path | None = None,
    parallel_mode: str | None = None,
    fsdp_config: Mapping[str, object] | None = None,
    tensor_parallel_config: Mapping[str, object] | None = None,
    overlap_communication: bool | None = None,
    communication_overlap_strategy: str | None = None,
    pipeline_communication: bool | None = None,
    collective_ops: str | Mapping[str, str | Mapping[str, str]] | None = None,
    async_collective_ops: bool | None = None,
    all_reduce_fusion: bool | None = None,
    fusion_bytes: int | str | None = None,
    collective_optimization: bool | None = None,
    communication_optimization: bool | None = None,
    mesh_topology: str | None = None,
    network_topology_aware: bool = False,
    gradient_compression: object = None,
    gather_dtype: str | None = None,
    auto_sharding: bool | None = None,
    auto_sharding_config: Mapping[str, object] | None = None,
    **options: object,
) -> Backend:
    """Open a backend by name on a device mesh.

    Every installed backend can be opened by a function of its own as well: `ml.JaxBackend(…)`, and
    `ml.NpuBackend(…)` for one that is called `npu`; `dir(mithril)` has them all.

    Args:
        name: a name that `mithril backends list` shows.
        device_mesh: a Mesh, its shape, or None for one device.
        mesh_axis_names: names for the dimensions of a shape; by default `data`, `data, model`,
            `data, tensor, pipeline`.
        uneven: what happens when a dimension is split that does not divide: `pad` its parts, or
            `error`.
        dtype: the float dtype of new arrays and of models, float32 by default; see `Precision`
            for this and the next ones.
        param_dtype: the dtype parameters are kept in.
        weight_dtype: another name of `param_dtype`.
        compute_dtype: the dtype of the operands of linear algebra.
        activation_dtype: the dtype of values between layers.
        precision: these dtypes in one; instead of them.
        hardware: what the devices are taken to be where choices are priced: a name that `mithril
            hardware` shows, the path of a TOML file, or a Hardware. By default what they call
            themselves, calibrated where `mithril calibrate` was run.
        parallel_mode: how models are split that say nothing themselves: `data` copies parameters,
            `fully_sharded` keeps them split over the axis `data` (ZeRO, `zero=` of `compile`), and
            `tensor` splits weights by `tensor_parallel_config`.
        fsdp_config: of `fully_sharded`: `sharding_strategy` (`FULL_SHARD` is ZeRO's stage 3,
            `SHARD_GRAD_OP` 2, `NO_SHARD` 0), `mixed_precision` (linear algebra in bfloat16),
            `flatten_parameters` (what travels together does so in one buffer, which is so anyway).
        tensor_parallel_config: `tp_size`, the size of the mesh axis that splits the weights of
            linear layers, `tp_mode`: `column` splits their outputs, `row` their inputs, and
            `overlap_comm`, which is `overlap_communication`.
        overlap_communication: whether communication goes on beside what computes; see `compile`,
            of which this and the next ones are the defaults.
        communication_overlap_strategy: how.
        pipeline_communication: whether what is large travels in chunks.
        collective_ops: how collectives are carried out, of which `compile` says more; also the name
            of the library that carries data between the devices, such as `nccl`.
        async_collective_ops: another name of `overlap_communication`.
        all_reduce_fusion: whether all-reduces travel together; see `compile`, of which this and the
            next ones are the defaults.
        fusion_bytes: the most that a buffer holds in which collectives do.
        collective_optimization: whether all passes over communication are on `auto`, or none runs.
        communication_optimization: another name of that.
        mesh_topology: how the devices are taken to be linked where collectives are priced: `ring`,
            `torus` (a dimension for each mesh axis), `switch`, `fat_tree` or `fully_connected`; by
            default as their hardware profile says.
        network_topology_aware: whether the axes of the mesh are laid on the network, for each
            model, so that what its plan sends is predicted to take the least time; by default they
            lie as the mesh says.
        gradient_compression: how gradients of models travel where devices add them up; see
            `compile`, of which this and the next are the defaults.
        gather_dtype: in which dtype parameters that lie split are gathered.
        auto_sharding: whether the best way to lay out models is searched for, as by
            `auto_partition` of `compile`, of which this is the default.
        auto_sharding_config: what is searched for: with `force_data_parallel` nothing but batches
            is split; without `allow_mixed_mesh_models` a model is split by its batch, or by
            everything else, and not by both. Given alone it is `auto_sharding=True`.
        options: the backend's own options; those that `mithril launch --option` was given are
            there unless the script says otherwise.

    Raises:
        BackendError: the backend is not installed or cannot be opened.
        MeshError: the mesh is not one.
        OptionError: an option is unknown or not available yet.

    >>> open_backend("numpy", device_mesh=(2, 2)).mesh
    Mesh(data=2, model=2)
    """
    if not isinstance(name, str):
        raise BackendError(f"backend name {name!r} is not a string; give one, such as 'numpy'")
    options = {**read_handed_on(name), **options}
    refuse_later(f"backend '{name}'", options, BACKEND_LATER - list_options(name))
    mesh = read_mesh(device_mesh, mesh_axis_names)
    parallelism = read_parallelism(parallel_mode, fsdp_config, tensor_parallel_config, mesh)
    communication = read_communication(
        collective_optimization=collective_optimization,
        communication_optimization=communication_optimization,
        overlap_communication=overlap_communication,
        async_collective_ops=async_collective_ops,
        overlap_comm=parallelism.overlaps,
        overlap_comm_name=OVERLAP,
        communication_overlap_strategy=communication_overlap_strategy,
        pipeline_communication=pipeline_communication,
        all_reduce_fusion=all_reduce_fusion,
        fusion_bytes=fusion_bytes,
    )
    if parallelism.is_mixed and compute_dtype is None and precision is None:
        compute_dtype = "bfloat16"
    dtypes = read_precision(
        precision,
        dtype=dtype,
        param_dtype=param_dtype,
        weight_dtype=weight_dtype,
        compute_dtype=compute_dtype,
        activation_dtype=activation_dtype,
    )
    policy = check_uneven(uneven)
    profile = None if hardware is None else as_hardware(hardware)
    if mesh_topology is not None:
        check_topology(mesh_topology, mesh, profile)
    if check_flag(TOPOLOGY_AWARE, network_topology_aware):
        check_axes(mesh)
    compression = read_compression(gradient_compression, mesh)
    gather = read_gather_dtype(gather_dtype)
    search = read_auto_sharding(auto_sharding, auto_sharding_config)
    engine = open_engine(name, mesh, options, list_argument_names(open_backend)[1:])
    communication = communication.with_algorithms(collective_ops, mesh, engine.library, name)
    backend = Backend(
        engine, policy, dtypes, profile, parallelism, communication, compression, gather
    )
    if mesh_topology is not None:
        backend.hardware = link_as(backend.hardware, mesh_topology, mesh)
    backend.search = search
    backend.own_options = dict(options)
    backend.is_topology_aware = network_topology_aware and mesh.size > 1
    return backend


def read_mesh(device_mesh: Mesh | int | Sequence[int] | None, names: Sequence[str] | None) -> Mesh:
    """Return the mesh that `device_mesh=` and `mesh_axis_names=` mean.

    Raises:
        MeshError: they do not fit together.
    """
    if isinstance(device_mesh, Mesh):
        if names is not None:
            raise MeshError(
                "mesh_axis_names is given together with a Mesh, which has names; give one of them"
            )
        return device_mesh
    if device_mesh is None:
        if names is not None:
            raise MeshError("mesh_axis_names is given without device_mesh; give both")
        return Mesh()
    if isinstance(names, str):
        raise MeshError(
            f"mesh_axis_names is the string '{names}'; give a list of names, such as ['data']"
        )
    return Mesh.from_shape(device_mesh, names)


__all__ = ["open_backend", "read_mesh"]
