"""Which functions of a namespace the shared kernels call, read from their code.

A library that lacks some has no kernels that call them: its plans are refused when they are made,
or run by smaller ops, and nothing fails while it runs.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

NAMESPACE = "xp"
"""The parameter that holds the namespace, in all shared kernels and what they call."""


@cache
def functions_in(factory: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the functions that a shared kernel takes from its namespace.

    Args:
        factory: of the kernel; the arguments of a partial one are names of functions.

    >>> from mithril.engine.standard.table import SHARED_KERNELS
    >>> sorted(functions_in(SHARED_KERNELS["rsqrt"]))
    ['asarray', 'divide', 'sqrt']
    """
    if isinstance(factory, partial):
        return frozenset(map(str, factory.args)) | functions_in(factory.func)
    found: set[str] = set()
    waiting: list[object] = [factory]
    seen: set[int] = set()
    while waiting:
        x = waiting.pop()
        if id(x) in seen or not isinstance(x, FunctionType | type):
            continue
        seen.add(id(x))
        if isinstance(x, type):
            waiting += vars(x).values() if x.__module__.startswith(__package__) else ()
        elif x.__module__.startswith("mithril."):
            found |= _names_after(x.__code__)
            waiting += [cell.cell_contents for cell in x.__closure__ or ()]
            waiting += [x.__globals__.get(name) for name in _global_names(x.__code__)]
    return frozenset(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of those that stand in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names_after(code: CodeType) -> set[str]:
    """Return the attributes that are read of the namespace."""
    found = set()
    for part in _codes(code):
        is_namespace = False
        for step in dis.get_instructions(part):
            if is_namespace and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                found.add(str(step.argval))
            last = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            is_namespace = step.opname.startswith("LOAD_") and last == NAMESPACE
    return found


def _global_names(code: CodeType) -> set[str]:
    return {name for part in _codes(code) for name in part.co_names}
