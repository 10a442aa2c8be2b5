"""JAX's devices as a mesh, and how arrays lie on them.

A JAX array that holds a sharded tensor has the parts of all devices side by side, padding included:
its shape is that of `local_shape` times the number of parts. JAX knows the mesh under the same axis
names; a plan that is refined into sub-axes runs on the same devices under the finer names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from mithril.spi import (
    BackendError,
    Mesh,
    Produce,
    Shape,
    Sharding,
    TensorType,
    host_shards,
)

from mithril_jax.processes import raise_if_lost
from mithril_jax.waiting import Waiting

FEWEST_CPUS = 8
"""So many virtual CPU devices are made unless the user says how many: for later, larger meshes."""


def find_devices(count: int, platform: str | None) -> list[Any]:
    """Return at least `count` devices of a platform, in JAX's order.

    On CPU, JAX is told to make enough virtual devices, if it has not started yet.

    Args:
        count: how many are needed.
        platform: `cpu`, `gpu`, `tpu`, or None for JAX's default.

    Raises:
        BackendError: the platform is missing, or has fewer devices.
    """
    late = _ask_for_cpus(count)
    try:
        found = jax.devices(platform)
    except RuntimeError as error:
        raise BackendError(
            f"platform '{platform}' is not available to JAX; it has "
            f"'{jax.default_backend()}'; leave platform= out, or install JAX for that hardware"
        ) from error
    if len(found) >= count:
        return list(found)
    here = found[0].platform
    if here != "cpu":
        raise BackendError(
            f"mesh needs {count} devices; JAX has {len(found)} of platform '{here}'; use a smaller "
            f'mesh, or platform="cpu" for virtual devices'
        )
    raise BackendError(
        f"mesh needs {count} devices; JAX has started with {len(found)} CPU devices"
        f"{' already, and their number is fixed from then on' if late else ''}; open the backend "
        f"before the first JAX array or jax.devices(), or set the environment variable "
        f"JAX_NUM_CPU_DEVICES={count} before Python starts"
    )


def _ask_for_cpus(count: int) -> bool:
    """Set the number of virtual CPU devices, unless enough are asked for.

    Returns:
        Whether it would have to be set, and JAX has started already.
    """
    if read_config("jax_num_cpu_devices") >= count:  # -1 where nobody has said a number
        return False
    try:  # of each process: JAX cannot say yet how many there are
        jax.config.update("jax_num_cpu_devices", max(count, FEWEST_CPUS))
    except RuntimeError:
        return True
    return False


def read_config(name: str) -> Any:
    """Return a setting of JAX, such as `jax_enable_x64`; its class declares none to readers."""
    return getattr(jax.config, name)


class Devices:
    """The devices of a mesh, by their flat index.

    Args:
        mesh: the mesh of the backend, or a part of it.
        flat: its devices.
    """

    def __init__(self, mesh: Mesh, flat: Sequence[Any]) -> None:
        self.mesh = mesh
        self.flat: tuple[Any, ...] = tuple(flat)
        self.platform: str = self.flat[0].platform
        self._meshes: dict[jax.sharding.Mesh, Mesh] = {}
        self.jax_mesh = lru_cache(maxsize=256)(self._jax_mesh)
        self.sharding = lru_cache(maxsize=4096)(self._sharding)
        self._arrival = lru_cache(maxsize=4096)(self._find_arrival)

    @cached_property
    def local(self) -> tuple[int, ...]:
        """Flat indices of the devices of this process."""
        here = jax.process_index()
        return tuple(i for i, device in enumerate(self.flat) if device.process_index == here)

    @cached_property
    def number(self) -> dict[Any, int]:
        """The flat index of each device."""
        return {device: i for i, device in enumerate(self.flat)}

    def some(self, mesh: Mesh) -> Devices:
        """Return some of the devices, or all in another order, as a mesh of their own."""
        return Devices(mesh, [self.flat[device] for device in mesh.flat])

    def _jax_mesh(self, mesh: Mesh) -> jax.sharding.Mesh:
        """Return the same devices under the axes of a mesh, which may be a refined one."""
        made = jax_mesh_of(mesh, self.flat)
        self._meshes[made] = mesh
        return made

    def mesh_of(self, mesh: object) -> Mesh | None:
        """Return the mesh that a JAX mesh is, if it is this one or a refinement in use."""
        self.jax_mesh(self.mesh)
        return self._meshes.get(mesh) if isinstance(mesh, jax.sharding.Mesh) else None

    def _sharding(self, sharding: Sharding) -> jax.sharding.Sharding:
        if self.mesh.size == 1:
            return SingleDeviceSharding(self.flat[0])
        return NamedSharding(self.jax_mesh(sharding.mesh), spec_of(sharding))

    def in_order(self, x: Any) -> Any:
        """Return an array that lies on these devices in another order as one that lies in theirs.

        JAX takes no two orders in one call. What it is tracing stays as it is.
        """
        if isinstance(x, jax.core.Tracer) or not isinstance(x.sharding, NamedSharding):
            return x
        lying, ordered = x.sharding.mesh, self.jax_mesh(self.mesh).devices.ravel()
        if {*lying.devices.flat} != {*self.flat} or [*lying.devices.flat] == [*ordered]:
            return x
        mesh = jax.sharding.Mesh(ordered.reshape(lying.devices.shape), lying.axis_names)
        return jax.device_put(x, NamedSharding(mesh, x.sharding.spec))

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> jax.Array:
        """Make an array from host data; see `Engine.put`."""
        shape, placed, put_whole = self._arrival(type, sharding)
        if put_whole is not None:
            whole = produce(tuple([slice(0, size) for size in type.shape]))
            return put_whole(np.asarray(whole, type.dtype.numpy))
        parts = host_shards(type, sharding, produce, self.local)
        arrays = jax.device_put(parts, [self.flat[i] for i in self.local])
        return jax.make_array_from_single_device_arrays(
            shape, placed, arrays, dtype=type.dtype.numpy
        )

    def _find_arrival(
        self, type: TensorType, sharding: Sharding
    ) -> tuple[Shape, jax.sharding.Sharding, Callable[[np.ndarray], jax.Array] | None]:
        """Return shape and sharding of what is put, and what puts it if all devices get all."""
        shape, placed = pad_shape(type.shape, sharding), self.sharding(sharding)
        if not sharding.is_replicated or len(self.local) < len(self.flat):
            return shape, placed, None
        at_once = _find_put(self.flat[0]) if self.mesh.size == 1 else None
        if at_once is None:
            return shape, placed, lambda host: jax.device_put(host, placed)
        known, device = jax.core.ShapedArray(shape, type.dtype.numpy), [self.flat[0]]
        return shape, placed, lambda host: at_once(known, placed, [host], device)

    def ask(self, array: jax.Array) -> None:
        """Ask for an array for a while, where that is quicker than to sleep; see `waiting`."""
        if self._waiting is not None:
            self._waiting.ask(array)

    @cached_property
    def _waiting(self) -> Waiting | None:
        is_alone = self.platform == "cpu" and self.mesh.size == 1
        return Waiting() if is_alone else None

    def part(self, array: jax.Array, device: int) -> np.ndarray:
        """Return what a device holds of an array.

        Raises:
            BackendError: the device belongs to another process, or one that exchanged data with
                this one is gone.
        """
        wanted = self.flat[device]
        for shard in array.addressable_shards:
            if shard.device == wanted:
                try:
                    self.ask(shard.data)
                    return np.asarray(shard.data)
                except (RuntimeError, ValueError) as error:
                    raise_if_lost(error)
                    raise
        raise BackendError(
            f"device {device} belongs to process {wanted.process_index}, not to this one "
            f"({jax.process_index()}); its part cannot be read here; reshard the array to P() first"
        )


@cache
def _find_put(device: Any) -> Callable[..., jax.Array] | None:
    """Return what `jax.device_put` comes to for an array of the host; None if it is not there.

    A loop passes in an array of NumPy at every step: what is public asks 0.1 ms about it first.
    """
    try:
        from jax._src.interpreters.pxla import batched_device_put

        host = np.ones(1, np.float32)
        known, placed = jax.core.ShapedArray((1,), host.dtype), SingleDeviceSharding(device)
        made = batched_device_put(known, placed, [host], [device])
        return batched_device_put if float(made[0]) == 1.0 else None
    except (ImportError, AttributeError, TypeError, ValueError):  # another version of JAX
        return None


def jax_mesh_of(mesh: Mesh, flat: Sequence[Any]) -> jax.sharding.Mesh:
    """Return a mesh as JAX's own, each device at its coordinates.

    Args:
        mesh: the axes.
        flat: the devices, by their flat index.
    """
    return jax.sharding.Mesh(np.asarray(flat)[mesh.grid], mesh.names)


def spec_of(sharding: Sharding) -> PartitionSpec:
    """Return the axes that split each dimension, as JAX writes them for its own results.

    It leaves out what stands for the last dimensions where these are whole. A jitted function is
    found by that form: another one is looked up, and cached, as a call of another kind.
    """
    dims = list(sharding.dims)
    while dims and not dims[-1]:
        dims.pop()
    return PartitionSpec(*(axes or None for axes in dims))


def pad_shape(shape: Shape, sharding: Sharding) -> Shape:
    """Return the shape of the JAX array that holds a tensor: all parts, with their padding."""
    local = sharding.local_shape(shape)
    return tuple(size * sharding.shards_along(d) for d, size in enumerate(local))


def arrange(mesh: Mesh, found: Sequence[Any]) -> Sequence[Any]:
    """Return the devices of a mesh in flat order, close ones along the last axes.

    Every process of a job has an equal share; a mesh of one device is each process's own.
    """
    if mesh.size == 1:
        return [device for device in found if device.process_index == jax.process_index()][:1]
    chosen = _equal_shares(mesh.size, found)
    if chosen[0].platform == "cpu":
        return chosen
    from jax.experimental import mesh_utils

    sizes = [mesh.sizes[name] for name in mesh.order or mesh.names]
    return list(mesh_utils.create_device_mesh(sizes, chosen).flat)


def _equal_shares(count: int, found: Sequence[Any]) -> list[Any]:
    processes = jax.process_count()
    share = -(-count // processes)
    if count % processes:
        raise BackendError(
            f"mesh of {count} devices does not divide among {processes} processes; use a mesh of "
            f"{share * processes} devices, or another number of processes"
        )
    return [
        device
        for process in range(processes)
        for device in [d for d in found if d.process_index == process][:share]
    ]
