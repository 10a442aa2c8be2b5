"""What `mithril launch` starts for MLX: the processes of a ring on this machine.

This module imports no framework.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Sequence

from mithril.spi import Command, LaunchRequest, OptionError

LOOPBACK = "127.0.0.1"


def commands(request: LaunchRequest) -> Sequence[Command]:
    """Return one command for each process.

    Raises:
        OptionError: several machines are asked for; a ring needs the address of each.
    """
    if request.nodes > 1 or request.coordinator is not None:
        raise OptionError(
            "mithril launch --backend mlx starts the processes of one machine, and the ring of "
            "several needs the address of each; start them by mlx.launch --hostfile"
        )
    hosts = _hostfile(request.total, request.folder)
    return [
        Command(request.argv, {"MLX_RANK": str(rank), "MLX_HOSTFILE": hosts}, rank)
        for rank in request.ranks
    ]


def _hostfile(count: int, folder: str) -> str:
    """Return a file of the job that says where each process listens."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    for each in sockets:  # all at once, so that no two get the same port
        each.bind((LOOPBACK, 0))
    places = [[f"{LOOPBACK}:{each.getsockname()[1]}"] for each in sockets]
    for each in sockets:
        each.close()
    descriptor, path = tempfile.mkstemp(prefix="mithril-", suffix=".json", dir=folder or None)
    with os.fdopen(descriptor, "w") as file:
        json.dump(places, file)
    return path
