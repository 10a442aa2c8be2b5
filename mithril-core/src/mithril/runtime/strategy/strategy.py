"""Strategy: how a model is split and run on a mesh, as plain data that can be kept in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mithril.files import replace_file
from mithril.option_checks import check_output
from mithril.runtime.strategy.data import StrategyData
from mithril.runtime.strategy.files import from_json, read_file, to_json
from mithril.runtime.strategy.text import describe


@dataclass(frozen=True, slots=True)
class Strategy(StrategyData):
    """How a model is split and run on a mesh: what `compile(partition_strategy=…)` takes.

    `ml.auto_tune` finds one, an editor or `dataclasses.replace` changes it.

    Args:
        mesh: size of each mesh axis, in order.
        parameters: shape of each parameter of the model that it is for.
        inputs: shape of each input that it was found for; other sizes may be passed.
        shardings: how parameters are split, by name; those of which nothing is said lie as the plan
            wants them.
        in_shardings: how inputs are split, by name.
        value_shardings: how values between layers are split, by name, as `model.shard` says it.
        stages: the stage of each layer, by path, or those of a `Repeat`, which is cut.
        axis: the mesh axis the stages go along; empty without stages.
        schedule: of the stages; empty for the default.
        microbatch_size: samples of a micro-batch, of each replica; None where a batch is not cut.
        accumulate: into how many micro-batches a batch is cut, without stages.
        zero: ZeRO's stage; 1 has an effect in a train step alone.
        zero_axes: mesh axes over which it splits.
        checkpointing: what the backward computes again, as `compile` takes it.
        context_parallel: what attention does where its sequence comes split; empty for what the
            layers say.
        auto_partition: for which objective the shardings of which nothing is said are searched when
            the model is compiled (`docs/search.md`); empty for no search.
        findings: what the search knew of it.

    >>> import mithril as ml
    >>> model = ml.Linear(4)
    >>> shapes = {"input": (64, 8)}
    >>> found = ml.auto_tune(
    ...     model, "h100-sxm", input_shapes=shapes, devices=2, strategy_space="data"
    ... )
    >>> found.mesh
    {'data': 2}
    """

    def save(self, path: str | Path) -> None:
        """Write it to a file, as JSON; all of the file is written, or nothing.

        Args:
            path: of the file.

        Raises:
            OptionError: there can be no file.
        """
        file, text = check_output("path", path), to_json(self)
        replace_file(file, lambda new: new.write_text(text, encoding="utf-8"), is_contended=True)

    @staticmethod
    def load(path: str | Path) -> Strategy:
        """Return the strategy in a file.

        Args:
            path: of the file.

        Raises:
            OptionError: it cannot be read, holds no strategy, or one of a newer version.
        """
        return Strategy(**read_file(path))

    def to_json(self) -> str:
        """Return it as JSON text."""
        return to_json(self)

    def explain(self) -> str:
        """Return a text: what it says, what that was predicted to cost, and what else would."""
        return describe(self)

    def __str__(self) -> str:
        return self.explain()

    @staticmethod
    def from_json(text: str) -> Strategy:
        """Return the strategy that a JSON text describes.

        Args:
            text: as `to_json` gives it.

        Raises:
            OptionError: it describes none, one of a newer version, or one with unknown fields.
        """
        return Strategy(**from_json(text))


__all__ = ["Strategy"]
