"""How long a search over all shardings takes: `auto_partition` of a GPT without any annotations.

24 blocks of width 1024 in a Python loop on meshes of one to three axes of 8, and one block in `Repeat`
96 times. Printed are seconds from the model to the plan, of which the search, what it found, what
nothing can be below, and the gap. Nothing is computed: devices are of the profile h100-sxm. Times are the
processor's, of this process alone.

With `--program` each case of `PROGRAMS` is solved twice, by elimination and by HiGHS as the integer program of
autoparallel (`benchmarks.search_program`), over the same candidates and prices. Exit code 1 says that their
costs differ by more than a millionth. Times are the clock's then.

    python -m benchmarks.search [--only TEXT] [--program [--limit SECONDS]]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from unittest.mock import patch

import mithril as ml
from mithril.cli.gpt import Sizes, gpt, transformer_block, with_loss
from mithril.plan import Plan
from mithril.runtime.planned import plan_backend
from mithril.sharding.budget import Limit, minimise_within
from mithril.sharding.eliminate import Answer, Table
from mithril.sharding.objective import PRICE_UNIT

from benchmarks.search_program import Solution, solve_program

WIDTH, HEADS, CONTEXT, VOCABULARY = 1024, 16, 512, 32000
SEQUENCES = 512
ONE, TWO, THREE = ml.Mesh(a=8), ml.Mesh(a=8, b=8), ml.Mesh(a=8, b=8, c=8)


def plan_loop(blocks: int, mesh: ml.Mesh) -> Plan:
    """Return the plan of a training step of blocks in a Python loop."""
    sizes = Sizes(blocks, WIDTH, HEADS, 4 * WIDTH, CONTEXT, SEQUENCES)
    return search(with_loss(gpt(VOCABULARY, sizes)), mesh, ("tokens", "target"))


def plan_repeat(blocks: int, mesh: ml.Mesh) -> Plan:
    """Return the plan of a training step of one block that is repeated."""
    sizes = Sizes(blocks, WIDTH, HEADS, 4 * WIDTH, CONTEXT, SEQUENCES)
    model = ml.Model(name="gpt")
    model |= ml.Embedding(VOCABULARY, WIDTH, name="embed")(input="tokens", output="embedded")
    model += ml.Repeat(transformer_block(sizes, "block"), blocks, name="blocks")
    model += ml.Linear(VOCABULARY, name="head")(output="logits")
    return search(with_loss(model), mesh, ("tokens", "target"))


def search(model: ml.Model, mesh: ml.Mesh, inputs: tuple[str, ...]) -> Plan:
    """Return the plan that is searched for."""
    tokens = ml.TensorSpec((SEQUENCES, CONTEXT), "int32")
    backend = plan_backend(mesh, "h100-sxm")
    shapes = dict.fromkeys(inputs, tokens)
    return ml.compile(model, backend, auto_partition=True, shapes=shapes).plan


CASES = {
    "24 blocks in a loop, one axis of 8": lambda: plan_loop(24, ONE),
    "24 blocks in a loop, two axes of 8": lambda: plan_loop(24, TWO),
    "96 blocks in Repeat, one axis of 8": lambda: plan_repeat(96, ONE),
    "96 blocks in Repeat, two axes of 8": lambda: plan_repeat(96, TWO),
    "1 block, three axes of 8": lambda: plan_loop(1, THREE),
    "24 blocks in a loop, three axes of 8": lambda: plan_loop(24, THREE),
    "96 blocks in Repeat, three axes of 8": lambda: plan_repeat(96, THREE),
}


PROGRAMS = {
    f"{blocks} block{'s' * (blocks > 1)}, {axes} ax{'es' if axes > 1 else 'is'} of 8": (
        blocks,
        mesh,
    )
    for axes, mesh, counts in ((1, ONE, (1, 2, 4, 8, 24)), (2, TWO, (1, 2, 4)), (3, THREE, (1,)))
    for blocks in counts
}
AGREE = 1e-6
"""Costs are equal that differ by no more than such a part."""
MILLISECONDS = PRICE_UNIT * 1e9
"""A millisecond in the unit of tables."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a search minimised, and what it found.

    Args:
        domains: number of values of each variable.
        tables: what is summed.
        limits: of memory.
        answer: what elimination found.
        seconds: that it took.
    """

    domains: Sequence[int]
    tables: Sequence[Table]
    limits: Sequence[Limit]
    answer: Answer
    seconds: float


def record_problem(make: Callable[[], object]) -> Problem:
    """Return the problem that a search solves first: of the whole graph, nothing taken to be hidden.

    Args:
        make: makes a plan by one search.
    """
    found: list[Problem] = []

    def minimise(
        domains: Sequence[int], tables: Sequence[Table], limits: list[Limit], **known: object
    ) -> Answer:
        del known  # each problem is solved by itself
        start = time.perf_counter()
        answer = minimise_within(domains, tables, limits)
        seconds = time.perf_counter() - start
        found.append(Problem(domains, tables, limits, answer, seconds))
        return answer

    searching = import_module("mithril.sharding.find")
    with patch.object(searching, "minimise_within", minimise):
        make()
    return found[0]


def compare_with_program(name: str, problem: Problem, limit: float) -> bool:
    """Print what both find and how long they take; return whether they agree.

    Args:
        name: of the case.
        problem: what is minimised.
        limit: seconds that HiGHS may take.
    """
    program = solve_program(problem.domains, problem.tables, problem.limits, limit)
    mine, theirs = problem.answer.cost / MILLISECONDS, program.cost / MILLISECONDS
    exact = (
        "" if problem.answer.is_exact else f", at least {problem.answer.bound / MILLISECONDS:.6f}"
    )
    print(f"{name}: {len(problem.domains)} variables, {len(problem.tables)} tables")
    print(f"  elimination      {problem.seconds:8.2f} s   {mine:14.6f} ms{exact}")
    print(
        f"  integer program  {program.build_seconds + program.solve_seconds:8.2f} s   "
        f"{theirs:14.6f} ms{describe_end(program)}",
        flush=True,
    )
    tolerance = AGREE * abs(problem.answer.cost)
    below = min(problem.answer.bound, problem.answer.cost) <= program.cost + tolerance
    if program.is_ended or not problem.answer.is_exact:
        return below
    return below and abs(program.cost - problem.answer.cost) <= tolerance


def describe_end(program: Solution) -> str:
    """Return the size of a program, the parts of its time, and whether that ended it."""
    size = f"{program.variables} variables, {program.rows} rows"
    parts = f"build {program.build_seconds:.2f} s, solve {program.solve_seconds:.2f} s"
    bound = f", ended by time, at least {program.bound / MILLISECONDS:.6f} ms"
    return f"; {size}; {parts}{bound * program.is_ended}"


def main() -> int:
    """Print the cases, and return 1 if the integer program finds something else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--program", action="store_true", help="beside an integer program")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that it may take")
    given = parser.parse_args()
    if given.program:
        cases = {name: case for name, case in PROGRAMS.items() if given.only in name}
        agree = [
            compare_with_program(
                name, record_problem(lambda case=case: plan_loop(*case)), given.limit
            )
            for name, case in cases.items()
        ]
        return int(not all(agree))
    for name, case in CASES.items():
        if given.only in name:
            start = time.process_time()
            found = case().search
            seconds = time.process_time() - start
            print(f"{name}: {seconds:.1f} s, of which the search {found.wall:.1f} s")
            print("\n".join(f"  {line}" for line in found.lines()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
