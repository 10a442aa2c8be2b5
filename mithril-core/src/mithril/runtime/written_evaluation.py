"""Evaluations written as Python: what a loop evaluates again has next to nothing around it.

Which names are given, what kind of array each is and which result is which is known from the call
before. The function that is written here looks at each array by its own name, without a loop, and
runs the plan; a tiny layer feels every step of an iterator. Whatever is otherwise in a call, it
leaves to the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mithril.engine import Observer
from mithril.runtime.array import Array, Kind
from mithril.runtime.call import Bound
from mithril.runtime.parameters import Parameters

Given = Mapping[str, object]
Evaluated = tuple[dict[str, Array], Parameters]
Take = Callable[[int, object], object]


@dataclass(frozen=True, slots=True)
class Names:
    """What an evaluation is given and returns.

    Args:
        inputs: names of the inputs.
        parameters: names of the parameters.
        seeded: names of the outputs whose gradients are given; None if none are asked for.
        outputs: names of the outputs.
        differentiated: of what the gradients are returned.
    """

    inputs: Sequence[str]
    parameters: Sequence[str]
    seeded: Sequence[str] | None
    outputs: Sequence[str]
    differentiated: Sequence[str]

    @property
    def arguments(self) -> list[tuple[str, str]]:
        """The mapping and the name of each argument, in order."""
        mappings = (
            ("inputs", self.inputs), ("params", self.parameters), ("gradients", self.seeded or ()),
        )  # fmt: skip
        return [(mapping, name) for mapping, names in mappings for name in names]


class WrittenEvaluation:
    """What evaluates arrays of the kinds of a call, if it is given such.

    Args:
        names: of what is given and returned.
        bound: what runs; it gives nothing up, and has run before.
        kinds: of the arrays of the call.
        take: returns an input or output gradient that is no array as the plan takes it, given its
            position; None where that is not done.

    Attributes:
        source: of the function.
        evaluate: returns outputs and gradients; None for arrays of other kinds, for other names,
            and while what runs is measured.
    """

    def __init__(
        self, names: Names, bound: Bound[Any], kinds: Sequence[Kind], take: Take | None
    ) -> None:
        self.names, self.bound = names, bound
        self.source = "".join(f"{line}\n" for line in _write(names, bound, take is not None))
        self._meaning: dict[str, Any] = {
            "Array": Array,
            "Parameters": Parameters,
            "new": object.__new__,
            "family": bound.interface.owner.family,
            "execute": bound.parts.execute,
            "take": take,
        }
        self._meaning |= {f"result_{i}": kind for i, kind in enumerate(bound.parts.kinds)}
        self.adopt(kinds)
        exec(compile(self.source, "<written evaluation>", "exec"), self._meaning)
        self.evaluate: Callable[[Given, Given, Given | None, Observer | None], Evaluated | None] = (
            self._meaning["evaluate"]
        )

    def adopt(self, kinds: Sequence[Kind]) -> None:
        """Know arrays by these kinds from now on, which equal the ones known before."""
        self._meaning.update({f"kind_{i}": kind for i, kind in enumerate(kinds)})


def _write(names: Names, bound: Bound[Any], takes: bool) -> Iterator[str]:
    """Yield the lines of the function."""
    arguments = names.arguments
    yield "def evaluate(params, inputs, gradients, observe):"
    yield "    try:"
    for mapping, expected in (("inputs", names.inputs), ("params", names.parameters)):
        yield f"        if len({mapping}) != {len(expected)}: return None"
    is_forward = names.seeded is None
    other = (
        "gradients is not None" if is_forward else f"len(gradients) != {len(names.seeded or ())}"
    )
    yield f"        if {other} or family.open_profile is not None: return None"
    for i, (mapping, name) in enumerate(arguments):
        yield f"        x{i} = {mapping}[{name!r}]"
    others = [i for i, (mapping, _) in enumerate(arguments) if mapping != "params"]
    # Parameters come from the step before, and first: what is taken is taken just once.
    for i in range(len(arguments)):
        if i not in others:
            yield f"        if x{i}.kind is not kind_{i}: return None"
    for i in others:  # made anew for each batch
        if takes:
            yield f"        if x{i}.__class__ is not Array: x{i} = take({i}, x{i})"
        yield f"        if x{i}.kind is not kind_{i} and x{i}.kind != kind_{i}: return None"
    yield "    except (AttributeError, KeyError, TypeError):"
    yield "        return None"
    given = ", ".join(f"x{i}.shards" for i in bound.order)
    made = [f"made_{i}" for i in range(len(bound.plan.outputs))]
    yield f"    [{', '.join(made)}] = execute([{given}], observe)"
    for i, place in enumerate(bound.results):
        yield f"    {name_result(i, f'made_{place}')}"
    count = len(names.outputs)
    outputs = ", ".join(f"{name!r}: y{i}" for i, name in enumerate(names.outputs))
    yield "    slopes = Parameters()"
    for i, name in enumerate(() if is_forward else names.differentiated, count):
        yield f"    slopes[{name!r}] = y{i}"
    yield f"    return {{{outputs}}}, slopes"


def name_result(i: int, handle: str) -> str:
    """Return the statements that make an array of a result.

    Args:
        i: its number.
        handle: the expression for what the engine returns.
    """
    return f"y{i} = new(Array); y{i}.kind = result_{i}; y{i}.shards = {handle}"


__all__ = ["Names", "WrittenEvaluation", "name_result"]
