"""`collective_ops=`: which algorithm carries out which collectives, in all of its forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mithril.compiler.axis_names import find_axis
from mithril.errors import OptionError, listing, nearest
from mithril.mesh import Mesh, coarse
from mithril.ops.collective import AllReduce, collectives
from mithril.partition.algorithms import ALGORITHMS, AS_ENGINES_DO, KNOWN, NATIVE, Algorithms
from mithril.partition.algorithms.asked import HIERARCHICAL

OPTION = "collective_ops"
LIBRARIES = ("gloo", "jaccl", "mpi", "nccl", "rccl", "ucc", "xla")
"""What carries data between devices, besides MLX's `ring`, which is an algorithm here."""
_FORMS = (
    f'give an algorithm, such as "ring", one by kind, such as {{"{AllReduce.name}": "ring"}}, or '
    f'by kind and mesh axis, such as {{"{AllReduce.name}": {{"data": "ring"}}}}'
)


def read_algorithms(
    given: object, mesh: Mesh, library: str, backend: str, default: Algorithms = AS_ENGINES_DO
) -> Algorithms:
    """Return how collectives are to be carried out.

    Args:
        given: `collective_ops=`; None where it is not given.
        mesh: of the backend.
        library: what carries data between its devices; empty where one process has all of them.
        backend: its name, for messages.
        default: what holds where nothing is given.

    Raises:
        OptionError: an algorithm, a kind, an axis or a library is not there, or they do not fit.

    >>> asked = read_algorithms({"all_gather": "tree"}, Mesh(data=4), "", "numpy")
    >>> dict(asked.of)
    {'all_gather': {'data': 'tree'}}
    """
    if given is None:
        return default
    if isinstance(given, str):
        return replace(_read_word(given, mesh, library, backend), said=f"{OPTION}={given!r}")
    if not isinstance(given, Mapping) or not given:
        raise OptionError(f"{OPTION}={given!r} names no algorithm; {_FORMS}")
    found = {_check_kind(kind): _read_kind(kind, how, mesh) for kind, how in given.items()}
    return Algorithms(_without_native(found), f"{OPTION}={dict(given)!r}")


def _read_word(given: str, mesh: Mesh, library: str, backend: str) -> Algorithms:
    """Return what one word means for all kinds: those that the algorithm is none of stay native."""
    if given in ALGORITHMS:
        axes = coarse(mesh).names
        kinds = (kind for kind, known in KNOWN.items() if given in known)
        return Algorithms(_without_native({kind: dict.fromkeys(axes, given) for kind in kinds}))
    if given and given == library:
        return AS_ENGINES_DO
    if given in LIBRARIES:
        there = f"exchange data by '{library}'" if library else "are those of one process"
        raise OptionError(
            f"{OPTION}={given!r} is not available on backend '{backend}', whose devices {there}; "
            f"leave it out, or name an algorithm: {listing(ALGORITHMS)}"
        )
    known = (*ALGORITHMS, *LIBRARIES)
    raise OptionError(
        f"{OPTION}={given!r} is no algorithm and no library{nearest(given, known)}; algorithms: "
        f"{listing(ALGORITHMS)}"
    )


def _check_kind(kind: object) -> str:
    if kind in KNOWN:
        return str(kind)
    if kind in collectives():
        raise OptionError(
            f"{OPTION} names '{kind}', for which there is no choice of algorithms; kinds: "
            f"{listing(KNOWN)}"
        )
    raise OptionError(
        f"{OPTION} names {kind!r}, which is no kind of collective{nearest(str(kind), KNOWN)}; "
        f"kinds: {listing(KNOWN)}"
    )


def _read_kind(kind: str, how: object, mesh: Mesh) -> dict[str, str]:
    """Return the algorithm of a kind by axis."""
    if not isinstance(how, Mapping):
        return dict.fromkeys(coarse(mesh).names, _check_algorithm(kind, how))
    if not how:
        raise OptionError(f"{OPTION} of {kind} names no algorithm; {_FORMS}")
    found: dict[str, str] = {}
    for name, algorithm in how.items():
        axis = find_axis(str(name), mesh, f"{OPTION} of {kind}")
        if axis in found:
            raise OptionError(
                f"{OPTION} of {kind} names axis '{axis}' twice; give it one algorithm"
            )
        found[axis] = _check_algorithm(kind, algorithm)
        size = coarse(mesh).sizes[axis]
        if found[axis] == HIERARCHICAL and _is_prime(size):
            raise OptionError(
                f"{OPTION} of {kind} is '{HIERARCHICAL}' over axis '{axis}', whose {size} devices "
                f"are no product of two numbers; use another algorithm: {listing(KNOWN[kind])}"
            )
    return found


def _check_algorithm(kind: str, how: object) -> str:
    if how in KNOWN[kind]:
        return str(how)
    if how in ALGORITHMS:
        raise OptionError(
            f"{OPTION} of {kind} is '{how}', which does no {kind}; it can be {listing(KNOWN[kind])}"
        )
    if how in LIBRARIES:
        raise OptionError(
            f"{OPTION} of {kind} is '{how}', a library, which is named for all kinds: "
            f"{OPTION}='{how}'; or give an algorithm: {listing(KNOWN[kind])}"
        )
    raise OptionError(
        f"{OPTION} of {kind} is {how!r}, which is no algorithm{nearest(str(how), KNOWN[kind])}; it "
        f"can be {listing(KNOWN[kind])}"
    )


def _without_native(found: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    chosen = {
        kind: {axis: how for axis, how in axes.items() if how != NATIVE}
        for kind, axes in found.items()
    }
    return {kind: axes for kind, axes in chosen.items() if axes}


def _is_prime(size: int) -> bool:
    return size > 1 and all(size % factor for factor in range(2, size))


__all__ = ["read_algorithms"]
