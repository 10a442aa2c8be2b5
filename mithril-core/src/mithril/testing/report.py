"""What the kit found of a backend: as lines, as JSON, as a page."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from html import escape

from mithril.testing.check import Result, Status
from mithril.testing.levels import Level
from mithril.testing.speed import Speed, describe_speed

JSON_SCHEMA = 1
NAME_WIDTH, STATUS_WIDTH = 24, 9
CAUSES_SHOWN = 8
NUMBERS = re.compile(
    r"\[[\d, ]*\]|\([\d, ]*\)|(?<![\w.])(0x[0-9a-f]+|\d+(\.\d*)?(e[+-]?\d+)?)(?!\w)"
)
"""Shapes and numbers in what a library says, by which one cause is told differently each time."""


@dataclass(frozen=True)
class Report:
    """The results of all checks that were run on a backend.

    Args:
        backend: its name.
        platform: the kind of its devices.
        level: how much was tried.
        mesh: that of the checks of several devices.
        results: in order.
        seconds: how long it all took.
        speed: how fast it runs, beside the NumPy engine in lockstep.
        planned: how many checks there were to run, if it was stopped before; else 0.
    """

    backend: str
    platform: str
    level: Level
    mesh: str
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    speed: list[Speed] = field(default_factory=list)
    planned: int = 0

    @property
    def is_good(self) -> bool:
        """Whether every check passed, or failed as declared, and none was left to run."""
        return not self.planned and all(result.is_good for result in self.results)

    @property
    def faults(self) -> list[Result]:
        """The results that are not as they should be."""
        return [result for result in self.results if not result.is_good]

    def __str__(self) -> str:
        """Return a line for each check under a heading for each group, and a summary."""
        lines: list[str] = []
        group = ""
        for result in self.results:
            if result.check.group != group:
                group = result.check.group
                lines.append(group)
            lines.append(describe_result(result))
        return "\n".join([*lines, *self.describe_causes(), *self.describe_speed(), self.summary()])

    def describe_causes(self) -> list[str]:
        """Return a line for each cause that several checks fail for, the most frequent one first.

        Texts that differ in shapes and numbers alone are one cause; the first of them is shown.

        >>> from mithril.testing.check import Check, Outcome, Status
        >>> found = [Outcome(Status.wrong, "…", "TypeError: no dtype")] * 2
        >>> checks = [Check("ops", name, lambda target, level: None) for name in ("sum", "prod")]
        >>> results = [Result(*pair) for pair in zip(checks, found, strict=True)]
        >>> report = Report("npu", "cpu", Level.smoke, "Mesh()", results)
        >>> print(*report.describe_causes(), sep=chr(10))
        causes of several
          2 of 2 that fail       TypeError: no dtype
        """
        causes = [result.outcome.cause for result in self.faults if result.outcome.cause]
        first = {NUMBERS.sub("#", cause): cause for cause in reversed(causes)}
        counts = Counter(NUMBERS.sub("#", cause) for cause in causes)
        rows = [
            f"  {f'{count} of {len(self.faults)} that fail':<{NAME_WIDTH - 2}} {first[alike]}"
            for alike, count in counts.most_common(CAUSES_SHOWN)
            if count > 1
        ]
        return ["causes of several", *rows] if rows else []

    def describe_speed(self) -> list[str]:
        """Return the lines of the table of speed; none where it was not measured."""
        return describe_speed(self.speed)

    def summary(self) -> str:
        """Return the counts of all verdicts in one line."""
        counts = Counter(result.outcome.status for result in self.results if not result.gap)
        parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
        gaps = [result for result in self.results if result.gap]
        known = sum(result.is_good for result in gaps)
        parts += [f"{known} known gap{'s' * (known > 1)}"] if known else []
        parts += [f"{len(gaps) - known} gaps that pass"] if len(gaps) > known else []
        verdict = "is good" if self.is_good else "is NOT GOOD"
        if self.planned:
            verdict = f"was stopped after {len(self.results)} of {self.planned} checks"
            parts = parts or ["nothing"]
        return (
            f"backend '{self.backend}' {verdict} at level {self.level}: {', '.join(parts)}; "
            f"mesh {self.mesh}, {self.seconds:.0f} s"
        )

    def to_json(self) -> str:
        """Return the same as JSON."""
        rows = [
            {
                "id": result.check.id,
                "status": result.outcome.status.value,
                "note": result.outcome.note,
                "cause": result.outcome.cause or None,
                "gap": result.gap or None,
                "good": result.is_good,
                "seconds": round(result.seconds, 3),
            }
            for result in self.results
        ]
        document = {
            "schema": JSON_SCHEMA,
            "backend": self.backend,
            "platform": self.platform,
            "level": self.level.value,
            "mesh": self.mesh,
            "good": self.is_good,
            "seconds": round(self.seconds, 3),
            "results": rows,
            "speed": [asdict(row) for row in self.speed],
        }
        return json.dumps(document, indent=2)

    def to_html(self) -> str:
        """Return the same as a page that needs nothing else."""
        rows = "\n".join(_html_row(result) for result in self.results)
        return PAGE.format(
            title=escape(f"backend '{self.backend}', level {self.level}"),
            summary=escape(self.summary()),
            rows=rows,
            speed=escape("\n".join([*self.describe_causes(), *self.describe_speed()])),
        )


def describe_result(result: Result) -> str:
    """Return the line of a check: its name, the verdict, and what there is to say."""
    status, note = result.outcome.status.value, result.outcome.note
    if result.gap and result.is_good:
        status, note = "gap", f"{result.gap} ({result.outcome.status}: {note})"
    elif result.gap and not result.is_good:
        status = "passes"
        note = f"declared as a gap ({result.gap}) and passes; take it out of known_gaps"
    return f"  {result.check.name:<{NAME_WIDTH}} {status:<{STATUS_WIDTH}} {note}".rstrip()


def _html_row(result: Result) -> str:
    _, _, line = describe_result(result).partition(result.check.name)
    status, _, note = line.strip().partition(" ")
    kind = "good" if result.is_good else "bad"
    cells = (result.check.group, result.check.name, status, note.strip())
    return f"<tr class={kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
td {{ padding: 0.2em 0.8em; border-bottom: 1px solid #ddd; vertical-align: top; }}
tr.bad td {{ background: #fde8e8; }}
</style>
<h1>{title}</h1>
<p>{summary}</p>
<table>
{rows}
</table>
<pre>{speed}</pre>
</html>
"""
