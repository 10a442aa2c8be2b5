"""Calls of functions that are written as Python, as evaluations of models are.

The trees that a function takes and returns, and the kinds of its arrays, are known from the call
before. What is written here takes such trees apart, and puts results together, leaf by leaf and
without a loop; a call with anything else goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from mithril.runtime.array import Array, Kind
from mithril.runtime.call import Bound
from mithril.runtime.functional.arguments import Form
from mithril.runtime.functional.binding import TracedFunction
from mithril.runtime.interrupts import hold_interrupts
from mithril.trees import LEAF, Branch, Leaf, Structure


@dataclass(frozen=True, slots=True, eq=False)
class WrittenFunction:
    """What runs a function on arguments like those of a call.

    Args:
        source: of both functions.
        collect: returns the arrays of arguments; None where those are others.
        finish: returns what the function returns, of what the engine returns.
    """

    source: str
    collect: Callable[[tuple[Any, ...]], list[Array] | None]
    finish: Callable[[Sequence[Any]], Any]

    def run(self, bound: Bound[TracedFunction], arrays: list[Array]) -> Any:
        """Return what the function returns for arrays that were collected.

        Args:
            bound: what runs.
            arrays: of the arguments.
        """
        captured = bound.interface.source.captured
        # Another plan may have moved what is unplaced of them, and one may be an argument, too.
        if captured.arrays:
            arrays = bound.settle([*arrays, *captured.held])
        return hold_interrupts(bool(bound.interface.donated), self._run, bound, arrays)

    def _run(self, bound: Bound[TracedFunction], arrays: list[Array]) -> Any:
        return self.finish(bound.run_handles(arrays))


def write_function(
    bound: Bound[TracedFunction], form: Form, kinds: Sequence[Kind]
) -> WrittenFunction:
    """Return what runs a function on arguments of a form.

    It does not hold the plan, which holds it.

    Args:
        bound: what runs; it has run before.
        form: of the call; nothing but arrays by position, see `can_write`.
        kinds: of its arrays.
    """
    writer = _Writer()
    lines = [*writer.take_apart([structure for _, structure in form.positional], len(kinds))]
    lines += writer.put_together(bound.interface.source.structure, bound.results)
    source = "".join(f"{line}\n" for line in lines)
    meaning = {**writer.constants, "Array": Array, "new": object.__new__, "repeat": repeat}
    meaning["kinds"] = list(kinds)
    meaning |= {f"result_{i}": kind for i, kind in enumerate(bound.parts.kinds)}
    exec(compile(source, "<written function>", "exec"), meaning)
    return WrittenFunction(source, meaning.pop("collect"), meaning.pop("finish"))


def can_write(form: Form) -> bool:
    """Return whether calls of a form are recognised by a look at their trees."""
    return not form.keyword and all(_is_plain(structure) for _, structure in form.positional)


def _is_plain(structure: Structure) -> bool:
    if isinstance(structure, Branch):
        return all(map(_is_plain, structure.children))
    return structure is None or structure == LEAF


class _Writer:
    """Writes both functions, and collects what their names mean.

    Attributes:
        constants: keys and classes of containers, and values that are parts of results.
    """

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}
        self._count = 0

    def take_apart(self, structures: Sequence[Structure], count: int) -> Iterator[str]:
        """Yield the lines of `collect`.

        Args:
            structures: of the arguments.
            count: of their leaves.
        """
        leaves = iter(range(count))
        yield "def collect(args):"
        yield f"    if len(args) != {len(structures)}: return None"
        names = [f"a{i}" for i in range(len(structures))]
        yield f"    [{', '.join(names)}] = args"
        for name, structure in zip(names, structures, strict=True):
            yield from self._open(name, structure, leaves)
        arrays = [f"x{i}" for i in range(count)]
        if arrays:  # lists are compared at once, and what is the same object is not looked into
            yield "    try:"
            yield f"        if [{', '.join(f'{x}.kind' for x in arrays)}] != kinds: return None"
            yield "    except AttributeError:"
            yield "        return None"
        yield f"    return [{', '.join(arrays)}]"

    def _open(self, name: str, structure: Structure, leaves: Iterator[int]) -> Iterator[str]:
        """Yield the lines that take a tree apart."""
        if structure is None:
            yield f"    if {name} is not None: return None"
            return
        if isinstance(structure, Leaf):
            yield f"    x{next(leaves)} = {name}"
            return
        yield f"    if type({name}) is not {self._name(structure.kind)}: return None"
        is_dict = issubclass(structure.kind, dict)
        if is_dict:
            yield f"    if tuple({name}) != {self._name(structure.keys)}: return None"
        else:
            yield f"    if len({name}) != {len(structure.keys)}: return None"
        inside: list[tuple[str, Structure]] = []
        for child in structure.children:
            is_leaf = isinstance(child, Leaf)
            self._count += not is_leaf
            inside.append((f"x{next(leaves)}" if is_leaf else f"t{self._count}", child))
        names = ", ".join(own for own, _ in inside)
        yield f"    [{names}] = {name}{'.values()' if is_dict else ''}"
        for own, child in inside:
            if not isinstance(child, Leaf):
                yield from self._open(own, child, leaves)

    def put_together(self, structure: Structure, places: Sequence[int]) -> Iterator[str]:
        """Yield the lines of `finish`.

        Args:
            structure: of what the function returns.
            places: of its leaves among the outputs of the plan.
        """
        yield "def finish(made):"
        if places:
            named = ", ".join(f"y{i}" for i in range(len(places)))
            yield f"    [{named}] = map(new, repeat(Array, {len(places)}))"
        for i, place in enumerate(places):
            yield f"    y{i}.kind = result_{i}; y{i}.shards = made[{place}]"
        yield f"    return {self._close(structure, iter(range(len(places))))}"

    def _close(self, structure: Structure, leaves: Iterator[int]) -> str:
        """Return the expression for a tree."""
        if structure is None:
            return "None"
        if isinstance(structure, Leaf):
            return self._name(structure.fixed[1]) if structure.fixed else f"y{next(leaves)}"
        kind = self._name(structure.kind)
        inside = [self._close(child, leaves) for child in structure.children]
        if issubclass(structure.kind, dict):
            pairs = zip(structure.keys, inside, strict=True)
            literal = ", ".join(f"{self._name(key)}: {value}" for key, value in pairs)
            return f"{{{literal}}}" if structure.kind is dict else f"{kind}({{{literal}}})"
        if hasattr(structure.kind, "_fields"):
            return f"{kind}({', '.join(inside)})"
        return f"{kind}([{', '.join(inside)}])"

    def _name(self, constant: Any) -> str:
        """Return what a constant is called; text stands for itself."""
        if type(constant) is str:
            return repr(constant)
        name = f"c{len(self.constants)}"
        self.constants[name] = constant
        return name


__all__ = ["WrittenFunction", "can_write", "write_function"]
