"""What PyTorch was seen to carry out, in the words of a plan: kind, mesh axes and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = tuple[str, tuple[str, ...], int]
_KINDS = {
    "allreduce_": "all_reduce", "all_reduce": "all_reduce", "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
}  # fmt: skip


def issued(seen: Mapping[str, Any]) -> Row:
    """Return a collective as a plan lists it, from what `pool.recorder` saw of it."""
    kind = _KINDS.get(seen["op"], seen["op"])
    if kind == "all_to_all" and seen["has_splits"]:
        kind = "permute"
    moved = seen["bytes"] * (len(seen["ranks"]) if kind == "all_gather" else 1)
    return kind, tuple(seen["axes"]), moved
