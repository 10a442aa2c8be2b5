"""What of the network is this machine alone: the loopback device, and its addresses.

The source of these goes into ejected files, too, so only the standard library is imported here.
"""

from __future__ import annotations

import ipaddress
import sys

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine under a name that no other machine knows it by.

    >>> is_loopback("[::1]"), is_loopback("localhost.cluster.example")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


__all__ = ["LOOPBACK", "is_loopback"]
