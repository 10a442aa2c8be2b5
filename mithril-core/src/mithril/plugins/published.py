"""Backends that are published as packages of their own: what messages say where they are absent.

An installed backend says all of this in its spec; this table is for those that are not installed,
and tests hold it against the specs. `suggest_attribute` asks both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from mithril.errors import nearest
from mithril.plugins.discover import discover


@dataclass(frozen=True, slots=True)
class Package:
    """A package that brings a backend.

    Args:
        backend: the backend's name.
        name: what pip calls the package.
        methods: as `BackendSpec.methods`.
        launches: whether its spec has `launch`.
        plans: whether its spec has `planning`.
    """

    backend: str
    name: str
    methods: tuple[str, ...]
    launches: bool = True
    plans: bool = False


PUBLISHED = {
    package.backend: package
    for package in (
        Package("jax", "mithril-jax", methods=("jax", "as_jax")),
        Package("torch", "mithril-torch", ("torch", "as_module", "code", "eject"), plans=True),
        Package("mlx", "mithril-mlx", methods=("mlx",)),
    )
}
"""By the backend's name."""


def install_command(packages: Iterable[Package]) -> str:
    """Return what a user types to get one of some packages.

    >>> install_command(PUBLISHED.values())
    'pip install mithril-jax, mithril-torch or mithril-mlx'
    """
    *others, last = [package.name for package in packages]
    return f"pip install {', '.join(others)}{' or ' if others else ''}{last}"


def suggest_attribute(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an attribute that is not there: which backend has it.

    Where none has, it is the nearest of those that there are, if one is near.

    Args:
        name: of the attribute.
        known: those that there are.
    """
    homes = [package.backend for package in PUBLISHED.values() if name in package.methods]
    home = homes[0] if homes else _list_installed_methods().get(name)
    return f"; backend '{home}' has it" if home else nearest(name, known)


@cache
def _list_installed_methods() -> dict[str, str]:
    """Return for each method that an installed backend's framework adds, the backend."""
    specs = [entry.spec for entry in discover() if entry.spec]
    return {method: spec.name for spec in specs for method in spec.methods}
