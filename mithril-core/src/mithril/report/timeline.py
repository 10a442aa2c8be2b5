"""A timeline as text: a row for each device, time from left to right."""

from __future__ import annotations

from mithril.cost.timeline import Timeline

COLUMNS = 100
"""How wide a picture may be before columns stand for more time."""


def draw(timeline: Timeline) -> str:
    """Return the picture of a schedule that was run on paper, with the figures above it."""
    starts, ends = timeline.starts, timeline.ends
    durations = [ends[a] - starts[a] for a in starts if ends[a] > starts[a]]
    several = timeline.schedule.stages > len(timeline.schedule.rows)
    names = {a: str(a) if several else str(a)[len(str(a.stage)) :] for a in starts}
    widest = max(map(len, names.values()), default=1) + 1
    unit = max(min(durations, default=1.0), timeline.makespan * widest / COLUMNS)
    lines = [
        f"{timeline.schedule.name}: {len(timeline.schedule.rows)} devices, "
        f"{timeline.schedule.microbatches} micro-batches, bubble {100 * timeline.bubble:.1f} %, "
        f"activations of at most {max(timeline.peaks, default=0)} micro-batches"
    ]
    for device, row in enumerate(timeline.schedule.rows):
        line = ""
        for action in row:
            column = round(starts[action] / unit) * widest
            width = max(round((ends[action] - starts[action]) / unit) * widest, widest)
            line = line.ljust(column, " ") + names[action].ljust(width, "·")[: width - 1] + " "
        lines.append(f"{device:>3} {line.rstrip()}")
    return "\n".join(lines)
