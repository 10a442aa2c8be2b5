"""A worker process: takes arrays and programs, runs the programs, answers, one message at a time.

It ends with its controller, however that one ends. Started as `python -m
mithril_torch.executors.pool.worker SOCKET CONTROLLER`: a descriptor, and the process at its other
end.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from mithril_torch.executors.host_memory import keep_freed_memory
from mithril_torch.executors.pool import memory
from mithril_torch.executors.pool.messages import CHUNK, Inbox, Message, encode

if TYPE_CHECKING:
    from mithril_torch.executors.pool.message_handler import MessageHandler

PR_SET_PDEATHSIG = 1


def main(descriptor: int, controller: int) -> None:
    """Serve the controller until it closes the socket."""
    die_with(controller)
    # Ctrl-C reaches all processes of a terminal; what it means is for the controller to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    inbox = Inbox()
    setup = receive(channel, inbox)
    if setup is None:
        return
    watch(channel, setup.header["folder"])
    progress = memory.Progress(setup.header["progress"], setup.header["size"])
    rank = setup.header["rank"]
    progress.enter(rank, memory.STARTING)
    handler = start(channel, setup.header, progress)
    while handler is not None:
        progress.enter(rank, memory.IDLE)
        message = receive(channel, inbox)
        if message is None:
            return
        answer = handler.handle(message)
        progress.enter(rank, memory.ANSWERING)
        channel.sendall(answer)


def start(
    channel: socket.socket, setup: dict[str, Any], progress: memory.Progress
) -> MessageHandler | None:
    """Import PyTorch and join the others; tell the controller that it is done, or why not."""
    try:
        from mithril_torch.executors.pool.message_handler import MessageHandler

        if setup["device"] == "cpu":
            keep_freed_memory()
        handler = MessageHandler(setup, progress)
    except Exception as error:
        channel.sendall(encode({"error": {"text": f"{type(error).__name__}: {error}"}}))
        return None
    channel.sendall(encode({}))
    return handler


def receive(channel: socket.socket, inbox: Inbox) -> Message | None:
    """Return the next message, or None when the controller is gone."""
    while True:
        message = inbox.take()
        if message is not None:
            return message
        data = channel.recv(CHUNK)
        if not data:
            return None
        inbox.add(data)


def die_with(controller: int) -> None:
    """Let the kernel kill this process when its controller dies, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != controller:  # it died before
        os._exit(1)


def watch(channel: socket.socket, folder: str | None) -> None:
    """End this process when the other end of the socket closes, even in the middle of a program."""

    def end() -> None:
        poll = select.poll()
        poll.register(channel, 0)  # nothing but the hang-up
        poll.poll()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
