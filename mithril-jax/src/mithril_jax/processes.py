"""Several processes of one job: what `mithril launch` starts, and how each of them joins.

A process of a job finds its place in environment variables and meets the others through
`jax.distributed` when its first backend is opened. What they meet at is a process of its own
(`coordination`), so each of them ends when it ends, with its own exit code.

On one machine `mithril launch` sees every process end and stops the others. So nobody waits for
heartbeats, which a busy machine delays, nor at its end for others. Across machines both are needed.
Without an explicit coordinator everything listens on the loopback address only.
"""

from __future__ import annotations

import atexit
import ipaddress
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mithril.spi import BackendError, Command, LaunchRequest, free_port, listing

COORDINATOR, PROCESSES, PROCESS, NODES = (
    "MITHRIL_JAX_COORDINATOR", "MITHRIL_JAX_PROCESSES", "MITHRIL_JAX_PROCESS", "MITHRIL_JAX_NODES",
)  # fmt: skip
ONE_DAY = 24 * 3600
HEARTBEAT_SECONDS = 60
"""Seconds without a sign of life after which a process of another machine counts as dead."""
SHUTDOWN_SECONDS = 300
"""Seconds that a process waits at its end for those of other machines."""
SECONDARY_SECONDS = 1.0
"""Seconds that a process which fails as another one is gone leaves to that one's end."""
LOOPBACK = "127.0.0.1"
_kept: list[socket.socket] = []
"""What keeps ports of services that this process starts."""
_SECONDARY = re.compile(r"Gloo .* failed|Connection (closed|reset|refused)|UNAVAILABLE|Broken pipe")
_CALLBACK = re.compile(r"callback|Traceback \(most recent call last\)", re.IGNORECASE)


def raise_if_lost(error: Exception) -> None:
    """Tell of another process of the job that is gone, where JAX tells of a connection.

    Args:
        error: what JAX raised; nothing is done about another one, so that it is raised again.

    Raises:
        BackendError: another process of the job is gone.
    """
    if COORDINATOR not in os.environ or not _is_secondary_failure(error):
        return
    raise BackendError(
        f"process {os.environ[PROCESS]} of {os.environ[PROCESSES]} has lost another process of the "
        f"job while they exchanged data: {error}; see what that one says, and start the job again"
    ) from error


def _is_secondary_failure(error: Exception) -> bool:
    """Return whether an error tells that another process is gone, and not what went wrong.

    Kernels and callbacks of users may have connections of their own: what they raise comes as it
    is, or in the text of an error of JAX that tells of a callback.
    """
    import jax

    text = str(error)
    if isinstance(error, jax.errors.JaxRuntimeError):
        return _SECONDARY.search(text) is not None and _CALLBACK.search(text) is None
    # Where a call is not queued.
    return isinstance(error, ValueError) and "Gloo" in text and _SECONDARY.search(text) is not None


def commands(request: LaunchRequest) -> Sequence[Command]:
    """Return one command for each process of this machine, and on the first one the service."""
    place = request.coordinator or f"{LOOPBACK}:{_keep_port()}"
    shared = {COORDINATOR: place, PROCESSES: str(request.total), NODES: str(request.nodes)}
    ranks = [Command(request.argv, {**shared, PROCESS: str(rank)}, rank) for rank in request.ranks]
    return [_service(request, place), *ranks] if request.node_rank == 0 else ranks


def _keep_port() -> int:
    """Return a port of the loopback address that nobody else is given while this process lives.

    The service needs seconds until it listens there, which it may beside this process: gRPC asks
    for that.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        return free_port()
    kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    kept.bind((LOOPBACK, 0))
    _kept.append(kept)
    port: int = kept.getsockname()[1]
    return port


def _service(request: LaunchRequest, place: str) -> Command:
    # As JAX does: a coordinator that others shall reach listens at all addresses.
    address = place if _is_local(place) else f"[::]:{place.rpartition(':')[2]}"
    shutdown = SHUTDOWN_SECONDS if request.nodes > 1 else 0
    numbers = (request.total, _heartbeat(request.nodes), shutdown)
    return Command(
        (sys.executable, "-m", "mithril_jax.coordination", address, *map(str, numbers)),
        {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")},
        service="coordination service",
    )


def _heartbeat(nodes: int) -> int:
    return HEARTBEAT_SECONDS if nodes > 1 else ONE_DAY


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
    missing = [name for name in (PROCESSES, PROCESS, NODES) if name not in os.environ]
    if missing:
        raise BackendError(
            f"environment variable {COORDINATOR} is set, and {listing(missing)} not; start the job "
            f"by mithril launch, or unset it"
        )
    nodes = int(os.environ[NODES])
    if nodes == 1:
        # JAX's service of preemptions, which nothing here asks, would take SIGTERM and go on.
        jax.config.update("jax_enable_preemption_service", False)
    try:
        with _service_elsewhere():
            jax.distributed.initialize(
                place,
                num_processes=int(os.environ[PROCESSES]),
                process_id=int(os.environ[PROCESS]),
                heartbeat_timeout_seconds=_heartbeat(nodes),
            )
    except RuntimeError as error:
        raise BackendError(
            f"process {os.environ[PROCESS]} of {os.environ[PROCESSES]} cannot join the job at "
            f"{place}; {error}; open the backend before anything else uses JAX"
        ) from error
    atexit.register(_leave, nodes)
    if _is_local(place):
        _keep_to_loopback()


@contextmanager
def _service_elsewhere() -> Iterator[None]:
    """Keep JAX from starting the coordination service in process 0, for which it has no setting."""
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    class Elsewhere:
        def shutdown(self) -> None:
            """Do nothing: `mithril launch` ends the service."""

    before = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = lambda *_, **__: Elsewhere()
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = before


def _leave(nodes: int) -> None:
    """Let whoever has failed first end first, and after an error wait for nobody.

    It runs before JAX's own clean-up, which waits for processes of other machines.
    """
    error = getattr(sys, "last_value", None)
    if error is None:
        return
    if _SECONDARY.search("".join(traceback.format_exception(error))):
        time.sleep(SECONDARY_SECONDS)
    if nodes > 1:
        from jax._src import distributed

        state = distributed.global_state
        if state.preemption_sync_manager is not None:
            state.preemption_sync_manager.shutdown()
        state.preemption_sync_manager = state.client = None


def _is_local(place: str) -> bool:
    return _is_loopback(place.rpartition(":")[0].strip("[]"))


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
