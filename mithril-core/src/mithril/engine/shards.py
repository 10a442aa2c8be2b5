"""The parts of a tensor that the devices of a mesh hold, made on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mithril.mesh import Box, Sharding, edges
from mithril.types import Shape, TensorType


def host_shards(
    type: TensorType,
    sharding: Sharding,
    produce: Callable[[Box], np.ndarray],
    devices: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Return what each device holds; devices with equal boxes share one array.

    Args:
        type: global shape and dtype.
        sharding: which box each device holds.
        produce: returns the data of a box; called once per distinct box.
        devices: flat indices of those that are wanted; all by default.
    """
    chosen = range(sharding.mesh.size) if devices is None else devices
    if sharding.is_replicated:
        whole = produce(tuple(map(slice, (0,) * type.rank, type.shape)))
        return [np.asarray(whole, dtype=type.dtype.numpy)] * len(chosen)
    local = sharding.local_shape(type.shape)
    made: dict[tuple[tuple[int, int], ...], np.ndarray] = {}
    shards = []
    for device in chosen:
        box = sharding.box(device, type.shape)
        key = edges(box)
        if key not in made:
            made[key] = add_padding(np.asarray(produce(box), dtype=type.dtype.numpy), local)
        shards.append(made[key])
    return shards


def add_padding(part: np.ndarray, shape: Shape) -> np.ndarray:
    """Return a part with zeros behind it up to a shape."""
    if part.shape == shape:
        return part
    whole = np.zeros(shape, part.dtype)
    whole[tuple(slice(size) for size in part.shape)] = part
    return whole


def trim_padding(part: np.ndarray, box: Box) -> np.ndarray:
    """Return what a device truly holds: its part without the padding."""
    return part[tuple(slice(cut.stop - cut.start) for cut in box)]
