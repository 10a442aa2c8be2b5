"""Event files: the scalars that TensorBoard shows.

TensorBoard reads scalars from records of protocol buffers with a checksum. They are few and simple,
so they are written here: no package of TensorFlow's is needed. The format is that of TFRecord, the
messages `Event` and `Summary` of TensorFlow, the checksum CRC-32C (RFC 3720, appendix B.4).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

VERSION = "brain.Event:2"


def encode_event(
    wall: float,
    step: int = 0,
    scalars: Mapping[str, float] | None = None,
    version: str = "",
    *,
    is_start: bool = False,
) -> bytes:
    """Return an `Event`: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.

    Args:
        wall: seconds since 1970.
        step: which step the scalars are of.
        scalars: figures by tag.
        version: of the format; the first event of a file has nothing else.
        is_start: whether a session starts; viewers drop what other files have from this step on.
    """
    data = b"\x09" + struct.pack("<d", wall)
    if step:
        data += b"\x10" + _encode_varint(step)
    if version:
        data += _encode_bytes(3, version.encode())
    if scalars:
        values = (
            _encode_bytes(1, _encode_bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in scalars.items()
        )
        data += _encode_bytes(5, b"".join(values))
    return data + (_encode_bytes(7, b"\x08\x01") if is_start else b"")


def _encode_bytes(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def encode_record(data: bytes) -> bytes:
    """Return a record: its length and its bytes, each with a checksum."""
    length = struct.pack("<Q", len(data))
    return length + _mask(length) + data + _mask(data)


def _mask(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _make_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """Return the checksum CRC-32C.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


__all__ = ["VERSION", "crc32c", "encode_event", "encode_record"]
