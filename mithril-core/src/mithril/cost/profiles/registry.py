"""All profiles by name: those of this package, and those that plugins register.

A profile is read when it is asked for or looked through. A faulty one of a plugin is a row of the
list, and refused by its name; it never takes others with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mithril.cost.profiles.reader import Profile, read_file
from mithril.errors import MithrilError, OptionError, listing, nearest
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


@cache
def list_profiles() -> tuple[Entry, ...]:
    """Return all profiles, sorted by name: those of this package first where names are equal."""
    own = [HardwareFile(path, CORE) for path in sorted(FOLDER.glob("*.toml"))]
    entries: dict[str, Entry] = {}
    faulty: list[Entry] = []
    for file in [*own, *find_hardware_files()]:
        entry = _judge(file)
        taken = entries.get(entry.name)
        if taken is None and not file.fault:
            entries[entry.name] = entry
        elif taken is None:
            faulty.append(entry)
        else:
            fault = f"its name is also claimed by {taken.package}, whose profile is used"
            faulty.append(Entry(entry.name, entry.package, None, fault))
    return tuple(sorted([*entries.values(), *faulty], key=lambda entry: entry.name))


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
