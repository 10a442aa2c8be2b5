"""`tools/check_docstrings.py`: what stands under `Args:` is what is taken."""

from __future__ import annotations

import ast

import pytest

from tests.tools import load_tool

TOOL = load_tool("check_docstrings")
TEXT = '    """Do.\n\n    Args:\n        x, y: numbers,\n            such: as 1.\n{more}    """\n'
BASE = "class A:\n    y: int\n\n"


@pytest.mark.parametrize(
    ("head", "more", "strangers"),
    [
        ("def f(x, y):\n", "", []),
        ("def f(x):\n", "", ["y"]),
        ("async def f(x, *, z):\n", "        z: more.\n", ["y"]),
        ("def f(x, y):\n", "        *z: more.\n\n    Returns:\n        a: b.\n", ["z"]),
        ("def f(x, *y, **options):\n", "        anything: is taken.\n", []),
        ("class B:\n", "", ["x", "y"]),
        (f"{BASE}class B(A):\n", "", ["x"]),
        (f"{BASE}class B(A):\n", '    """\n\n    x: int\n    """', []),
    ],
)
def test_arguments_that_are_not_taken_are_found(head: str, more: str, strangers: list[str]) -> None:
    tree = ast.parse(head + TEXT.replace("{more}", more))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = [text for _, text in TOOL.find_strangers(tree, classes)]
    assert [text.split("'")[3] for text in found] == strangers


def test_a_finding_says_what_is_taken() -> None:
    tree = ast.parse("def f(x):\n" + TEXT.replace("{more}", ""))
    expected = "'f' documents 'y' under Args:, which it does not take; it takes: 'x'"
    assert list(TOOL.find_strangers(tree)) == [(1, expected)]
