"""What a function was told: how arguments and results lie, what is given up, what a plan may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mithril.compiler import PlanOptions
from mithril.compiler.options import check_uneven
from mithril.compiler.plugin_passes import read_passes
from mithril.compiler.recompute_options import RecomputeOptions, read_recompute
from mithril.errors import GraphError, OptionError
from mithril.mesh import PartitionSpec, read_spec
from mithril.option_checks import check_flag
from mithril.runtime.array import ArrayBackend
from mithril.runtime.functional.arguments import Arguments, Choice, Form, Signature
from mithril.runtime.memory_planning import DYNAMIC, read_memory_planning
from mithril.runtime.patterns import Match, Patterns, match_patterns, read_patterns
from mithril.runtime.settings import Shardings, read_limit
from mithril.trees import shorten, spread

Specs = list[PartitionSpec | None]


class JitOptions(RecomputeOptions, total=False):
    """What `jit` is told; it says what each means."""

    backend: ArrayBackend | None
    in_shardings: object
    out_shardings: object
    donate: Choice
    static: Choice
    at_rest: Shardings
    uneven: str | None
    max_reshard_bytes: int | None
    partition_hooks: bool
    memory_planning: str | None
    passes: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionOptions:
    """What a function was told.

    Args:
        in_shardings: how arguments shall lie; of those kept at rest, how they are computed with.
        out_shardings: how results must leave.
        donated: the arguments that are given up.
        static: the arguments that are values of Python.
        at_rest: how arguments are kept between calls, by patterns of the names of their leaves.
        uneven: `pad` or `error`; None as the backend does.
        plan: the options of planning besides `uneven`.
        partition_hooks: whether it stands in ranges of the framework's profiler.
        memory_planning: `greedy` or `dynamic`: where results lie.
    """

    in_shardings: object = None
    out_shardings: object = None
    donated: Arguments = field(default_factory=Arguments)
    static: Arguments = field(default_factory=Arguments)
    at_rest: Patterns = field(default_factory=dict)
    uneven: str | None = None
    plan: PlanOptions = field(default_factory=PlanOptions)
    partition_hooks: bool = False
    memory_planning: str = DYNAMIC

    @staticmethod
    def read(signature: Signature, given: JitOptions) -> FunctionOptions:
        """Return what options mean for a function.

        Raises:
            OptionError: an argument is named that does not exist, or an option is of a wrong form.
            ShardingError: `at_rest` gives no specs.
        """
        uneven = given.get("uneven")
        donated = signature.select_arguments(given.get("donate", ()), "donate")
        static = signature.select_arguments(given.get("static", ()), "static")
        if donated.overlaps(static):
            raise OptionError(
                f"donate={given.get('donate')!r} and static={given.get('static')!r} name the same "
                f"argument; a value of Python has no memory to give up: leave it out of donate=…"
            )
        return FunctionOptions(
            in_shardings=given.get("in_shardings"),
            out_shardings=given.get("out_shardings"),
            donated=donated,
            static=static,
            at_rest=read_patterns(given.get("at_rest"), "at_rest of jit()"),
            uneven=None if uneven is None else check_uneven(uneven),
            plan=PlanOptions(
                max_reshard_bytes=read_limit(given.get("max_reshard_bytes")),
                recompute=read_recompute(given),
                passes=read_passes(given.get("passes", ())),
            ),
            partition_hooks=check_flag("partition_hooks", given.get("partition_hooks", False)),
            memory_planning=read_memory_planning(given.get("memory_planning")),
        )

    def specs(self, form: Form, function: str) -> Specs:
        """Return how each leaf shall lie, None for as it does.

        Raises:
            GraphError: `in_shardings` does not have the form of the arguments.
        """
        given = [item for item in form.positional if item[0] not in self.static]
        wanted = self.in_shardings
        if wanted is None or read_spec(wanted) is not None:
            given = list(form.arguments)
            prefixes = [wanted] * len(given)
        elif isinstance(wanted, list | tuple) and len(wanted) == len(given):
            prefixes = list(wanted)
        else:
            raise GraphError(
                f"in_shardings={shorten(wanted)} does not fit function '{function}'; give one P(…) "
                f"for all arguments, or a tuple with one entry for each of the {len(given)} by "
                f"position that are not static"
            )
        prefix_of = dict(zip((name for name, _ in given), prefixes, strict=True))
        return [
            spec
            for name, structure in form.arguments
            for spec in spread(prefix_of.get(name), structure, f"argument '{name}'")
        ]

    def rest_specs(self, form: Form, function: str) -> Sequence[Match | None]:
        """Return how each leaf is kept between calls, None for as it lies; numbers are not kept.

        A pattern is matched with the name of a leaf, `params.up.weight`, and with what stands
        behind the argument in it, `up.weight`.

        Raises:
            ShardingError: a pattern matches no leaf.
        """
        leaves = zip(form.leaf_names(), form.leaf_arguments(), form.leaf_numbers(), strict=True)
        called = [
            () if is_number else (name, name.removeprefix(f"{argument}."))
            for name, argument, is_number in leaves
        ]
        return match_patterns(self.at_rest, called, f"at_rest of function '{function}'")
