"""What a backend is known not to get right, as authors write it into a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from mithril.errors import OptionError

TABLE = "known_gaps"


def read_gaps(path: Path) -> Mapping[str, str]:
    """Return the reasons in the table `known_gaps` of a TOML file.

    Raises:
        OptionError: it cannot be read, or has no such table of texts.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"--known-gaps {path} cannot be read; {error}") from None
    if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
        raise OptionError(
            f"--known-gaps {path} has no table [known_gaps] of reasons; write "
            f'"ops/svd" = "no kernel" in it'
        )
    return table
