"""Several processes of one job: what `mithril launch` starts, and how each of them joins.

A process of a job finds its place in environment variables and meets the others through
`jax.distributed` when its first backend is opened. The heartbeat is short: when a process dies the
others wait in a collective that nothing can interrupt, until JAX or `mithril launch` ends them.
Without an explicit coordinator everything listens on the loopback address only.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import Any

from mithril.errors import BackendError
from mithril.plugins import Command, LaunchRequest, free_port

COORDINATOR, PROCESSES, PROCESS = (
    "MITHRIL_JAX_COORDINATOR", "MITHRIL_JAX_PROCESSES", "MITHRIL_JAX_PROCESS",
)  # fmt: skip
HEARTBEAT_SECONDS = 10
LOOPBACK = "127.0.0.1"


def commands(request: LaunchRequest) -> Sequence[Command]:
    """Return one command for each process of this machine."""
    place = request.coordinator or f"{LOOPBACK}:{free_port()}"
    return [
        Command(
            request.argv,
            {COORDINATOR: place, PROCESSES: str(request.total), PROCESS: str(rank)},
            rank,
        )
        for rank in request.ranks
    ]


def join() -> None:
    """Meet the other processes of the job, if this one was started by `mithril launch`.

    Raises:
        BackendError: JAX has started already, or the others cannot be reached.
    """
    place = os.environ.get(COORDINATOR)
    if place is None:
        return
    import jax

    if jax.distributed.is_initialized():
        return
    is_local = _is_loopback(place.rpartition(":")[0].strip("[]"))
    try:
        jax.distributed.initialize(
            place,
            num_processes=int(os.environ[PROCESSES]),
            process_id=int(os.environ[PROCESS]),
            coordinator_bind_address=place if is_local else None,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except RuntimeError as error:
        raise BackendError(
            f"process {os.environ[PROCESS]} of {os.environ[PROCESSES]} cannot join the job at "
            f"{place}; {error}; open the backend before anything else uses JAX"
        ) from error
    if is_local:
        _keep_to_loopback()


def _keep_to_loopback() -> None:
    """Make the collectives of CPU devices listen on the loopback address.

    JAX lets them listen where the name of the machine leads, and has no public setting for it.

    Raises:
        BackendError: that is not the loopback address, and JAX does not let it be changed.
    """
    if _name_is_loopback():
        return
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    if not hasattr(_jax, "make_gloo_tcp_collectives") or not hasattr(xla_bridge, "make_cpu_client"):
        raise BackendError(
            "processes would listen beyond the loopback address, and this version of JAX does not "
            "let that be changed; give mithril launch --coordinator HOST:PORT if that is meant"
        )

    def client() -> Any:
        collectives = _jax.make_gloo_tcp_collectives(
            distributed_client=distributed.global_state.client, hostname=LOOPBACK
        )
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)


def _name_is_loopback() -> bool:
    """Return whether the name of this machine leads to the loopback address, and not nowhere."""
    try:
        return _is_loopback(socket.gethostbyname(socket.gethostname()))
    except OSError:  # as in many containers
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
