"""The schedules that are known by name.

GPipe (Huang et al. 2019) runs all forwards, then all backwards. 1F1B (Narayanan et al. 2019,
PipeDream-Flush) starts backwards as soon as it can, and so holds the activations of at most as many
micro-batches as there are stages. Interleaved 1F1B (Narayanan et al. 2021, Megatron-LM) gives each
device several chunks of the model. ZB-H1 (Qi et al. 2023) splits backwards into the gradients of
inputs, which others wait for, and of weights, which fill what would be idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mithril.errors import MithrilError, PlanError, kind_of, listing, nearest
from mithril.plan.schedule import Action, Schedule, Work, read_table
from mithril.plugins.extensions import Extension, Kind, find_extension, list_namespaces

F, B, INPUT, WEIGHT = Work.forward, Work.backward, Work.input_gradient, Work.weight_gradient
Row = tuple[Action, ...]


def make(name: str, devices: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return a schedule by name.

    Args:
        name: one of `KNOWN`, or `NAMESPACE.NAME` of a plugin.
        devices: how many devices the pipeline has.
        microbatches: into how many parts a batch is cut.
        chunks: how many stages each device has; more than one for `interleaved`, and for those of
            plugins.

    Raises:
        BackendError: it is of a plugin that cannot be used.
        OptionError: it is of a plugin that brings none of the name.
        PlanError: there is no such schedule, or it does not exist for these numbers.

    >>> print(make("1f1b", 2, 3))
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    check_name(name)
    for what, number in (("devices", devices), ("micro-batches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise PlanError(f"a pipeline of {number} {what} does nothing; give at least 1")
    if chunks > 1 and name != "interleaved" and not _is_of_plugin(name):
        raise PlanError(
            f"schedule '{name}' has one chunk a device, not {chunks}; use 'interleaved'"
        )
    if _is_of_plugin(name):
        return _make_by_plugin(find_extension(name, Kind.schedule), devices, microbatches, chunks)
    return Schedule(name, KNOWN[name](devices, microbatches, chunks))


def check_name(name: str) -> None:
    """Raise unless there is a schedule of a name.

    Raises:
        BackendError: it is of a plugin that cannot be used.
        OptionError: it is of a plugin that brings none of the name.
        PlanError: there is none.
    """
    if _is_of_plugin(name):
        find_extension(name, Kind.schedule)
    elif name not in KNOWN:
        raise PlanError(
            f"pipeline schedule '{name}' does not exist{nearest(name, KNOWN)}; known: "
            f"{listing(KNOWN)}, tables in files whose names end in .csv, and those of plugins, "
            f"such as 'acme.zigzag'"
        )


def _is_of_plugin(name: str) -> bool:
    namespace, dot, _ = name.partition(".")
    return bool(dot) and namespace in list_namespaces()


def _make_by_plugin(made: Extension, devices: int, microbatches: int, chunks: int) -> Schedule:
    """Return what a plugin's function makes; where it is used, it is checked as files are."""
    try:
        lines = made.load()(devices, microbatches, chunks)
    except MithrilError:
        raise
    except Exception as error:
        raise PlanError(
            f"schedule '{made.name}' of {made.package} failed for {devices} devices, "
            f"{microbatches} micro-batches and {chunks} chunks; {type(error).__name__}: {error}; "
            f"choose another one"
        ) from error
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise PlanError(
            f"schedule '{made.name}' of {made.package} returned {kind_of(lines)}; it has to be a "
            f"list of texts, a line for each device, such as '0F0,0F1,0B0,0B1'"
        )
    return read_table(made.name, lines)


def _gpipe(devices: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    every = range(microbatches)
    return tuple(
        (*(Action(d, F, m) for m in every), *(Action(d, B, m) for m in every))
        for d in range(devices)
    )


def _one_forward_one_backward(devices: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    every = range(microbatches)
    return tuple(
        _alternating(
            [Action(d, F, m) for m in every],
            [Action(d, B, m) for m in every],
            devices - d - 1,
        )
        for d in range(devices)
    )


def _interleave(devices: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Micro-batches go through a chunk in groups as large as the pipeline."""
    if microbatches % devices:
        below = microbatches // devices * devices
        legal = f"{below} or {below + devices}" if below else f"{devices}"
        raise PlanError(
            f"schedule 'interleaved' on {devices} devices needs a multiple of {devices} "
            f"micro-batches, not {microbatches}; use {legal}"
        )
    rows, order = [], list(_by_groups(devices, microbatches, chunks))
    for d in range(devices):
        forward = [Action(chunk * devices + d, F, m) for chunk, m in order]
        backward = [Action((chunks - 1 - chunk) * devices + d, B, m) for chunk, m in order]
        ahead = devices - d - 1 if chunks == 1 else 2 * (devices - d - 1) + (chunks - 1) * devices
        rows.append(_alternating(forward, backward, ahead))
    return tuple(rows)


def _by_groups(devices: int, microbatches: int, chunks: int) -> Iterator[tuple[int, int]]:
    for first in range(0, microbatches, devices):
        for chunk in range(chunks):
            yield from ((chunk, m) for m in range(first, first + devices))


def _alternating(forward: list[Action], backward: list[Action], ahead: int) -> Row:
    """Return some forwards ahead, then one forward and one backward in turn, then the rest."""
    ahead = min(ahead, len(forward))
    row = forward[:ahead]
    for number, action in enumerate(forward[ahead:]):
        row += [action, backward[number]]
    return (*row, *backward[len(forward) - ahead :])


def _zero_bubble(devices: int, microbatches: int, chunks: int) -> tuple[Row, ...]:
    """Step by step, all pieces of work taking as long."""
    rows: list[list[Action]] = [[] for _ in range(devices)]
    counts = [dict.fromkeys((F, INPUT, WEIGHT), 0) for _ in range(devices)]
    while any(count[WEIGHT] < microbatches for count in counts):
        works = [_next(d, counts, microbatches) for d in range(devices)]
        for d, work in enumerate(works):
            if work is not None:
                rows[d].append(Action(d, work, counts[d][work]))
                counts[d][work] += 1
    return tuple(map(tuple, rows))


def _next(d: int, counts: Sequence[Mapping[Work, int]], microbatches: int) -> Work | None:
    """Return what a device of ZB-H1 does next: weights' gradients only when nothing else can be.

    It is as many forwards ahead of its backwards as in 1F1B, and holds what 1F1B's first device
    holds: as many micro-batches as there are devices.
    """
    own, devices = counts[d], len(counts)
    arrived = counts[d - 1][F] if d else microbatches
    room = own[F] - own[INPUT] < devices - d and own[F] - own[WEIGHT] < devices
    if own[F] < arrived and room:
        return F
    returned = counts[d + 1][INPUT] if d + 1 < devices else microbatches
    if own[INPUT] < min(own[F], returned):
        return INPUT
    return WEIGHT if own[WEIGHT] < own[INPUT] else None


KNOWN: dict[str, Callable[[int, int, int], tuple[Row, ...]]] = {
    "gpipe": _gpipe, "1f1b": _one_forward_one_backward, "interleaved": _interleave,
    "zb-h1": _zero_bubble,
}  # fmt: skip
"""What makes the rows of a schedule from the numbers of devices, micro-batches and chunks."""
