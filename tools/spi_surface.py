"""Records what `mithril.spi` offers, and says by how much `BACKEND_API` has to grow for a change.

python tools/spi_surface.py                 # records the surface of this backend API, once
python tools/spi_surface.py --check         # fails if it is not what was recorded
python tools/spi_surface.py --unpublished   # records it again: no release has had this version yet

A record has a line for each name, member, field and signature. A line that is gone or changed needs
a new major number; new lines need a new minor number, or a major one where a plugin has to
implement them. `docs/plugins/versions.md` is the policy.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mithril import spi
from mithril.plugins import BACKEND_API
from mithril.spi import ops

RECORDS = Path(__file__).parent.parent / "tests" / "golden" / "spi"
SPECIAL = ("__call__", "__init__")
REQUIRED = "  # required"
Version = tuple[int, int]
Step = Literal["", "minor", "major"]


def describe() -> list[str]:
    """Return the surface as it is now, line by line."""
    lines: list[str] = []
    for name in spi.__all__:
        if name != "ops":
            lines += _describe(name, getattr(spi, name))
    for name in ops.__all__:
        lines += _describe(f"ops.{name}", getattr(ops, name))
    lines += [f"deprecated {name}" for name in spi.DEPRECATED]
    return lines


def _describe(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"class {name}"
        is_op = issubclass(value, spi.Op) and value is not spi.Op
        yield from _describe_fields(name, value)
        yield from () if is_op else _describe_members(name, value)
    elif inspect.isfunction(value):
        yield f"def {name}{_signature(value)}"
    else:
        yield f"{name} = {_show(value)}"


def _describe_fields(name: str, kind: type) -> Iterator[str]:
    """What a dataclass is made of: fields with a default may be added later."""
    if not is_dataclass(kind):
        return
    for field in fields(kind):
        if not field.name.startswith("_"):
            is_free = field.default is not MISSING or field.default_factory is not MISSING
            yield f"{name}.{field.name}: {field.type}{' = …' if is_free else REQUIRED}"


def _describe_members(name: str, kind: type) -> Iterator[str]:
    if issubclass(kind, Enum):
        yield from (f"{name}.{key} = {member.value!r}" for key, member in kind.__members__.items())
        return
    taken = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
    own = [base for base in kind.__mro__ if base.__module__.startswith("mithril")]
    annotated = {}
    for base in reversed(own):
        annotated |= vars(base).get("__annotations__", {})
    for key, text in sorted(annotated.items()):
        if not key.startswith("_") and key not in taken:
            yield f"{name}.{key}: {getattr(text, '__forward_arg__', text)}"
    if issubclass(kind, tuple):
        return
    members = {key for base in own for key in vars(base)} - set(annotated) - taken
    if getattr(kind, "_is_protocol", False):
        members.discard("__init__")  # it is typing's own
    for key in sorted(members):
        is_made = key in SPECIAL and not (is_dataclass(kind) and key == "__init__")
        if is_made or not key.startswith("_"):
            yield from _describe_member(f"{name}.{key}", inspect.getattr_static(kind, key), kind)


def _describe_member(name: str, value: Any, kind: type) -> Iterator[str]:
    abstract = REQUIRED if getattr(value, "__isabstractmethod__", False) else ""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, property | cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        yield f"{name}: {inspect.signature(getter).return_annotation}{abstract}"
    elif inspect.isfunction(value):
        yield f"def {name}{_signature(value)}{abstract}"
    elif not inspect.isdatadescriptor(value):  # slots
        yield f"{name} = {_show(value)}"


def _signature(function: Any) -> str:
    """Return a signature in which a default that is no literal has its name."""
    text = str(inspect.signature(function)).replace("'", "")
    return re.sub(r"<(?:function |class )?([\w.]+)[^<>]*>", r"\1", text)


def _show(value: Any) -> str:
    plain = isinstance(value, int | float | str | tuple) or hasattr(value, "__args__")
    return repr(value) if plain else type(value).__name__


def judge(before: list[str], after: list[str]) -> tuple[Step, list[str]]:
    """Return how much the version has to grow from one surface to another, and for which lines.

    Args:
        before: lines as `describe` gives them.
        after: the same, later.
    """
    known, found = {_key(line): line for line in before}, {_key(line): line for line in after}
    breaking = [f"- {line}" for key, line in known.items() if not _keeps(line, found.get(key, ""))]
    fresh = [line for key, line in found.items() if key not in known]
    owners = {line.split()[1] for line in before if line.startswith("class ")}
    breaking += [
        f"+ {x}" for x in fresh if x.endswith(REQUIRED) and _key(x).rpartition(".")[0] in owners
    ]
    if breaking:
        return "major", breaking
    added = [f"+ {line}" for key, line in found.items() if known.get(key) != line]
    return ("minor", added) if added else ("", [])


def _key(line: str) -> str:
    """Return the name that a line is about."""
    word = line.split(" ")[1] if line.startswith(("def ", "class ", "deprecated ")) else line
    name = word.split(" ")[0].partition("(")[0].rstrip(":")
    return f"deprecated {name}" if line.startswith("deprecated ") else name


def _keeps(before: str, after: str) -> bool:
    """Return whether who relies on a line can rely on another in its place."""
    if before == after or before.startswith(("deprecated ", "BACKEND_API ")):
        return True
    if after == f"{before.replace(': ', ': ClassVar[', 1)}]":  # read alike, and overridden alike
        return True
    if not (before.startswith("def ") and after.startswith("def ")) or REQUIRED in before:
        return False
    old, new = _parameters(before), _parameters(after)
    is_same = old[0] == new[0] and old[1].items() <= new[1].items() and old[2] == new[2]
    may_go = all(new[1][name][1] for name in new[1].keys() - old[1].keys())
    return is_same and may_go and list(new[1])[: len(old[1])] == list(old[1])


def _parameters(line: str) -> tuple[str, dict[str, tuple[str, bool]], str]:
    """Return the stars of a signature, its parameters with whether they may be left out, its result."""
    text = line.removeprefix("def ").partition("(")[2]
    (function,) = ast.parse(f"def f({text.removesuffix(REQUIRED)}: ...").body
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    free = len(plain) - len(arguments.defaults)
    found = {x.arg: (_text(x.annotation), i >= free) for i, x in enumerate(plain)}
    for x, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found[x.arg] = _text(x.annotation), default is not None
    stars = "".join(x.arg for x in (arguments.vararg, arguments.kwarg) if x)
    return stars, found, _text(function.returns)


def _text(node: ast.expr | None) -> str:
    return ast.unparse(node) if node else ""


def read(version: Version) -> list[str] | None:
    """Return the recorded surface of a version, if there is one."""
    path = _path(version)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else None


def list_versions() -> list[Version]:
    """Return the versions that are recorded, in order."""
    stems = [path.stem.split(".") for path in RECORDS.glob("*.txt")]
    return sorted((int(major), int(minor)) for major, minor in stems)


def _path(version: Version) -> Path:
    return RECORDS / f"{version[0]}.{version[1]}.txt"


def find_faults(current: list[str], version: Version) -> list[str]:
    """Return what keeps a surface from being that of a version; nothing if it is.

    Args:
        current: the surface.
        version: what it shall be called.
    """
    earlier = [known for known in list_versions() if known < version]
    if earlier:
        step, lines = judge(read(earlier[-1]) or [], current)
        is_enough = version[0] > earlier[-1][0] or step != "major"
        if not is_enough:
            major = earlier[-1][0] + 1
            return [f"BACKEND_API has to become ({major}, 0): mithril.spi has changed:", *lines]
    recorded = read(version)
    if recorded is None:
        return ["the surface of mithril.spi is not recorded; run python tools/spi_surface.py"]
    step, lines = judge(recorded, current)
    if recorded != current:
        major, minor = version
        wanted = (major + 1, 0) if step == "major" else (major, minor + 1)
        return [f"BACKEND_API has to become {wanted}: mithril.spi has changed:", *lines]
    return []


def main(arguments: list[str]) -> int:
    """Record the surface, or check it."""
    current = describe()
    faults = find_faults(current, BACKEND_API)
    is_new = read(BACKEND_API) is None or "--unpublished" in arguments
    if "--check" not in arguments and is_new:
        RECORDS.mkdir(parents=True, exist_ok=True)
        _path(BACKEND_API).write_text("\n".join(current) + "\n", encoding="utf-8")
        faults = find_faults(current, BACKEND_API)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
