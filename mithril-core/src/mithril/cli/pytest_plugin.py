"""The kit as tests of pytest: `pytest --mithril-backend NAME` adds an item for every check.

The entry point `pytest11` of the wheel has pytest load this module; nothing else imports it. The
checks are named as `mithril backends check` names them, so that `-k` chooses among both alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mithril.testing.check import Check, Result
    from mithril.testing.run import Run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the kit."""
    group = parser.getgroup("mithril", "conformance of a backend of Mithril")
    group.addoption(
        "--mithril-backend", metavar="NAME", help="run the conformance kit on a backend"
    )
    group.addoption(
        "--mithril-level", choices=("smoke", "basic", "full"), default="basic",
        help="how much of the kit is run (default: basic)",
    )  # fmt: skip
    group.addoption(
        "--mithril-mesh", metavar="AXES", help="the mesh of its checks of several devices: a=2,b=2"
    )
    group.addoption(
        "--mithril-known-gaps", metavar="FILE", type=Path,
        help="a TOML file with reasons by check in [known_gaps]",
    )  # fmt: skip


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the items of the kit behind those of the files.

    Raises:
        UsageError: the backend cannot be opened, or an option is wrong.
    """
    name = config.getoption("--mithril-backend")
    if name:
        kit: Kit = Kit.from_parent(session, name=f"mithril {name}", run=_prepare(config, name))
        report = config.hook.pytest_make_collect_report(collector=kit)
        config.hook.pytest_collectreport(report=report)  # by which they are counted
        items.extend(report.result)


def _prepare(config: pytest.Config, name: str) -> Run:
    from mithril.cli.conformance import read_gaps
    from mithril.cli.mesh import read_mesh
    from mithril.errors import MithrilError
    from mithril.testing.levels import Level
    from mithril.testing.run import Run

    mesh, gaps = (config.getoption(f"--mithril-{option}") for option in ("mesh", "known-gaps"))
    try:
        return Run(
            name,
            Level(config.getoption("--mithril-level")),
            mesh=read_mesh(mesh) if mesh else None,
            known_gaps=read_gaps(gaps) if gaps else None,
        )
    except MithrilError as error:
        raise pytest.UsageError(f"--mithril-backend {name}: {error}") from None


class Kit(pytest.Collector):
    """The checks of a level, as items."""

    def __init__(self, *, run: Run, **more: Any) -> None:
        super().__init__(**more)
        self.run = run

    def collect(self) -> Iterator[CheckItem]:
        """Yield an item for each check of the level."""
        for check in self.run.checks:
            yield CheckItem.from_parent(self, name=check.id, check=check, run=self.run)


class CheckItem(pytest.Item):
    """One check of the kit."""

    def __init__(self, *, check: Check, run: Run, **more: Any) -> None:
        super().__init__(**more)
        self.check, self.run = check, run

    def runtest(self) -> None:
        """Run the check; a known gap is an expected failure, and no gap may pass."""
        from mithril.testing.check import Status

        result = self.run(self.check)
        outcome = result.outcome
        if outcome.status is Status.skipped:
            pytest.skip(outcome.note)
        if result.gap and result.is_good:
            pytest.xfail(f"{result.gap} ({outcome.status}: {outcome.note})")
        if not result.is_good:
            raise CheckFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the line of the report."""
        if isinstance(excinfo.value, CheckFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where pytest says that the item is."""
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.name}"


class CheckFailed(Exception):  # noqa: N818 - what pytest reports, and no error of the kit
    """A check that is not as it should be; the text is its line of the report."""

    def __init__(self, result: Result) -> None:
        from mithril.testing.report import describe_result

        super().__init__(f"{result.check.group}\n{describe_result(result)}")
