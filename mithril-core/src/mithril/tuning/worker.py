"""A process that measures plans: it opens a backend, runs them, and says how long that took.

It is told what to do by lines of JSON, and answers by lines. It ends when nobody is left to tell it
anything. What it prints besides goes to its standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mithril.engine.base import Engine
    from mithril.mesh import Mesh

Run = Callable[[int], list[float]]
"""Runs a plan so often, and returns the seconds of each time."""

WATCH_SECONDS = 0.5
"""How often it is looked whether the process that started this one is there."""


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    runs: dict[str, Run] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "plan" in asked:
                runs[asked["key"]] = run = _prepare(asked)
                run(1)  # compiles, and takes the memory that it will take
                answer: dict[str, Any] = {"ready": True}
            else:
                answer = {"seconds": runs[asked["key"]](asked["runs"])}
        except BaseException as error:  # out of memory is an answer, too
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _prepare(asked: dict[str, Any]) -> Run:
    import mithril.ops  # noqa: F401 - fills the registry of ops
    from mithril.mesh import Mesh
    from mithril.plan.serialize import plan_from_json
    from mithril.runtime.balancing.trial import make_arguments

    mesh = Mesh(asked["mesh"], order=asked["order"] or None)
    engine = _open(asked["backend"], mesh, json.dumps(asked["options"]))
    plan = plan_from_json(asked["plan"])  # with ops that came with the backend
    execute = engine.lower_plan(plan)
    arguments, handles = make_arguments(plan, np.random.default_rng(0)), []
    for port in plan.inputs:
        values = arguments[port.name]
        put = engine.on(port.sharding.mesh).put
        handles.append(put(port.type, port.sharding, lambda box, x=values: x[box]))  # type: ignore[misc]

    def run(times: int) -> list[float]:
        found = []
        for _ in range(times):
            start = time.perf_counter()
            made = execute(handles)
            engine.wait_for(made)
            found.append(time.perf_counter() - start)
            del made
        return found

    return run


@cache
def _open(backend: str, mesh: Mesh, options: str) -> Engine:
    """Return the engine of a backend, which plans of one mesh share."""
    from mithril.plugins.opening import open_engine

    return open_engine(backend, mesh, json.loads(options))


def _watch(parent: int) -> None:
    """End this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
