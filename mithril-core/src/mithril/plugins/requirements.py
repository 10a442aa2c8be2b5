"""Requirements of plugins, as PEP 508 writes them: judged from metadata, nothing is imported.

`jax>=0.8,<1`, `jax[cuda12]` and `uvloop; sys_platform != "win32"` mean what they mean to pip. A
requirement whose marker does not hold here is met; one with extras is met if what these extras
require is, too. `packaging` reads them, and is imported when the first one is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from mithril.errors import BackendError

if TYPE_CHECKING:
    from packaging.requirements import Requirement as Parsed


@dataclass(frozen=True)
class Requirement:
    """A package, and which versions of it will do.

    Args:
        text: as PEP 508 writes it.

    >>> need = Requirement.parse("jax[cuda12] >=0.8,<1; sys_platform != 'win32'")
    >>> need.name, str(need)
    ('jax', 'jax[cuda12]<1,>=0.8; sys_platform != "win32"')
    """

    text: str

    @staticmethod
    def parse(text: object) -> Requirement:
        """Return the requirement a string means.

        Raises:
            BackendError: it is no requirement by PEP 508.
        """
        from packaging.requirements import InvalidRequirement

        if not isinstance(text, str):
            raise BackendError(f"requirement {text!r} is no string; write one, such as 'jax>=0.8'")
        found = Requirement(text)
        try:
            found._parsed  # noqa: B018 - it is read here, so that it cannot fail later
        except InvalidRequirement as error:
            first = str(error).splitlines()[0]
            raise BackendError(
                f"requirement {text!r} is not understood: {first}; write it as PEP 508 does, such "
                f"as 'jax>=0.8,<1'"
            ) from None
        return found

    @cached_property
    def _parsed(self) -> Parsed:
        from packaging.requirements import Requirement as Parsed

        return Parsed(self.text)

    @property
    def name(self) -> str:
        """The package's name."""
        return self._parsed.name

    @property
    def installed(self) -> str | None:
        """The version that is installed, or None."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None

    @property
    def applies(self) -> bool:
        """Whether its marker holds on this machine, without extras."""
        return self._holds("")

    @property
    def is_met(self) -> bool:
        """Whether it does not apply, or the package is installed in a version that will do."""
        return self.find_unmet() is None

    def find_unmet(self) -> Requirement | None:
        """Return this requirement, or one of its extras, that is not met; None if all are."""
        return next(self._list_unmet(frozenset()), None) if self.applies else None

    @property
    def install_command(self) -> str:
        """What a user types to meet it."""
        extras = f"[{','.join(sorted(self._parsed.extras))}]" if self._parsed.extras else ""
        wanted = f"{self.name}{extras}{self._parsed.specifier}"
        return f"pip install '{wanted}'" if wanted != self.name else f"pip install {wanted}"

    def __str__(self) -> str:
        return str(self._parsed)

    def _holds(self, extra: str) -> bool:
        marker = self._parsed.marker
        return marker is None or marker.evaluate({"extra": extra})

    def _list_unmet(self, seen: frozenset[str]) -> Iterator[Requirement]:
        installed = self.installed
        if installed is None or not self._parsed.specifier.contains(installed, prereleases=True):
            yield self
            return
        for extra in sorted(self._parsed.extras):
            for text in requires(self.name) or ():
                need = Requirement.parse(text)
                # What holds without the extra is not of the extra: pip has seen to it.
                if need._holds(extra) and not need._holds("") and text not in seen:
                    yield from need._list_unmet(seen | {text})


def list_requirements(distribution: Distribution | None) -> list[Requirement]:
    """Return what a distribution requires on this machine, by its metadata."""
    texts = (distribution.requires or []) if distribution else []
    return [need for text in texts if (need := Requirement.parse(text)).applies]
