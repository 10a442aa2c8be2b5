"""Runs the documentation: Python blocks of Markdown files, what they print, and docstring examples.

In a Markdown file a `text` block holds exactly what the Python block before it prints. The examples
of a module's docstrings see its own names, and `backend`, a NumPy backend of one device.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from functools import cache

import pytest
from sybil import Document, Example, Sybil
from sybil.document import PythonDocStringDocument
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import CodeBlockParser
from sybil.parsers.rest import DocTestParser


def run_python(example: Example) -> None:
    """Run a block at its own line numbers and remember what it prints."""
    shown = io.StringIO()
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, example.path, "exec", dont_inherit=True)
    with redirect_stdout(shown):
        exec(code, example.namespace)
    example.namespace["printed"] = shown.getvalue()


def compare_text(example: Example) -> None:
    """Compare a block with what the Python block before it printed."""
    assert example.namespace.pop("printed").rstrip("\n") == str(example.parsed).rstrip("\n")


class PythonDocument(PythonDocStringDocument):
    """A module whose docstring examples see its own names, and a backend."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self.namespace.update(_names_of(path))
        self.namespace.setdefault("backend", _open_backend())


def _names_of(path: str) -> dict[str, object]:
    from importlib import import_module

    module = path.split("/src/", 1)[1].removesuffix(".py").removesuffix("/__init__")
    return dict(vars(import_module(module.replace("/", "."))))


@cache
def _open_backend() -> object:
    from mithril.backends import NumpyBackend

    return NumpyBackend()


MARKDOWN = Sybil(
    parsers=[
        CodeBlockParser(language="python", evaluator=run_python),
        CodeBlockParser(language="text", evaluator=compare_text),
    ],
    patterns=["*.md"],
    document_types={".md": Document},
)
DOCSTRINGS = Sybil(
    parsers=[DocTestParser()],
    # One pattern per depth: before Python 3.13 `**` in a pattern stands for a single folder.
    patterns=[f"mithril-*/src/*/{'*/' * depth}*.py" for depth in range(4)],
    document_types={".py": PythonDocument},
)

pytest_collect_file = (MARKDOWN + DOCSTRINGS).pytest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put documents first.

    The examples of one need each other, and processes that share the tests take them from the ends
    of each other's lists: so most documents run in one process.
    """
    items.sort(key=lambda item: not isinstance(item, SybilItem))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Run the examples before this one in its document, if the last that ran here is another.

    Processes that share the tests, or a command line that names one example, divide a document
    anywhere.
    """
    if not isinstance(item, SybilItem):
        return
    document, start = item.example.document, item.example.start
    initial = _INITIAL.setdefault(document, dict(document.namespace))
    before = [example for example in document.examples() if example.start < start]
    if before and _LAST.get(document) != before[-1].start:
        document.namespace.clear()
        document.namespace.update(initial)
        for example in before:
            example.evaluate()
    _LAST[document] = start


_INITIAL: dict[Document, dict[str, object]] = {}
"""The names that the examples of each document start with."""
_LAST: dict[Document, int] = {}
"""Where the example stands that this process has run last of each document."""
