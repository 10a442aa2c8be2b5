"""All profiles by name: those of this package, and those that plugins register.

A profile is read when it is asked for or looked through. A faulty one of a plugin is a row of the
list, and refused by its name; it never takes others with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mithril.cost.profiles.reader import Profile, read_file
from mithril.errors import MithrilError, OptionError, listing, nearest
from mithril.plugins.extensions import list_registered_files
from mithril.plugins.hardware import HardwareFile, find_hardware_files

FOLDER = Path(__file__).parent
CORE = "mithril-core"


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile and the judgement on it.

    Args:
        name: of the profile, or of the plugin where not even that is known.
        package: the distribution that brings it.
        profile: what was read; None where that failed.
        fault: what is wrong; empty where nothing is.
        error: what was raised.
    """

    name: str
    package: str
    profile: Profile | None
    fault: str = ""
    error: BaseException | None = None


def list_profiles() -> tuple[Entry, ...]:
    """Return all profiles, sorted by name: those of this package first where names are equal.

    A name that several plugins claim means none of theirs: nobody chooses in silence.
    """
    own, installed = read_profiles()
    taken = {entry.name for entry in own}
    offered = [*installed, *map(_judge, list_registered_files())]
    found = [_refuse_shared(entry, offered) if entry.name not in taken else _refuse_core(entry)
             for entry in offered]  # fmt: skip
    return tuple(sorted([*own, *found], key=lambda entry: entry.name))


@cache
def read_profiles() -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Return the profiles of this package, and those of installed plugins, read once."""
    own = [HardwareFile(path, CORE) for path in sorted(FOLDER.glob("*.toml"))]
    return tuple(map(_judge, own)), tuple(map(_judge, find_hardware_files()))


def _refuse_core(entry: Entry) -> Entry:
    fault = f"its name is also claimed by {CORE}, whose profile is used"
    return replace(entry, profile=None, fault=entry.fault or fault)


def _refuse_shared(entry: Entry, offered: Sequence[Entry]) -> Entry:
    """Return a profile without its figures if another plugin brings one of its name."""
    others = [e for e in offered if e.name == entry.name and e is not entry and not e.error]
    if entry.fault or not others:
        return entry
    claimed = listing(dict.fromkeys(other.package for other in others))
    return replace(
        entry, profile=None, fault=f"its name is also claimed by {claimed}; none is used"
    )


def find_profile(name: str) -> Profile:
    """Return the profile of a name.

    Raises:
        OptionError: there is none, or it is faulty.
    """
    entries = list_profiles()
    named = [entry for entry in entries if entry.name == name]
    for entry in named:
        if entry.profile is not None:
            return entry.profile
    if named and all("none is used" in entry.fault for entry in named):
        origins = listing(entry.package for entry in named)
        raise OptionError(
            f"hardware profile '{name}' is claimed by {origins}; remove one of them, or give the "
            f"path of a file"
        )
    for entry in named:
        raise OptionError(
            f"hardware profile '{name}' of {entry.package} is broken; {entry.fault}; mend or "
            f"remove it, or give the path of another"
        ) from entry.error
    raise _explain_unknown(name, entries)


def find_profiles() -> Mapping[str, Profile]:
    """Return the profiles that can be used, by name."""
    return {entry.name: entry.profile for entry in list_profiles() if entry.profile is not None}


def _judge(file: HardwareFile) -> Entry:
    if file.fault:
        return Entry(file.name, file.package, None, file.fault, file.error)
    try:
        profile = _read(file)
    except MithrilError as error:
        return Entry(file.name, file.package, None, str(error), error)
    return Entry(file.name, file.package, profile)


def _read(file: HardwareFile) -> Profile:
    profile = read_file(file.path, file.package)
    if profile.hardware.name != file.name:
        raise OptionError(
            f"hardware profile '{file.path}' has the name '{profile.hardware.name}'; name it as "
            f"its file, '{file.name}'"
        )
    return profile


def _explain_unknown(name: str, entries: tuple[Entry, ...]) -> OptionError:
    known = [entry.name for entry in entries if entry.profile is not None]
    several = [other for other in known if other.startswith(f"{name}-")]
    if len(several) > 1:
        return OptionError(f"hardware '{name}' is one of {listing(several)}; say which")
    broken = [f"{entry.name} ({entry.fault})" for entry in entries if entry.error is not None]
    more = f"; broken: {'; '.join(broken)}" if broken else ""
    return OptionError(
        f"hardware '{name}' has no profile{nearest(name, known)}; there are {listing(known)}, "
        f"or give the path of a TOML file{more}"
    )
