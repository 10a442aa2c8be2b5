"""Checks as data, what may come of one, and how one is run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from mithril.engine import Engine
from mithril.engine.raised import CORE, find_raised
from mithril.errors import BackendError, FaultyBackendError, MithrilError
from mithril.testing.levels import Level
from mithril.testing.target import Target

NO_KERNEL = "has no kernel in backend"
"""What the compiler says of an op that can neither be run nor expanded."""


class Status(StrEnum):
    """What came of a check.

    `ok`; `expanded`: right, by smaller ops instead of a kernel; `missing`: the backend says that it
    does not have it; `wrong`: another result; `failed`: an error instead of one; `skipped`: not
    tried here.
    """

    ok = "ok"
    expanded = "expanded"
    missing = "missing"
    wrong = "wrong"
    failed = "failed"
    skipped = "skipped"

    @property
    def is_good(self) -> bool:
        """Whether the backend does what it should."""
        return self in (Status.ok, Status.expanded, Status.skipped)


@dataclass(frozen=True)
class Outcome:
    """What a check found.

    Args:
        status: the verdict.
        note: how much was tried, or what is wrong.
        cause: what other checks that fail may have in common with it; empty if nothing is known.
    """

    status: Status = Status.ok
    note: str = ""
    cause: str = ""


class Mismatch(AssertionError):  # noqa: N818 - it is a finding, and no error of the kit
    """A backend made something else than it should; the text says what, and on which input.

    Args:
        text: what.
        cause: what other checks may have in common with it; see `Outcome`.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause


class Missing(Exception):  # noqa: N818 - it says what is so, and is no error of the kit
    """A backend says that it does not have what a check needs; the text says what."""


@dataclass(frozen=True)
class Check:
    """One thing that is tried.

    Args:
        group: what it belongs to: `ops`, `collectives`, ….
        name: within the group.
        run: tries it; raises `Mismatch` or `Missing`, or whatever the backend raises.
        level: from which on it is run.
        devices: how many devices it needs at least.
    """

    group: str
    name: str
    run: Callable[[Target, Level], Outcome | None]
    level: Level = Level.basic
    devices: int = 1

    @property
    def id(self) -> str:
        """The name by which it is chosen, and by which a gap is declared: `ops/add`."""
        return f"{self.group}/{self.name}"


@dataclass(frozen=True)
class Result:
    """What came of a check.

    Args:
        check: what was tried.
        outcome: what it found.
        seconds: how long it took.
        gap: why it is known to fail; empty where no gap is declared.
    """

    check: Check
    outcome: Outcome
    seconds: float = 0.0
    gap: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it passed, or failed as declared; a declared gap that passes is no good."""
        if self.outcome.status is Status.skipped:
            return True
        return self.outcome.status.is_good != bool(self.gap)


def run_check(check: Check, target: Target, level: Level) -> Result:
    """Run a check; whatever it raises is its outcome."""
    start = time.perf_counter()
    outcome = _try(check, target, level)
    return Result(check, outcome, time.perf_counter() - start)


def _try(check: Check, target: Target, level: Level) -> Outcome:
    if check.devices > target.mesh.size:
        return Outcome(Status.skipped, f"needs {check.devices} devices; give --mesh more")
    try:
        return check.run(target, level) or Outcome()
    except FaultyBackendError as error:  # found where it was made
        return Outcome(Status.wrong, str(error), find_cause(error))
    except Missing as error:
        return Outcome(Status.missing, str(error))
    except BackendError as error:
        status = Status.missing if NO_KERNEL in str(error) else Status.failed
        return Outcome(status, describe_error(error))
    except Mismatch as error:
        return Outcome(Status.wrong, str(error), error.cause or find_cause(error.__cause__))
    except AssertionError as error:
        return Outcome(Status.wrong, str(error) or "an assertion of the backend fails")
    except Exception as error:  # whatever a plugin raises
        text = describe_error(error, package_of(target.engine))
        return Outcome(Status.failed, text, find_cause(error))


def find_cause(error: BaseException | None) -> str:
    """Return what a library says, in one line, or which fault of a backend was found.

    Empty for nothing, and for other errors of Mithril: users meet them, and nobody is to blame.
    """
    if isinstance(error, FaultyBackendError):
        return find_cause(error.__cause__) or str(error).partition("; ")[0]
    if error is None or isinstance(error, MithrilError):
        return ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def describe_error(error: Exception, package: str = "") -> str:
    """Return an error and where it was raised, in one line.

    Args:
        error: what a check raised.
        package: of the backend: its own last line on the way is named, too.
    """
    text, at = " ".join(str(error).split()), find_raised(error, package).at
    if not at or isinstance(error, MithrilError):
        return f"{type(error).__name__}: {text}"
    return f"{type(error).__name__}: {text} ({at})"


def package_of(engine: Engine) -> str:
    """Return the package of an engine: that of its class before anything is looked at.

    >>> from mithril.engine.numpy_engine import NumpyEngine
    >>> from mithril.mesh import Mesh
    >>> package_of(NumpyEngine(Mesh()))
    ''
    """
    packages = (kind.__module__.partition(".")[0] for kind in type(engine).__mro__)
    own = (package for package in packages if package not in (CORE, "builtins", "abc", "typing"))
    return next(own, "")


def with_gap(result: Result, reason: str) -> Result:
    """Return a result whose failure is known."""
    return replace(result, gap=reason)
