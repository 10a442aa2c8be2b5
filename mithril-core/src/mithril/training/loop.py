"""train: take a batch, run a step, say how it goes; nothing that ten lines of one's own do not do.

A step is any function of a state and a batch that returns a state and metrics. Metrics stay on the
devices, which run ahead, until a row of the log needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from mithril.checkpoints import save as save_tree
from mithril.checkpoints.saving import check_save
from mithril.data import Batches
from mithril.data.order import read_count
from mithril.data.sources import find_length
from mithril.errors import OptionError, ShapeError, kind_of, warn
from mithril.keywords import checked_keywords
from mithril.option_checks import check_flag
from mithril.runtime.processes import find_place
from mithril.training.history import RATE, SECONDS, STEP, End, History, fetch
from mithril.training.interrupt import Interrupt, watch_interrupts
from mithril.training.logs import Log, LogPath, list_paths, open_logs
from mithril.training.progress import Progress, open_progress
from mithril.training.timing import Timer, count_samples

Step = Callable[[Any, Any], tuple[Any, Mapping[str, Any]]]
Evaluate = Callable[[Any], Mapping[str, Any]]
Callback = Callable[[int, Any, Mapping[str, Any]], object]
EVALUATED = "evaluate/"
_NONE = object()


class Trained(NamedTuple):
    """What `ml.train` returns.

    Args:
        state: after the last step.
        history: what was logged.
    """

    state: Any
    history: History


@dataclass(frozen=True)
class Options:
    """What a training does besides its steps; see `train`."""

    steps: int | None
    log_every: int
    evaluate: Evaluate | None
    evaluate_every: int | None
    callbacks: tuple[Callback, ...]
    save: str | os.PathLike[str] | None
    save_every: int | None


@checked_keywords()
def train(
    step: Step,
    state: Any,
    batches: Iterable[Any],
    *,
    steps: int | None = None,
    start: int = 0,
    log: LogPath | Sequence[LogPath] | None = None,
    log_every: int = 10,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    save: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    progress: bool = True,
) -> Trained:
    """Train: run a step on one batch after the other.

    Ctrl-C ends a training of one process after the step that is under way: it is saved and returned
    as at any other end, and `history.end` is `"interrupt"`. A second one ends it at once.

    Args:
        step: `state, metrics = step(state, batch)`; metrics are numbers and arrays of one element
            by name, which are read in the first step, to see that they are, and in logged ones.
        state: before the first step; the step may give it up.
        batches: such as `ml.data.batches` returns; any iterable.
        steps: the number of the last step; None trains until the batches end.
        start: how many steps were done before: numbers of steps go on from there.
        log: a path that ends in `.csv`, a directory (`"runs/"`) for TensorBoard, or several. With
            `start`, rows of a CSV file up to there are kept.
        log_every: steps from row to row; the last step has one, too.
        evaluate: `metrics = evaluate(state)`, logged as `evaluate/…` after the last step, and
        evaluate_every: after every so many.
        callbacks: functions of the number of the step, the state and the metrics, after each step;
            one that returns True, also as an array of one truth value, ends the training.
        save: a directory for `ml.save`: `{"state": …, "step": …, "batches": batches.state()}`
            after the last step, before that is evaluated and logged, and
        save_every: after every so many.
        progress: whether it shows how far it is: a bar on a terminal, else a line for each row; in
            a job, in process 0.

    Returns:
        The last state, and the history.

    Raises:
        OptionError: an option has a value that is none of its own, or the step returns something
            else.
        CheckpointError: the state cannot be saved, which is seen before the first step.

    >>> def step(state, batch):
    ...     return state + batch, {"loss": 1 / (state + 1)}
    >>> state, history = train(step, 0, [1, 1, 1, 1], log_every=2, progress=False)
    >>> state, history["loss"]
    (4, {2: 0.5, 4: 0.25})
    """
    start = read_count(start, "start", 0, "steps that are done")
    last = None if steps is None else read_count(steps, "steps", 1, "steps")
    _check_end(last, start, batches)
    options = Options(
        last,
        read_count(log_every, "log_every", 1, "steps"),
        evaluate,
        _read_every(evaluate_every, "evaluate_every", "evaluate", evaluate),
        _read_callbacks(callbacks),
        save,
        _read_every(save_every, "save_every", "save", save),
    )
    _check_functions(step, options)
    is_main, paths = find_place()[0] == 0, list_paths(log)
    if save is not None:
        _check_save(save, state, paths)
    shows_progress = check_flag("progress", progress) and is_main
    left = _count_left(batches)
    known = [n for n in (last, None if left is None else start + left) if n is not None]
    shown = min(known, default=None)
    with ExitStack() as stack:
        logs = open_logs(paths if is_main else [], start)
        shows = stack.enter_context(open_progress(shows_progress, start, shown))
        interrupt = stack.enter_context(watch_interrupts())
        loop = _Loop(step, state, batches, start, shown, options, logs, shows, interrupt)
        return loop.run()


def _count_left(batches: Iterable[Any]) -> int | None:
    """Return how many batches a loop will give, None if nobody knows."""
    return batches.steps_left if isinstance(batches, Batches) else find_length(batches)


def _check_save(save: object, state: object, logs: Sequence[str]) -> None:
    """Raise unless a state can be saved there, before hours of training show it.

    Raises:
        CheckpointError: the path is none of a directory, it holds something else, or a leaf of the
            state is nothing that is saved.
        OptionError: logs go to the same directory.
    """
    directory = check_save(save, {"state": state}).resolve()
    for log in logs:
        path = Path(log).resolve()
        if directory in (path, *path.parents):
            raise OptionError(
                f"save={str(save)!r} is where log={log!r} is written; give a checkpoint a "
                f"directory of its own"
            )


@dataclass
class _Loop:
    """A training under way."""

    step: Step
    state: Any
    batches: Iterable[Any]
    number: int
    shown: int | None
    options: Options
    logs: list[Log]
    progress: Progress
    interrupt: Interrupt
    position: Mapping[str, Any] | None = None
    rows: list[dict[str, float]] = field(default_factory=list)
    latest: dict[str, int] = field(default_factory=dict)
    timer: Timer = field(default_factory=Timer)

    def run(self) -> Trained:
        """Train to the end."""
        begin = self.number
        iterator = iter(self.batches)
        with ExitStack() as stack:
            if iterator is not self.batches and hasattr(iterator, "close"):
                stack.enter_context(closing(iterator))  # type: ignore[type-var]
            end, metrics = self._go(iterator)
        if self.number > begin:
            self._close_step(metrics, is_last=True)
        if end == "batches" and self.number == begin and isinstance(self.batches, Batches):
            warn(
                f"batches have none left after step {self.number}: they were restored behind "
                f"their last one; raise epochs= to go on"
            )
        elif end == "batches" and self.options.steps is not None:
            warn(
                f"batches ended after step {self.number} of {self.options.steps}; give more of "
                f"them, such as epochs=None"
            )
        return Trained(self.state, History(tuple(self.rows), self.number, self.timer.seconds, end))

    def _go(self, iterator: Iterator[Any]) -> tuple[End, Mapping[str, Any]]:
        """Run steps; return why they ended, and the metrics of the last one."""
        metrics: Mapping[str, Any] = {}
        while self.number != self.options.steps:
            if self.interrupt.is_asked:
                return "interrupt", metrics
            self.timer.begin_step()
            with self.timer.measure():
                batch = next(iterator, _NONE)
                if batch is _NONE:
                    return "batches", metrics
                self.state, metrics = _read_result(self.step(self.state, batch))
            if isinstance(self.batches, Batches) and self.options.save is not None:
                self.position = self.batches.state()  # behind the end the next loop would begin
            if not self.timer.steps:
                fetch(metrics)  # what cannot be logged is refused now, not in the first logged step
            self.number += 1
            self.timer.count(count_samples(batch))
            self.progress.advance(self.number)
            self._close_step(metrics, is_last=self.number == self.shown)
            calls = self.options.callbacks
            answers = [_read_answer(call(self.number, self.state, metrics)) for call in calls]
            if any(answers):
                return "callback", metrics
        return "steps", metrics

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.number % every == 0

    def _is_new(self, what: str) -> bool:
        """Return whether something was not done after this step before; from now on it was."""
        is_new = self.latest.get(what) != self.number
        self.latest[what] = self.number
        return is_new

    def _close_step(self, metrics: Mapping[str, Any], *, is_last: bool) -> None:
        """Save where that is due, and add a row where one is due.

        It is saved before anything is evaluated or written, and whether or not metrics are numbers:
        what goes wrong there loses no state.
        """
        saves = is_last or self._is_due(self.options.save_every)
        logs = (is_last or self._is_due(self.options.log_every)) and self._is_new("log")
        row: dict[str, float] = {}
        try:
            if logs:  # before it is saved, since it waits for the devices, which the rate counts
                with self.timer.measure():
                    row |= fetch(metrics)
        except (OptionError, ShapeError):  # after others, such as Ctrl-C, a save may wait for ever
            self._save(saves)
            raise
        self._save(saves)
        if logs:
            rate = self.timer.take_rate()
            row |= {} if rate is None else {RATE: rate}
        evaluate = self.options.evaluate
        evaluates = is_last or self._is_due(self.options.evaluate_every)
        if evaluate is not None and evaluates and self._is_new("evaluate"):
            row |= fetch(_check_metrics(evaluate(self.state), "evaluate"), EVALUATED)
        if row or logs:
            self._write({STEP: self.number, **row, SECONDS: self.timer.seconds})

    def _write(self, row: dict[str, float]) -> None:
        self.rows.append(row)
        for log in self.logs:
            log.write(row)
        left = None if self.shown is None else self.shown - self.number
        self.progress.show(row, self.timer.predict(left))

    def _save(self, is_due: bool) -> None:
        if not is_due or self.options.save is None or not self._is_new("save"):
            return
        tree = {"state": self.state, "step": self.number}
        if self.position is not None:
            tree["batches"] = self.position
        save_tree(self.options.save, tree)


def _read_result(result: object) -> tuple[Any, Mapping[str, Any]]:
    """Return state and metrics.

    Raises:
        OptionError: a step returned something else.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise OptionError(
            f"step returned {kind_of(result)}; a step of ml.train returns (state, metrics)"
        )
    return result[0], _check_metrics(result[1], "step")


