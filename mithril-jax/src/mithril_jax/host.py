"""Copies between a device and the host arena, while a program runs.

On accelerators the arena is pinned memory of the host, a memory kind that XLA copies to and from
beside other work. On CPU XLA keeps everything in one memory, whatever its kind, so that a copy is a
call of Python: it puts the values into an arena of the core (`mithril.spi.host_arena`), and what
stands for them in the program is a number by which they are found again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from mithril.spi import TensorType, host_arena
from mithril.spi.ops import FromHost, ToHost

TICKET = jax.ShapeDtypeStruct((), jnp.int32)
"""The type of the number that stands for what lies in the arena."""
LARGEST = 2**31 - 1
_held: dict[int, np.ndarray] = {}
_numbers = itertools.cycle(range(1, LARGEST))


def copy_to_host(op: ToHost, platform: str) -> Callable[[Any], Any]:
    """Return the function that copies an array into the arena.

    Args:
        op: says where the arena lies.
        platform: of the devices.
    """
    if platform != "cpu":
        return lambda x: jax.device_put(x, jax.memory.Space.Host)

    def put(x: Any) -> np.ndarray:
        number = next(_numbers)
        _held[number] = host_arena(op.arena).hold(np.asarray(x))
        return np.asarray(number, np.int32)

    return lambda x: io_callback(put, TICKET, x)


def copy_from_host(op: FromHost, type: TensorType, platform: str) -> Callable[[Any], Any]:
    """Return the function that copies an array from the arena.

    Args:
        op: says whether it is read for the last time.
        type: of the array.
        platform: of the devices.
    """
    if platform != "cpu":
        return lambda x: jax.device_put(x, jax.memory.Space.Device)
    made = jax.ShapeDtypeStruct(type.shape, type.dtype.numpy)

    def take(ticket: Any) -> np.ndarray:
        number = int(ticket)
        return _held.pop(number) if op.is_last else _held[number]

    return lambda ticket: io_callback(take, made, ticket)


__all__ = ["copy_from_host", "copy_to_host"]
