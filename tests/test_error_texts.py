"""Every error text has a test: a stretch that only it has stands in a string of some test file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.syntax import forget_nodes, list_nodes_of

__all__ = ["forget_nodes"]

TESTS = Path(__file__).parent
SOURCES = sorted(TESTS.parent.glob("mithril-*/src/mithril*"))

ENOUGH = 10
"""Characters in a row, of one error text only, that a test must have."""
STAND_IN = "\N{REPLACEMENT CHARACTER}"


def literals(node: ast.expr) -> str:
    """Return the text of a string expression; what is computed is a stand-in."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(literals, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return literals(left) + literals(right)
        case _:
            return STAND_IN


def sites() -> Iterator[tuple[str, str]]:
    """Yield where an error is raised, and the pieces of its text joined by stand-ins."""
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            for node in list_nodes_of(path):
                match node:
                    case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[text, *_])):
                        if name.endswith("Error") and stretches(literals(text)):
                            where = path.relative_to(folder.parent)
                            yield f"{where}:{node.lineno}", literals(text)


@cache
def texts_of_tests() -> str:
    """Return every string of every file of tests but this one, patterns without their backslashes."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__):
            nodes = list_nodes_of(path)
            documents = {node.value for node in nodes if isinstance(node, ast.Expr)}
            found += [
                literals(node)
                for node in nodes
                if isinstance(node, ast.JoinedStr | ast.Constant) and node not in documents
            ]
    said = "\n".join(found)
    return said + re.sub(r"\\(.)", r"\1", said)


def stretches(text: str) -> set[str]:
    """Return the stretches of a text by which a test can tell it."""
    pieces = text.split(STAND_IN)
    return {p[at : at + ENOUGH] for p in pieces for at in range(len(p) - ENOUGH + 1)}


def untested(texts: dict[str, str]) -> dict[str, str]:
    """Return the texts of which no test has a stretch that no other text has, if there is one."""
    shared = Counter(stretch for text in texts.values() for stretch in stretches(text))
    tested = texts_of_tests()

    def is_tested(text: str) -> bool:
        found = stretches(text)
        own = {stretch for stretch in found if shared[stretch] == 1} or found
        return any(stretch in tested for stretch in own)

    return {where: text for where, text in texts.items() if not is_tested(text)}


def test_every_error_text_is_tested() -> None:
    texts = dict(sites())
    assert len(texts) > 50
    assert any("has no truth value" in text for text in texts.values())
    lacking = [f"{at}: {text.replace(STAND_IN, '…')}" for at, text in untested(texts).items()]
    assert not lacking, "no test has these texts:\n" + "\n".join(lacking)


def test_a_text_without_a_test_is_found() -> None:
    texts = {"here": f"zebras quack at {STAND_IN} vrmpf knurz"}
    assert untested(texts) == texts
