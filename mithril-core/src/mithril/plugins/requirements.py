"""Requirements of a backend, judged from package metadata: nothing is ever imported for it.

Only `name` and `name>=version` are understood. Versions compare by their release numbers; what
follows them (`rc1`, `.dev0`, `+cpu`) does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import dropwhile

from mithril.errors import BackendError

_FORM = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:>=\s*(?P<least>\d+(\.\d+)*))?\s*")
_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package, and the least version of it, if one is asked for.

    >>> Requirement.parse("jax>=0.4.35")
    Requirement(name='jax', least='0.4.35')
    """

    name: str
    least: str | None = None

    @staticmethod
    def parse(text: object) -> Requirement:
        """Return the requirement a string means.

        Raises:
            BackendError: it has another form than `name` or `name>=version`.
        """
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise BackendError(
                f"requirement {text!r} is not understood; write 'name' or 'name>=version'"
            )
        return Requirement(match["name"], match["least"])

    @property
    def installed(self) -> str | None:
        """The version that is installed, or None."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None

    @property
    def is_met(self) -> bool:
        """Whether the package is installed and new enough."""
        installed = self.installed
        if installed is None or self.least is None:
            return installed is not None
        return release(installed) >= release(self.least)

    @property
    def install_command(self) -> str:
        """What a user types to meet it."""
        return f"pip install '{self}'" if self.least else f"pip install {self}"

    def __str__(self) -> str:
        return f"{self.name}>={self.least}" if self.least else self.name


def release(text: str) -> tuple[int, ...]:
    """Return the release numbers of a version, without trailing zeros.

    >>> release("2.13.0+cpu"), release("1.0rc1")
    ((2, 13), (1,))
    """
    match = _RELEASE.match(text)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    return tuple(reversed([*dropwhile(lambda number: number == 0, reversed(numbers))]))
