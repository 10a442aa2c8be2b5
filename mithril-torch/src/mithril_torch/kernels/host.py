"""Copies between the device and the host arena."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.table import kernel


@kernel(ops.ToHost)
def to_host(op: ops.ToHost, types: Types) -> str:
    """A copy in the arena."""
    return f"to_host({{0}}, {op.arena!r})"


@kernel(ops.FromHost)
def from_host(op: ops.FromHost, types: Types) -> str:
    """A copy on the device, which is there at once."""
    return "fetch({0}, device).wait()"
