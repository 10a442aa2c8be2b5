"""Run one row of the matrix in this process: `python -m benchmarks.matrix.row ROW --times FILE`.

ROW is what `Row.dump` writes. Times, seconds of first calls and peak bytes go into the file.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from benchmarks.matrix.cases import Row
from benchmarks.matrix.contest import measure
from benchmarks.sides import Times, leave


def run(row: Row, seconds: float) -> Times:
    """Return what a row of one process measures."""
    contest = import_module(f"benchmarks.matrix.sides_{row.backend}").contest
    return measure(contest(row), seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the rounds that count")
    parser.add_argument("--times", required=True, help="the file that is written")
    given = parser.parse_args()
    row = Row.load(given.row)
    if row.backend == "torch" and row.ranks > 1:
        from benchmarks.matrix.sides_ranks import run_rank

        run_rank(row, given.seconds, given.times)
    else:
        leave(run(row, given.seconds), given.times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
