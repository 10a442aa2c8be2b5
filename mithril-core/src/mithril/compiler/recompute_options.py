"""Options that say what the backward computes again: their forms, and refusals.

`checkpointing`, or `activation_checkpointing`, says how much; `rematerialization` switches it on or
off; `rematerialization_policy` and `recomputation_granularity` say how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from mithril.compiler.axis_names import find_axis
from mithril.cost.profiles.units import BYTES
from mithril.errors import OptionError, kind_of, nearest
from mithril.mesh import Mesh
from mithril.option_checks import choose_name
from mithril.partition.recompute.asked import (
    ALL,
    FULL,
    LAYER,
    MINIMAL,
    NONE,
    OPERATION,
    SELECTIVE,
    Recompute,
)
from mithril.types import to_python

WORDS = (ALL, SELECTIVE, NONE)
GRANULARITIES = (LAYER, OPERATION)
POLICIES = (MINIMAL, FULL)
_FORMS = (
    'give "all", "selective" or "none", a fraction such as 0.6, a number of bytes such as "2 GB", '
    'or "all" or "none" by patterns of layers'
)


class RecomputeOptions(TypedDict, total=False):
    """The options as `compile` and `jit` take them; `compile` says what each means."""

    checkpointing: object
    activation_checkpointing: object
    rematerialization: bool | None
    rematerialization_policy: Mapping[str, str] | None
    recomputation_granularity: str | None


def read_recompute(given: RecomputeOptions) -> Recompute:
    """Return what the options ask for.

    Args:
        given: the options, and others beside them; None where one is not given.

    Raises:
        OptionError: one has a wrong form, two of them differ, or one would have no effect.
    """
    own = RecomputeOptions.__annotations__
    said = {name: value for name, value in given.items() if name in own and value is not None}
    names = ("checkpointing", "activation_checkpointing")
    name, what = choose_name({name: said.get(name) for name in names})
    what = to_python(what)
    layers = _read_layers(name, what) if isinstance(what, Mapping) else {}
    budget = NONE if layers else _read_budget(name, what)
    switch = said.get("rematerialization")
    if switch is not None and not isinstance(switch, bool):
        raise OptionError(f"rematerialization={switch!r} is neither True nor False; give one")
    granularity = said.get("recomputation_granularity")
    if granularity is not None and granularity not in GRANULARITIES:
        raise OptionError(
            f"recomputation_granularity={granularity!r} is neither 'layer' nor 'operation'; give "
            f"one of them"
        )
    if what is None:  # switched on by another option
        budget = ALL if switch else SELECTIVE if granularity and switch is None else NONE
    collectives = _read_collectives(said.get("rematerialization_policy"))
    asked = Recompute(budget, layers, collectives, str(granularity or OPERATION), _quote(said))
    _check_effects(asked, name, switch, granularity)
    return asked


def name_axes(asked: Recompute, mesh: Mesh) -> Recompute:
    """Return what is asked for, with the axes of a mesh in the place of other names of theirs.

    Raises:
        OptionError: the mesh has no such axis.
    """
    option = "rematerialization_policy"
    found = {find_axis(name, mesh, option): how for name, how in asked.collectives.items()}
    return replace(asked, collectives=found)


def _read_budget(name: str, given: object) -> str | float | int:
    if given is None:
        return NONE
    if isinstance(given, str):
        if given in WORDS:
            return given
        if not any(character.isdigit() for character in given):
            raise OptionError(f"{name}={given!r} is not known{nearest(given, WORDS)}; {_FORMS}")
        size = _read_bytes(name, given)
        if size < 1:
            raise OptionError(f"{name}={given!r} leaves no memory; {_FORMS}")
        return size
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise OptionError(f"{name} is {kind_of(given)}; {_FORMS}")
    if not 0 < given < 1:
        raise OptionError(
            f"{name}={given!r} is no fraction between 0 and 1 of what keeping everything takes, "
            f"and has no unit; {_FORMS}"
        )
    return float(given)


def _read_bytes(name: str, given: str) -> int:
    try:
        return int(BYTES.read(given, name))
    except OptionError:  # which speaks of bytes alone
        raise OptionError(f"{name}={given!r} is no number of bytes; {_FORMS}") from None


def _read_layers(name: str, given: Mapping[object, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern, what in given.items():
        if not isinstance(pattern, str) or what not in (ALL, NONE):
            raise OptionError(
                f'{name} got {pattern!r}: {what!r}; give "all" or "none" by patterns of layer '
                f'paths, such as {{"block_*": "all"}}'
            )
        found[pattern] = str(what)
    if not found:
        raise OptionError(f"{name} names no layers; {_FORMS}")
    return found


def _read_collectives(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise OptionError(
            f"rematerialization_policy={given!r} says nothing by mesh axis; give 'minimal' or "
            f'\'full\' for axes, such as {{"data": "minimal"}}'
        )
    for axis, how in given.items():
        if not isinstance(axis, str) or how not in POLICIES:
            raise OptionError(
                f"rematerialization_policy got {axis!r}: {how!r}; give 'minimal', which keeps what "
                f"a collective over the axis has brought, or 'full', which exchanges it again"
            )
    return dict(given)


def _check_effects(asked: Recompute, name: str, switch: object, granularity: object) -> None:
    """Raise for options that contradict each other, or say how to do what is not done."""
    if switch is False and asked.is_on:
        raise OptionError(
            f"rematerialization=False is given together with {name}=, which asks for it; leave one "
            f"out"
        )
    if switch is True and not asked.is_on:
        raise OptionError(
            f"rematerialization=True is given together with {name}=, which keeps everything; leave "
            f"one out"
        )
    if asked.is_on and granularity == OPERATION and not asked.is_solved:
        raise OptionError(
            f"recomputation_granularity='operation' is for a budget, which chooses operations; "
            f'{asked.said} recomputes whole layers; leave it out, or give checkpointing="selective"'
        )
    for option, value in (
        ("rematerialization_policy", asked.collectives),
        ("recomputation_granularity", granularity),
    ):
        if value and not asked.is_on:
            raise OptionError(
                f"{option}={value!r} has no effect where nothing is computed again; give "
                f"checkpointing, or rematerialization=True"
            )


def _quote(said: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in said.items())
