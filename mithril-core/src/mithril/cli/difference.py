"""`mithril diff`: what one plan, or one strategy, does otherwise than another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli.model_file import load_script
from mithril.errors import GraphError, OptionError, UnknownNameError

if TYPE_CHECKING:
    from mithril.plan import Collective, Plan
    from mithril.report.difference import Difference

JSON_SCHEMA = 1


def diff(
    before: Annotated[
        Path,
        typer.Argument(help="A plan, as `mithril plan --json` prints it, or a strategy."),
    ],
    after: Annotated[Path, typer.Argument(help="Another one.")],
    script: Annotated[
        str, typer.Option(help="A script that defines ops of the plans, such as train.py.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Compare two plans (tensors that moved, collectives, bytes, time), or two strategies."""
    if _holds_strategy(before) and _holds_strategy(after):
        typer.echo(_compare_strategies(before, after, as_json))
        return
    from mithril.report.difference import compare

    if script:
        load_script(script)
    found = compare(_read(before), _read(after))
    typer.echo(_as_json(found) if as_json else str(found))


def _read(path: Path) -> Plan:
    """Return the plan in a file.

    Raises:
        OptionError: it cannot be read, or holds no plan.
    """
    import mithril.ops
    import mithril.plugins.plugin_ops  # noqa: F401 - both fill the registry of ops
    from mithril.plan.serialize import plan_from_json

    try:
        return plan_from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"file '{path}' cannot be read; {error}; give one that `mithril plan --json` printed"
        ) from error
    except UnknownNameError as error:
        raise OptionError(
            f"file '{path}' cannot be read; {error}: with --script SCRIPT, or install its plugin"
        ) from error
    except GraphError as error:
        raise OptionError(f"file '{path}' holds no plan; {error}") from error


def _holds_strategy(path: Path) -> bool:
    from mithril.runtime.strategy.files import is_strategy

    try:
        return is_strategy(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False  # `_read` says what is wrong with it


def _compare_strategies(before: Path, after: Path, as_json: bool) -> str:
    from mithril.runtime.strategy import Strategy
    from mithril.runtime.strategy.difference import list_changes

    rows = list_changes(Strategy.load(before), Strategy.load(after))
    if as_json:
        return json.dumps(
            {"schema": JSON_SCHEMA, "strategy": [asdict(row) for row in rows]}, indent=2
        )
    return "\n".join(map(str, rows)) or "strategies say the same"


def _as_json(found: Difference) -> str:
    def rows(side: Sequence[tuple[Collective, int]]) -> list[dict[str, object]]:
        return [
            {
                "kind": row.kind, "axes": list(row.axes), "bytes": row.bytes, "times": row.times,
                "phase": row.phase, "value": row.cause.value, "consumer": row.cause.consumer,
                "source": row.source, "count": count,
            }
            for row, count in side
        ]  # fmt: skip

    def ops(side: Sequence[tuple[str, int]]) -> list[dict[str, object]]:
        return [{"op": op, "count": count} for op, count in side]

    document = {
        "schema": JSON_SCHEMA,
        "meshes": list(found.meshes),
        "tensors": [asdict(moved) for moved in found.tensors],
        "gone": rows(found.gone),
        "new": rows(found.new),
        "ops": {"gone": ops(found.ops_gone), "new": ops(found.ops_new)},
        "stages": [asdict(moved) for moved in found.stages],
        "schedules": list(found.schedules),
        "rewired": list(found.rewired),
        "bytes": [asdict(change) for change in found.bytes],
        "seconds": asdict(found.seconds),
        "memory": asdict(found.memory),
        "profiles": list(found.profiles),
    }
    return json.dumps(document, indent=2)
