"""Options that ask for a search over shardings: their forms, and refusals.

`auto_partition` switches it on for a model, `auto_sharding` for all models of a backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

from mithril.cost.profiles.units import BYTES
from mithril.errors import MeshError, OptionError, kind_of, listing, nearest
from mithril.keywords import read_entries
from mithril.mesh import Mesh
from mithril.ops.collective import AllToAll, collectives
from mithril.option_checks import check_flag, is_number
from mithril.sharding.search import (
    ANNOTATIONS,
    DATA,
    FULLY_SHARDED,
    LATENCY,
    MIXED,
    OBJECTIVES,
    PIPELINE,
    TENSOR,
    THROUGHPUT,
    Search,
)
from mithril.types import to_python

SPACES = {
    "data": (DATA,), "fully_sharded": (FULLY_SHARDED,), "tensor": (TENSOR,),
    "mixed": (MIXED,), "mixed_parallel": (MIXED,), ANNOTATIONS: (ANNOTATIONS,),
    PIPELINE: (PIPELINE,),
}  # fmt: skip
LIMITS = ("max_memory_per_device", "max_all_reduce_size", "forbid", "shardings")
CONFIG = ("force_data_parallel", "allow_mixed_mesh_models")


class SearchOptions(TypedDict, total=False):
    """The options as `compile` takes them; it says what each means."""

    auto_partition: bool | None
    partition_objective: str | None
    partition_search_space: str | None
    partition_constraints: Mapping[str, object] | None
    max_memory_per_device: int | str | None


class Asked(NamedTuple):
    """What the options ask for: a search, and how some tensors lie, by patterns of names."""

    search: Search | None
    shardings: object = None


def read_search(given: SearchOptions, mesh: Mesh, default: Search | None = None) -> Asked:
    """Return what the options ask for.

    Args:
        given: the options; None where one is not given.
        mesh: of the backend.
        default: what the backend searches for.

    Raises:
        OptionError: one has a wrong form, two differ, or one would have no effect.
        MeshError: the mesh lacks an axis.
    """
    said = {name: value for name, value in given.items() if value is not None}
    is_on = check_flag("auto_partition", said.pop("auto_partition", default is not None))
    if not is_on:
        for name, value in said.items():
            raise OptionError(
                f"{name}={value!r} has no effect without a search; give auto_partition=True, too"
            )
        return Asked(None)
    objective = _read_word("partition_objective", said.get("partition_objective", THROUGHPUT))
    spaces = MIXED_SPACES if default is None else default.spaces
    if "partition_search_space" in said:
        spaces = _read_space(said["partition_search_space"])
    example = '{"max_memory_per_device": "16 GB"}'
    constraints = said.get("partition_constraints", {})
    limits = read_entries("partition_constraints", constraints, LIMITS, example)
    memory = _read_memory(said.get("max_memory_per_device"), limits)
    refused, whole = _read_forbidden(limits.get("forbid", ()), mesh)
    largest = limits.get("max_all_reduce_size")
    search = Search(
        objective,
        spaces,
        memory,
        None if largest is None else _read_bytes(_in_limits("max_all_reduce_size"), largest),
        refused,
        whole,
    )
    if search.is_of_stages:
        _check_of_stages(search)
    return Asked(search, limits.get("shardings"))


def _check_of_stages(search: Search) -> None:
    """Raise where what is asked of a search for stages would have no effect."""
    space = f"partition_search_space='{PIPELINE}'"
    if search.objective not in (THROUGHPUT, LATENCY):
        raise OptionError(
            f"partition_objective='{search.objective}' is no objective of {space}, which cuts "
            f"layers into stages of which the slowest is as fast as can be; use '{THROUGHPUT}' or "
            f"'{LATENCY}', or another space"
        )
    if search.has_refusals or search.whole:
        raise OptionError(
            f"partition_constraints['forbid'] and ['max_all_reduce_size'] have no effect with "
            f"{space}, which only cuts layers into stages; leave them out, or use another space"
        )


def read_auto_sharding(is_on: bool | None, config: Mapping[str, object] | None) -> Search | None:
    """Return what `auto_sharding=` and `auto_sharding_config=` of a backend ask for.

    Args:
        is_on: whether models are searched that say nothing of it; None for if a config is given.
        config: `force_data_parallel` splits nothing but batches; without `allow_mixed_mesh_models`
            a model is either split by its batch or by everything else.

    Raises:
        OptionError: one has a wrong form, or would have no effect.
    """
    name = "auto_sharding_config"
    given = {} if config is None else read_entries(name, config, CONFIG, f"{{'{CONFIG[0]}': True}}")
    if not (config is not None if is_on is None else check_flag("auto_sharding", is_on)):
        if config is not None:
            raise OptionError(f"{name} has no effect with auto_sharding=False; leave one out")
        return None
    flags = {CONFIG[0]: False, CONFIG[1]: True}
    for key, value in given.items():
        flags[key] = check_flag(f"{name}['{key}']", value)
    if flags["force_data_parallel"]:
        return Search(spaces=(DATA,))
    return Search(spaces=(MIXED,) if flags["allow_mixed_mesh_models"] else (DATA, TENSOR))


MIXED_SPACES = (MIXED,)


def _read_word(name: str, word: object) -> str:
    if word not in OBJECTIVES:
        raise OptionError(
            f"{name}={word!r} is no objective{nearest(str(word), OBJECTIVES)}; objectives: "
            f"{listing(OBJECTIVES)}"
        )
    return str(word)


def _read_space(word: object) -> tuple[str, ...]:
    name = "partition_search_space"
    if word not in SPACES:
        raise OptionError(
            f"{name}={word!r} is no space{nearest(str(word), SPACES)}; spaces: {listing(SPACES)}"
        )
    return SPACES[str(word)]


def _in_limits(name: str) -> str:
    return f"partition_constraints['{name}']"


def _read_memory(given: object, limits: Mapping[str, object]) -> int | None:
    """Return the bytes that a device may hold, said in either place."""
    name = "max_memory_per_device"
    found = [
        _read_bytes(place, value)
        for place, value in ((name, given), (_in_limits(name), limits.get(name)))
        if value is not None
    ]
    if len(set(found)) > 1:
        raise OptionError(
            f"{name}={given!r} is given together with {_in_limits(name)}={limits[name]!r}; give one"
        )
    return found[0] if found else None


def _read_bytes(name: str, value: object) -> int:
    number = to_python(value)
    nbytes = BYTES.read(number, name) if isinstance(number, str) else number
    if not is_number(nbytes) or not 1 <= nbytes < math.inf:
        raise OptionError(f'{name}={value!r} is no number of bytes; give one, such as "16 GB"')
    return int(nbytes)


def _read_forbidden(
    given: object, mesh: Mesh
) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """Return the collectives that may not occur, and what may not be split over which axes."""
    name, kinds = _in_limits("forbid"), sorted(collectives())
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise OptionError(
            f"{name}={given!r} is no list, but {kind_of(given)}; give collectives, and pairs of a "
            f'pattern of names and an axis, such as ["{AllToAll.name}", ("embed.*", "data")]'
        )
    refused, whole = set[str](), []
    for entry in given:
        if isinstance(entry, str) and entry in kinds:
            refused.add(entry)
        elif isinstance(entry, tuple) and len(entry) == 2 and set(map(type, entry)) == {str}:
            if entry[1] not in mesh.names:
                raise MeshError(f"{name}: {mesh.lacking(entry[1])}")
            whole.append(entry)
        else:
            raise OptionError(
                f"{name} has entry {entry!r}, which is neither a collective"
                f"{nearest(str(entry), kinds)} nor a pair of a pattern of names and an axis; "
                f"collectives: {listing(kinds)}"
            )
    return frozenset(refused), tuple(whole)
