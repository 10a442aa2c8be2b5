"""Syntax trees of the sources, for tests that read them: each is made, and gone through, once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest


@cache
def list_nodes(text: str) -> tuple[ast.AST, ...]:
    """Return every node of a module, the module itself first."""
    return tuple(ast.walk(ast.parse(text)))


def list_nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the module in a file."""
    return list_nodes(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def forget_nodes() -> Iterator[None]:
    """Let go of all trees after the tests of a module: they are hundreds of megabytes."""
    yield
    list_nodes.cache_clear()
