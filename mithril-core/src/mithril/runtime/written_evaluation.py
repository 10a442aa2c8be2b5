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

from mithril.runtime.array import Array, Kind
from mithril.runtime.call import Bound
from mithril.runtime.observing import Run
from mithril.runtime.parameters import Parameters

Given = Mapping[str, object]
Evaluated = dict[str, Array] | tuple[dict[str, Array], Parameters]
"""What `CompiledModel.evaluate` returns."""


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


@dataclass(frozen=True, slots=True, eq=False)
class WrittenEvaluation:
    """A function that evaluates arrays of the kinds of a call, if it is given such.

    Args:
        source: of the function.
        evaluate: takes the evaluator, parameters, inputs and output gradients, and returns what
            `CompiledModel.evaluate` does; None for arrays of other kinds, for other names, and
            while what runs is measured.
    """

    source: str
    evaluate: Callable[..., Evaluated | None]

    def adopt(self, kinds: Sequence[Kind]) -> None:
        """Know arrays by these kinds from now on, which equal the ones known before."""
        self.evaluate.__globals__.update({f"kind_{i}": kind for i, kind in enumerate(kinds)})


def write_evaluation(
    names: Names, bound: Bound[Any], kinds: Sequence[Kind], *, takes: bool
) -> WrittenEvaluation:
    """Return the function that evaluates arrays of some kinds.

    It holds neither the plan nor the evaluator, which hold it.

    Args:
        names: of what is given and returned.
        bound: what runs; it gives nothing up, and is settled.
        kinds: of the arrays of the call, as the plan takes them.
        takes: whether inputs and output gradients may be no arrays yet.
    """
    source = "".join(f"{line}\n" for line in _write(names, bound, takes))
    meaning: dict[str, Any] = {
        "Array": Array,
        "MAPPINGS": (dict, Mapping),
        "Parameters": Parameters,
        "new": object.__new__,
        "family": bound.interface.owner.family,
        "execute": bound.parts.execute,
        "call": find_positional(bound.parts.execute),
        "seeded": names.seeded,
    }
    meaning |= {f"result_{i}": kind for i, kind in enumerate(bound.parts.kinds)}
    exec(compile(source, "<written evaluation>", "exec"), meaning)
    written = WrittenEvaluation(source, meaning.pop("evaluate"))
    written.adopt(kinds)
    return written


def _write(names: Names, bound: Bound[Any], takes: bool) -> Iterator[str]:
    """Yield the lines of the function."""
    arguments = names.arguments
    yield "def evaluate(evaluator, params, inputs, gradients):"
    yield "    if family.open_profile is not None: return None"
    yield "    try:"
    for mapping, names_of in (
        ("inputs", names.inputs), ("params", names.parameters), ("gradients", names.seeded),
    ):  # fmt: skip
        if names_of is None:
            yield f"        if {mapping} is not None: return None"
        else:
            is_other = f"{mapping}.__class__ is not dict and not isinstance({mapping}, MAPPINGS)"
            yield f"        if {is_other}: return None"
            yield f"        if len({mapping}) != {len(names_of)}: return None"
    for i, (mapping, name) in enumerate(arguments):
        yield f"        x{i} = {mapping}[{name!r}]"
    others = [i for i, (mapping, _) in enumerate(arguments) if mapping != "params"]
    # Parameters come from the step before, and first: what is put on devices is put there once.
    for i in range(len(arguments)):
        if i not in others:
            yield f"        if x{i}.kind is not kind_{i}: return None"
    for i in others:  # made anew for each batch
        if takes:
            taken = f"evaluator.take({i}, x{i}, seeded, kind_{i})"
            yield f"        if x{i}.__class__ is not Array: x{i} = {taken}"
        yield f"        if x{i}.kind is not kind_{i} and x{i}.kind != kind_{i}: return None"
    yield "    except (AttributeError, KeyError, TypeError):"
    yield "        return None"
    given = ", ".join(f"x{i}.shards" for i in bound.order)
    made = ", ".join(f"made_{i}" for i in range(len(bound.plan.outputs)))
    has_own = find_positional(bound.parts.execute) is not None
    yield f"    [{made}] = {f'call({given})' if has_own else f'execute([{given}], None)'}"
    for i, place in enumerate(bound.results):
        yield f"    {name_result(i, f'made_{place}')}"
    count = len(names.outputs)
    outputs = ", ".join(f"{name!r}: y{i}" for i, name in enumerate(names.outputs))
    if names.seeded is None:
        yield f"    return {{{outputs}}}"
        return
    yield "    slopes = Parameters()"
    for i, name in enumerate(names.differentiated, count):
        yield f"    slopes[{name!r}] = y{i}"
    yield f"    return {{{outputs}}}, slopes"


def find_positional(execute: Run) -> Callable[..., Sequence[Any]] | None:
    """Return the function of handles that an executable may have; see `Executable`."""
    found: Callable[..., Sequence[Any]] | None = getattr(execute, "positional", None)
    return found


def name_result(i: int, handle: str) -> str:
    """Return the statements that make an array of a result.

    Args:
        i: its number.
        handle: the expression for what the engine returns.
    """
    return f"y{i} = new(Array); y{i}.kind = result_{i}; y{i}.shards = {handle}"


__all__ = ["Evaluated", "Names", "WrittenEvaluation", "name_result", "write_evaluation"]
