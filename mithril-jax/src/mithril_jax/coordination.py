"""JAX's coordination service as a process of its own: what the processes of a job meet at.

`python -m mithril_jax.coordination ADDRESS PROCESSES HEARTBEAT SHUTDOWN` serves until it is killed.
JAX would run it inside process 0. No other process outlives the service, so process 0 would have to
wait at its end for all others, whatever it ends of, and nobody would see that it has failed.
"""

from __future__ import annotations

import signal
import sys


def main(address: str, processes: str, heartbeat: str, shutdown: str) -> None:
    """Serve the processes of a job.

    Args:
        address: where it listens, `HOST:PORT`.
        processes: how many there are.
        heartbeat: seconds without a sign of life after which a process counts as dead.
        shutdown: seconds that a process waits at its end for the others; 0 for not at all.
    """
    from jaxlib import _jax

    service = _jax.get_distributed_runtime_service(
        address, int(processes), heartbeat_timeout=int(heartbeat), shutdown_timeout=int(shutdown)
    )
    while service is not None:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
