"""Runs the kit on a backend: which checks, in which order, and which failures are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from time import perf_counter

from mithril.engine.checks import checking
from mithril.errors import OptionError, listing, nearest
from mithril.testing.check import Check, Result, run_check, with_gap
from mithril.testing.checks import list_checks
from mithril.testing.levels import Level
from mithril.testing.report import Report
from mithril.testing.speed import Speed, measure_speed
from mithril.testing.target import Target

Told = Callable[[Result], None]
Patterns = str | Sequence[str]
"""One pattern of checks or several, of which one is enough; see `has_pattern`."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped from outside.

    Args:
        report: of the checks that were run until then.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report.summary())
        self.report = report


def check_backend(
    name: str,
    *,
    level: Level | str = Level.basic,
    mesh: Mapping[str, int] | None = None,
    pattern: Patterns = (),
    exclude: Patterns = (),
    options: Mapping[str, object] | None = None,
    known_gaps: Mapping[str, str] | None = None,
    stops: bool = False,
    tell: Told | None = None,
) -> Report:
    """Try a backend, and return what came of every check.

    Args:
        name: a backend name, as `mithril backends list` shows it.
        level: how much is tried: `smoke`, `basic` or `full`.
        mesh: axes of the mesh for checks of several devices; by default two axes of two.
        pattern: only checks whose id or name begins with it, such as `ops/` or `softmax`; `*` as
            in a shell. Of several, one is enough.
        exclude: no checks with this one, if it is given.
        options: of the backend, as `open_backend` takes them.
        known_gaps: reasons by the id of a check that is known to fail, or by a pattern of ids;
            added to those that the backend's spec declares.
        stops: whether the first check that is not good is the last one that is run.
        tell: called with each result as it comes.

    Raises:
        BackendError: the backend cannot be opened on one device.
        OptionError: no check has a pattern, or a gap names none.
        Interrupted: the process was; it has the report of what was run until then.

    >>> from mithril.testing import check_backend
    >>> report = check_backend("numpy", level="smoke", pattern="ops/tanh")
    >>> report.is_good, [result.outcome.status.value for result in report.results]
    (True, ['ok'])
    """
    start = perf_counter()
    run = Run(name, Level(level), mesh, pattern, options, known_gaps, exclude)
    results: list[Result] = []

    def report(speed: Sequence[Speed] = (), planned: int = 0) -> Report:
        return Report(
            name,
            run.target.engine.platform,
            run.level,
            repr(run.target.mesh),
            results,
            perf_counter() - start,
            list(speed),
            planned,
        )

    try:
        for check in run.checks:
            result = run(check)
            results.append(result)
            if tell is not None:
                tell(result)
            if stops and not result.is_good:
                break
        is_whole = not pattern and not exclude and not stops and run.level is not Level.smoke
        return report(measure_speed(Target(name, mesh, options)) if is_whole else [])
    except KeyboardInterrupt:
        raise Interrupted(report(planned=len(run.checks))) from None


class Run:
    """The checks that are to be run on a backend; called with one of them, it returns the result.

    Args:
        name: of the backend.
        level: how much is tried.
        mesh: see `check_backend` for this and the next ones.
        pattern: of ids.
        options: of the backend.
        known_gaps: reasons by id.
        exclude: patterns of ids that are left out.

    Raises:
        BackendError: the backend cannot be opened on one device.
        OptionError: no check has a pattern, or a gap names none.
    """

    def __init__(
        self,
        name: str,
        level: Level,
        mesh: Mapping[str, int] | None = None,
        pattern: Patterns = (),
        options: Mapping[str, object] | None = None,
        known_gaps: Mapping[str, str] | None = None,
        exclude: Patterns = (),
    ) -> None:
        everything = list_checks()
        self.level, self.target = level, Target(name, mesh, options)
        self._gaps = {**find_declared_gaps(name), **(known_gaps or {})}
        check_gaps(self._gaps, everything)
        self.checks = choose_checks(everything, level, pattern, exclude)
        with checking():  # a backend that cannot be opened is one error, not a hundred results
            self.target.open()

    def __call__(self, check: Check) -> Result:
        """Run a check."""
        with checking():
            result = run_check(check, self.target, self.level)
        return with_gap(result, find_gap(check, self._gaps))


def choose_checks(
    checks: list[Check], level: Level, pattern: Patterns = (), exclude: Patterns = ()
) -> list[Check]:
    """Return the checks of a level that have one of some patterns, and none of others.

    Raises:
        OptionError: no check has a pattern, none of this level has one, or all are left out.
    """
    patterns, excluded = _list_patterns(pattern), _list_patterns(exclude)
    for one in patterns:
        if not _choose(checks, [one]):
            hint = nearest(one, [check.name for check in checks])
            raise OptionError(f"-k '{one}' chooses no check{hint}; groups: {_list_groups(checks)}")
    chosen = _choose(checks, patterns) if patterns else checks
    found = [check for check in chosen if check.level.rank <= level.rank]
    if not found:
        least = min((check.level for check in chosen), key=lambda level: level.rank)
        raise OptionError(
            f"-k {listing(patterns)} chooses {len(chosen)} checks, none of level {level}; give "
            f"--level {least}"
        )
    left_out = _choose(found, excluded)
    kept = [check for check in found if check not in left_out]
    if not kept:
        raise OptionError(
            f"--exclude {listing(excluded)} leaves none of {len(found)} checks; choose others by -k"
        )
    return kept


def _list_patterns(given: Patterns) -> list[str]:
    return [one for one in ([given] if isinstance(given, str) else given) if one]


def _choose(checks: list[Check], patterns: list[str]) -> list[Check]:
    return [check for check in checks if any(has_pattern(check, one) for one in patterns)]


def has_pattern(check: Check, pattern: str) -> bool:
    """Return whether a check has a pattern: its id or its name begins so, or is so as in a shell.

    >>> def of(group, name): return Check(group, name, lambda target, level: None)
    >>> has_pattern(of("ops", "softmax_gradient"), "soft"), has_pattern(of("loops", "scan"), "ops/")
    (True, False)
    >>> has_pattern(of("ops", "log_softmax"), "softmax"), has_pattern(of("ops", "tanh"), "*an*")
    (False, True)
    """
    wanted = pattern if set(pattern) & set("*?[") else f"{pattern}*"
    return any(fnmatchcase(text, wanted) for text in (check.id, check.name))


def check_gaps(gaps: Mapping[str, str], checks: list[Check]) -> None:
    """Raise if a gap is declared of what is not tried.

    Raises:
        OptionError: no check has its id.
    """
    for gap in gaps:
        if not any(fnmatchcase(check.id, gap) for check in checks):
            hint = nearest(gap, [check.id for check in checks])
            raise OptionError(f"known gap '{gap}' names no check{hint}; take it out, or mend it")


def find_gap(check: Check, gaps: Mapping[str, str]) -> str:
    """Return why a check is known to fail, or an empty text."""
    found = (reason or "declared" for gap, reason in gaps.items() if fnmatchcase(check.id, gap))
    return next(found, "")


def find_declared_gaps(name: str) -> Mapping[str, str]:
    """Return the gaps that the spec of a backend declares."""
    from mithril.plugins.discover import find

    entry = find(name)
    return entry.spec.known_gaps if entry is not None and entry.spec is not None else {}


def _list_groups(checks: list[Check]) -> str:
    return listing(dict.fromkeys(check.group for check in checks))
