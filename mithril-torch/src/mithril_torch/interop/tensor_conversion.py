"""Tensors of users as the engine's handles, and handles as tensors that autograd may use.

Where this process has a device of its own, a handle is a tensor: what fits is not copied, and users
see this process's part. Elsewhere users see whole tensors, which pass over the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from mithril.spi import BackendError, Handle, Shape, Sharding, TensorType, trim_padding

from mithril_torch.engine_view import EngineView
from mithril_torch.executors.local import LocalExecutor
from mithril_torch.tensors import to_normal_tensor, to_numpy, to_tensor

PlacedHandle = tuple[Handle, TensorType, Sharding]
"""A handle, and what it stands for."""


def to_handle(
    engine: EngineView,
    x: torch.Tensor,
    type: TensorType,
    sharding: Sharding,
    *,
    is_part: bool = False,
) -> Handle:
    """Return a tensor as a handle.

    Args:
        engine: whose.
        x: the whole tensor.
        type: of the whole.
        sharding: how it shall lie.
        is_part: where this process has a device of its own, `x` is what that holds.
    """
    executor, x = engine.on(sharding.mesh).executor, x.detach().resolve_neg()
    if not isinstance(executor, LocalExecutor):
        host = to_numpy(x)
        return executor.put(type, sharding, lambda box: host[box])
    if engine.mesh.size == 1:
        return x.to(executor.device).contiguous()
    if not executor.local_devices:
        return None
    if not is_part and not sharding.is_replicated:
        x = x[sharding.box(executor.local_devices[0], type.shape)]
    return _pad(x.to(executor.device), sharding.local_shape(type.shape)).contiguous()


def to_tensors(engine: EngineView, found: Sequence[PlacedHandle]) -> list[torch.Tensor]:
    """Return what handles stand for: this process's parts, or whole tensors where it has none."""
    if isinstance(engine.executor, LocalExecutor) and engine.mesh.size == 1:
        return [to_normal_tensor(handle) for handle, _, _ in found]
    if isinstance(engine.executor, LocalExecutor):
        return [_own_part(engine, *one) for one in found]
    holders = [_find_holders(sharding) for _, _, sharding in found]
    wanted = [
        (handle, sharding, device)
        for (handle, _, sharding), devices in zip(found, holders, strict=True)
        for device in devices
    ]
    parts = iter(engine.executor.parts(wanted))
    return [
        to_tensor(_assemble(type, sharding, {device: next(parts) for device in devices}))
        for (_, type, sharding), devices in zip(found, holders, strict=True)
    ]


def _own_part(
    engine: EngineView, handle: Handle, type: TensorType, sharding: Sharding
) -> torch.Tensor:
    """Return what this process's device holds.

    Raises:
        BackendError: the array lies on other devices.
    """
    local = engine.on(sharding.mesh).local_devices
    if not local:
        ranks = ", ".join(map(str, sharding.mesh.flat))
        raise BackendError(
            f"array {type} lies on ranks {ranks}, and this process is none of them; ask there, or "
            f"reshard it to P() first"
        )
    return _trim(to_normal_tensor(handle), _local_shape(type, sharding, local[0]))


def _local_shape(type: TensorType, sharding: Sharding, device: int) -> Shape:
    """Return the shape of what a device truly holds."""
    return tuple(cut.stop - cut.start for cut in sharding.box(device, type.shape))


def _pad(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    if x.shape == shape:
        return x
    whole = x.new_zeros(shape)
    whole[tuple(map(slice, x.shape))] = x
    return whole


def _trim(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    return x if x.shape == shape else x[tuple(map(slice, shape))]


def _find_holders(sharding: Sharding) -> list[int]:
    """Return one device for each distinct part of a tensor."""
    found: dict[tuple[int, ...], int] = {}
    for device in range(sharding.mesh.size):
        place = tuple(sharding.mesh.index_over(device, axes) for axes in sharding.dims)
        found.setdefault(place, device)
    return list(found.values())


def _assemble(type: TensorType, sharding: Sharding, parts: dict[int, np.ndarray]) -> np.ndarray:
    if sharding.is_replicated:
        return next(iter(parts.values()))
    whole = np.empty(type.shape, type.dtype.numpy)
    for device, part in parts.items():
        box = sharding.box(device, type.shape)
        whole[box] = trim_padding(part, box)
    return whole
