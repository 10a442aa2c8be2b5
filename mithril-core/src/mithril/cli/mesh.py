"""Meshes as they are written on the command line."""

from __future__ import annotations

from mithril.errors import OptionError


def read_mesh(text: str) -> dict[str, int]:
    """Return axis sizes written as `data=2,tensor=2`.

    Raises:
        OptionError: it is empty, not written so, or names an axis twice.
    """
    if not text.strip():
        raise OptionError("--mesh is empty; write --mesh data=2,tensor=2, or data=1 for one device")
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.partition("=")
        if not name or not size.isdecimal() or not int(size):
            raise OptionError(
                f"--mesh part '{part}' is not an axis and its size; write --mesh data=2,tensor=2"
            )
        if name in found:
            raise OptionError(f"--mesh names axis '{name}' twice; give it one size")
        found[name] = int(size)
    return found
