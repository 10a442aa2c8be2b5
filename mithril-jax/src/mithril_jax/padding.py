"""Conversion between whole arrays and the padded shards of all devices, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from mithril.spi import Shape, Sharding


def to_padded(x: jax.Array, sharding: Sharding) -> jax.Array:
    """Return a whole array as the devices hold it: parts side by side, each with its padding."""
    for dimension, places in _uneven(x.shape, sharding):
        x = jnp.take(x, places, axis=dimension, mode="fill", fill_value=0)
    return x


def from_padded(held: jax.Array, shape: Shape, sharding: Sharding) -> jax.Array:
    """Return the whole array from what the devices hold, without padding."""
    for dimension, places in _uneven(shape, sharding):
        back = np.full(shape[dimension], 0)
        back[places[places < shape[dimension]]] = np.flatnonzero(places < shape[dimension])
        held = jnp.take(held, back, axis=dimension)
    return held


def _uneven(shape: Shape, sharding: Sharding) -> Sequence[tuple[int, np.ndarray]]:
    """Return, for each dimension with padding, where each held element stands in the whole.

    Padding stands beyond the end.
    """
    found = []
    for dimension, size in enumerate(shape):
        count = sharding.shards_along(dimension)
        if size % count == 0:
            continue
        local, axes = -(-size // count), sharding.dims[dimension]
        places = np.full(local * count, size)
        for device in range(sharding.mesh.size):
            start = local * sharding.mesh.index_over(device, axes)
            box = sharding.box(device, shape)[dimension]
            places[start : start + box.stop - box.start] = range(box.start, box.stop)
        found.append((dimension, places))
    return found
