"""Which device of MLX computes, and whether programs are compiled there."""

from __future__ import annotations

import mlx.core as mx
from mithril.spi import BackendError


def device_of(wanted: str | None) -> mx.Device:
    """Return the device of a kind; MLX's default device if none is asked for.

    Raises:
        BackendError: there is no GPU.
    """
    if wanted is None:
        found: mx.Device = mx.default_device()
        return found
    if wanted == "gpu" and not mx.is_available(mx.gpu):
        raise BackendError(
            "device='gpu' is not available; MLX finds no GPU on this machine; use device='cpu'"
        )
    return mx.Device(mx.gpu if wanted == "gpu" else mx.cpu)


def is_compiled(wanted: bool | None, device: mx.Device) -> bool:
    """Return whether programs go through `mx.compile`.

    On a GPU it joins kernels in memory. On CPU it starts a C++ compiler, for more than a second a
    kernel, and gains little: there it is done only when asked for.
    """
    return device == mx.gpu if wanted is None else wanted
