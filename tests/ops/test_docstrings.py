"""Every public function says what it takes, returns and raises, and shows it in an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
from mithril import errors, ops
from mithril.runtime.functions import EAGER

APPLIED = {
    name: function
    for name, function in vars(ops).items()
    if inspect.isfunction(function) and not name.startswith("_")
}
MADE = {
    name: function
    for name, function in vars(mnp).items()
    if inspect.isfunction(function) and name in mnp.__all__
}
PUBLIC = {**APPLIED, **MADE}
"""Functions of `mithril.ops`, and those of `mithril.numpy` that make arrays."""


def sections(text: str) -> dict[str, str]:
    """Return the text of each section by its name; what stands before them has the name ''."""
    parts = re.split(r"^(Args|Returns|Raises):\n", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def entries(section: str) -> list[str]:
    """Return the names that a section explains."""
    return re.findall(r"^    (\w+): \S", section, flags=re.MULTILINE)


def problems(function: Callable[..., Any]) -> list[str]:
    """Return what is missing or wrong in the docstring of a function."""
    text = inspect.getdoc(function) or ""
    found, parts = [], sections(text)
    if not re.fullmatch(r"[A-Z][^\n]*[.:]", text.partition("\n\n")[0]):
        found.append("does not open with one sentence on one line")
    wanted = list(inspect.signature(function).parameters)
    if entries(parts.get("Args", "")) != wanted:
        found.append(f"explains {entries(parts.get('Args', ''))}, takes {wanted}")
    if not parts.get("Returns", "").strip():
        found.append("does not say what it returns")
    if "Raises" in parts and not entries(parts["Raises"]):
        found.append("raises nothing")
    found += [
        f"raises {name}, which is no error of Mithril"
        for name in entries(parts.get("Raises", ""))
        if not hasattr(errors, name)
    ]
    if not re.search(rf"^>>> .*\b{function.__name__}\(", text, flags=re.MULTILINE):
        found.append("has no example")
    return found


def test_a_public_function_says_what_it_does() -> None:
    found = {name: problems(function) for name, function in PUBLIC.items()}
    assert len(found) > 100
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_functions_of_the_namespace_and_of_backends_have_these_texts() -> None:
    backend, texts = ml.NumpyBackend(), {function.__doc__ for function in PUBLIC.values()}
    named = [name for name in mnp.__all__ if inspect.isfunction(getattr(mnp, name))]
    assert set(named) == {*EAGER, *MADE}
    assert [name for name in named if getattr(mnp, name).__doc__ not in texts] == []
    assert [name for name in EAGER if getattr(backend, name).__doc__ not in texts] == []


def test_a_text_that_says_too_little_is_found() -> None:
    def nothing(x: int) -> int:
        return x

    def little(x: int, y: int) -> int:
        """Return x.

        Args:
            x: a number.

        Raises:
            NumberError: there is none.

        >>> abs(1)
        1
        """
        return x + y

    assert len(problems(nothing)) == 4
    assert problems(little) == [
        "explains ['x'], takes ['x', 'y']",
        "does not say what it returns",
        "raises NumberError, which is no error of Mithril",
        "has no example",
    ]