def _read_answer(answer: object) -> bool:
    """Return whether what a callback returned ends the training: a truth value that is true.

    Raises:
        OptionError: it is an array of several.
    """
    dtype = str(getattr(answer, "dtype", "")).rpartition(".")[2]  # torch.bool, mlx.core.bool
    if isinstance(answer, bool) or dtype != "bool":
        return answer is True
    shape = tuple(getattr(answer, "shape", ()))
    if prod(shape) != 1:
        raise OptionError(
            f"callback returned truth values of shape {shape}; return one, such as x.any(), to end "
            f"the training or go on"
        )
    return bool(answer)


def _check_metrics(metrics: object, what: str) -> Mapping[str, Any]:
    if not isinstance(metrics, Mapping):
        raise OptionError(
            f"{what} returned {kind_of(metrics)} as metrics; give a dict, such as {{'loss': loss}}"
        )
    return metrics


def _check_end(steps: int | None, start: int, batches: object) -> None:
    """Raise unless a training ends, and not before it begins.

    Raises:
        OptionError: it does not.
    """
    if not isinstance(batches, Iterable):
        raise OptionError(
            f"batches are {kind_of(batches)}; give what ml.data.batches returns, or an iterable"
        )
    if steps is None and isinstance(batches, Batches) and batches.is_endless:
        raise OptionError("training would never end: steps=None, epochs=None; give one of them")
    if steps is not None and start > steps:
        raise OptionError(
            f"start={start} is behind steps={steps}, the last step; give a larger number of steps"
        )


def _read_callbacks(given: object) -> tuple[Callback, ...]:
    """Return the functions that are called after each step.

    Raises:
        OptionError: they are no list of them.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(
            f"callbacks are {kind_of(given)}; give a list of functions of the number of the step, "
            f"the state and the metrics: callbacks=[log]"
        )
    return tuple(given)


def _check_functions(step: object, options: Options) -> None:
    """Raise unless what is called can be called.

    Raises:
        OptionError: something cannot.
    """
    named = [("step", step), *(("callback", call) for call in options.callbacks)]
    for what, function in [*named, ("evaluate", options.evaluate)]:
        if not callable(function) and not (what == "evaluate" and function is None):
            raise OptionError(f"{what} is {kind_of(function)}, which is no function; give one")


def _read_every(given: int | None, option: str, needs: str, other: object) -> int | None:
    """Return a number of steps, which goes with another option.

    Raises:
        OptionError: it is none, or the other option is not given.
    """
    if given is None:
        return None
    if other is None:
        raise OptionError(f"{option}={given!r} is given without {needs}=; give both")
    return read_count(given, option, 1, "steps")


__all__ = ["Trained", "train"]
