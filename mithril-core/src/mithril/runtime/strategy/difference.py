"""What one strategy says otherwise than another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from mithril.runtime.strategy.data import StrategyData

NOTHING = "nothing"
_MAPPINGS = {
    "shardings": "parameter",
    "in_shardings": "input",
    "value_shardings": "value",
    "stages": "stage of",
    "parameters": "shape of parameter",
    "inputs": "shape of input",
}
_FOUND = ("seconds", "memory", "bytes", "measured")
"""Of the findings, those that are compared."""


@dataclass(frozen=True, slots=True)
class StrategyChange:
    """One thing that two strategies say otherwise.

    Args:
        what: it is: an option, or a tensor or layer.
        before: what the one says, as text.
        after: what the other says.
    """

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"  {self.what}: {self.before} -> {self.after}"


def list_changes(before: StrategyData, after: StrategyData) -> list[StrategyChange]:
    """Return what two strategies say otherwise, options first, what they were predicted to last.

    Args:
        before: the one.
        after: the other.
    """
    rows = [*_compare_options(before, after)]
    for name, kind in _MAPPINGS.items():
        rows += _compare_mappings(kind, getattr(before, name), getattr(after, name))
    for name in _FOUND:
        one, other = getattr(before.findings, name), getattr(after.findings, name)
        if one != other:
            rows.append(StrategyChange(f"found {name}", str(one), str(other)))
    return rows


def _compare_options(before: StrategyData, after: StrategyData) -> Iterator[StrategyChange]:
    for item in fields(StrategyData):
        if item.name not in (*_MAPPINGS, "findings"):
            one, other = getattr(before, item.name), getattr(after, item.name)
            if one != other or (item.name == "mesh" and list(one) != list(other)):
                yield StrategyChange(item.name, str(one), str(other))


def _compare_mappings(
    kind: str, before: Mapping[str, object], after: Mapping[str, object]
) -> list[StrategyChange]:
    names = dict.fromkeys((*before, *after))
    pairs = ((name, before.get(name, NOTHING), after.get(name, NOTHING)) for name in names)
    return [
        StrategyChange(f"{kind} '{name}'", str(one), str(other))
        for name, one, other in pairs
        if one != other
    ]


__all__ = ["StrategyChange", "list_changes"]
