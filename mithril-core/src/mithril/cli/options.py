"""`--option key=value`: a backend's own options on the command line."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mithril.errors import OptionError, listing

if TYPE_CHECKING:
    from mithril.plugins.spec import BackendSpec

Given = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="An option of the backend; may be repeated."
    ),
]
_WORDS = {"true": True, "false": False, "none": None}


def read_options(given: Sequence[str] | None, spec: BackendSpec | None) -> dict[str, Any]:
    """Return the options that `--option` gives, as values of Python.

    Numbers, true, false, none, and what is written as Python does are read as such; all else, and
    what the backend declares as a `str`, is text.

    Args:
        given: texts `KEY=VALUE`.
        spec: what the backend says of itself, if it is known.

    Raises:
        OptionError: a text is not `KEY=VALUE`, or gives a key again.

    >>> read_options(["chips=4", "jit=true", "executor=lockstep"], None)
    {'chips': 4, 'jit': True, 'executor': 'lockstep'}
    """
    declared = fields(spec.options) if spec is not None and spec.options else ()
    texts = {field.name for field in declared if field.type in (str, "str")}
    found: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise OptionError(f"--option '{text}' is not KEY=VALUE; write it like chips=4")
        if key in found:
            raise OptionError(f"--option gives '{key}' twice; give it once")
        found[key] = value if key in texts else _read(value)
    return found


def find_spec(backend: str) -> BackendSpec | None:
    """Return what a backend says of itself, None of one that is not there or cannot be loaded."""
    from mithril.plugins.discover import find

    entry = find(backend)
    return None if entry is None else entry.spec


def check_own(spec: BackendSpec, options: dict[str, object], command: str) -> None:
    """Raise unless all options are the backend's own.

    Args:
        spec: what the backend says of itself.
        options: by name.
        command: that was given them, for the message.

    Raises:
        OptionError: one is not.
    """
    own = [field.name for field in fields(spec.options)] if spec.options else []
    for name in options:
        if name not in own:
            raise OptionError(
                f"--option '{name}' of {command} is no option of backend '{spec.name}' itself; "
                f"it has {listing(own)}; give others to open_backend in the script"
            )


def _read(value: str) -> object:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    try:
        read: object = literal_eval(value)
    except (ValueError, SyntaxError, TypeError):
        return value
    return read
