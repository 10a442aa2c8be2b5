"""How the functions are called that open installed backends: `NpuBackend` opens `npu`."""

from __future__ import annotations

import re

from mithril.errors import listing, nearest
from mithril.plugins.discover import names

SUFFIX = "Backend"
OWN = {"MLXBackend": "mlx"}
"""Names that do not follow from the backend's."""


def name_opener(backend: str) -> str:
    """Return the name of the function that opens a backend.

    >>> name_opener("npu"), name_opener("tpu-sim"), name_opener("mlx")
    ('NpuBackend', 'TpuSimBackend', 'MLXBackend')
    """
    own = (name for name, of in OWN.items() if of == backend)
    words = (word[:1].upper() + word[1:] for word in re.split(r"\W|_", backend) if word)
    return next(own, "".join(words) + SUFFIX)


def list_openers() -> list[str]:
    """Return the names of the functions that open installed backends; nothing is loaded."""
    return sorted({name_opener(name) for name in names()})


def find_backend(opener: str) -> str:
    """Return the backend that a function of a name opens; nothing is loaded.

    Raises:
        AttributeError: it opens none, or several.
    """
    found = [name for name in names() if name_opener(name) == opener]
    if len(set(found)) == 1:
        return found[0]
    if found:
        raise AttributeError(
            f"'{opener}' may open {listing(found)}; open one by its name, such as "
            f"ml.open_backend('{found[0]}')"
        )
    known = list_openers()
    raise AttributeError(
        f"mithril has no '{opener}': no installed backend is called so{nearest(opener, known)}; "
        f"installed: {listing(known)}"
    )
