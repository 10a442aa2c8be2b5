"""Messages between controller and workers: a JSON header and raw bytes, with their lengths.

Nothing is pickled: what a message can say is what JSON can say, and bytes stay bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHUNK = 1 << 16
SMALL = 64
"""Results of up to so many bytes come with the answer."""
_LENGTHS = struct.Struct("<II")
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Message:
    """What one side tells the other."""

    header: dict[str, Any]
    payload: bytes = b""


def encode(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Return the bytes of a message.

    >>> inbox = Inbox()
    >>> inbox.add(encode({"do": "run"}, b"12"))
    >>> inbox.take()
    Message(header={'do': 'run'}, payload=b'12')
    """
    text = _ENCODER.encode(header).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


class Inbox:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Take bytes as they came."""
        self._data += data

    def take(self) -> Message | None:
        """Return the next message that is complete, or None."""
        if len(self._data) < _LENGTHS.size:
            return None
        text, payload = _LENGTHS.unpack_from(self._data)
        start = _LENGTHS.size + text
        if len(self._data) < start + payload:
            return None
        header = _DECODER.decode(self._data[_LENGTHS.size : start].decode())
        message = Message(header, bytes(self._data[start : start + payload]))
        del self._data[: start + payload]
        return message
