"""Every op of the core on one device: all cases, several dtypes, and the gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from mithril.engine import Engine, KernelNames
from mithril.errors import BackendError, FaultyBackendError
from mithril.ir import Op
from mithril.testing.cases import CASES, Case, is_first_of_its_op, with_floats
from mithril.testing.check import (
    Check,
    Mismatch,
    Missing,
    Outcome,
    Status,
    describe_error,
    find_cause,
)
from mithril.testing.compare import describe_difference
from mithril.testing.evaluate import apply, coarsest, graph_of, inputs_of, type_of
from mithril.testing.levels import Level
from mithril.testing.merged import MergedCases, arrays_in, narrow, narrow_op
from mithril.testing.needed import list_layers_with
from mithril.testing.running import run_graph
from mithril.testing.smallest import Arrays, Difference, Failing, shrink
from mithril.testing.target import Target
from mithril.transform.expand import expand
from mithril.types import DType

OPS = sorted({case.op.name for case in CASES})
LAST = frozenset({"max_pool_gradient"})
"""Gradient ops that are the end of the line: they refuse to be differentiated again."""
DIFFERENTIABLE = [case for case in CASES if with_floats(case) and case.op.name not in LAST]
NARROW = ("bfloat16", "float16")
FLOAT64_ALONE = (
    "wrong in float64 alone, right in float32; a library that computes float64 in less is better "
    "without it in Engine.dtypes"
)
"""The cause of a failure that other float dtypes do not have."""
Wanted = tuple[Case, str | None]
"""A case, and the dtype of its floats; None for float64, as it is written."""


def list_op_checks() -> Iterator[Check]:
    """Yield a check for every op, and one for the gradients of every op that has some."""
    for name in OPS:
        yield Check("ops", name, partial(check_op, name), Level.smoke)
    for name in sorted({case.op.name for case in DIFFERENTIABLE}):
        yield Check("gradients", name, partial(check_gradients, name))


def choose_cases(name: str, level: Level, engine: Engine) -> list[Wanted]:
    """Return the cases of an op that a level tries, and in which dtypes.

    Args:
        name: of the op.
        level: `smoke` has the first case of each kind in float32; `basic` all of them as they are
            written, and the first ones in float32 and the 16-bit floats; `full` all in all dtypes.
        engine: what it has no dtype for is left out.
    """
    cases = [case for case in CASES if case.op.name == name]
    floating = [case for case in cases if any(a.dtype.kind == "f" for a in case.arrays)]
    first = [case for case in floating if is_first_of_its_op(case)]
    if level is Level.smoke:
        return [(case, "float32") for case in cases if is_first_of_its_op(case)]
    chosen: list[Wanted] = [(case, None) for case in cases]
    for dtype in ("float32", *NARROW):
        some = floating if level is Level.full else first[:1]
        chosen += [(case, dtype) for case in some if DType(dtype) in engine.dtypes]
    return chosen


def check_op(name: str, target: Target, level: Level) -> Outcome:
    """Compare all cases of an op with NumPy; one that the engine has no kernel for is expanded."""
    engine = target.engine
    chosen = choose_cases(name, level, engine)
    is_own = name in engine.kernels
    try:
        wrong = _run(engine, chosen, has_gradient=False)
    except FaultyBackendError:  # a kernel of its own, or of what the op is expanded into
        raise
    except BackendError as error:
        if is_own:
            raise
        raise Missing(f"{error}{_say_needed(name)}") from None
    except Exception as error:
        if not is_own and has_no_expansion(name, engine):
            raise Missing(f"neither a kernel nor an expansion{_say_needed(name)}") from None
        raise _explain(name, engine, chosen, _say_raised(error)) from None
    if wrong:
        raise _explain(name, engine, chosen, Difference("; ".join(wrong.values())))
    note = f"{len(chosen)} case{'s' * (len(chosen) > 1)}"
    return Outcome(Status.ok if is_own else Status.expanded, note)


def check_gradients(name: str, target: Target, level: Level) -> Outcome:
    """Compare the gradients of the cases of an op with NumPy's of the same graph."""
    cases = [case for case in DIFFERENTIABLE if case.op.name == name]
    if level is not Level.full:
        cases = [case for case in cases if is_first_of_its_op(case)] or cases[:1]
    engine = target.engine
    wrong = _run(engine, [(case, None) for case in cases], has_gradient=True)
    if wrong:
        name, text = next(iter(wrong.items()))
        narrow = [(case, "float32") for case in cases]
        is_wide = DType.float64 in engine.dtypes and not _run(engine, narrow, has_gradient=True)
        raise Mismatch(f"{len(wrong)} wrong; {name}: {text}", FLOAT64_ALONE if is_wide else "")
    return Outcome(note=f"{len(cases)} case{'s' * (len(cases) > 1)}")


def _run(engine: Engine, chosen: Iterable[Wanted], *, has_gradient: bool) -> dict[str, str]:
    merged = MergedCases(engine)
    for case, dtype in chosen:
        merged.add(case, dtype, has_gradient=has_gradient)
    return merged.run()


def _explain(name: str, engine: Engine, chosen: list[Wanted], together: Difference) -> Mismatch:
    """Say which cases of an op fail one by one, and the smallest operands that do."""
    judge = partial(judge_op, engine)
    failing, good = [], set()
    for case, dtype in chosen:
        arrays = tuple(narrow(a, engine) for a in arrays_in(case, dtype))
        op = narrow_op(case.op, engine)
        difference = judge(op, arrays)
        if difference is not None:
            failing.append(Failing(op, arrays, difference))
        else:
            good.add(_dtype_of(op, arrays))
    if not failing:
        return Mismatch(
            f"each case of {name} is right alone, and all in one program are not: {together.text}",
            together.cause,
        )
    is_wide = {_dtype_of(found.op, found.arrays) for found in failing} == {DType.float64}
    least = min(failing, key=lambda found: sum(array.size for array in found.arrays))
    cause = FLOAT64_ALONE if is_wide and DType.float32 in good else least.difference.cause
    share = f"{len(failing)} of {len(chosen)} cases: "
    return Mismatch(share + str(shrink(least, judge)), cause)


def _dtype_of(op: Op, arrays: Arrays) -> DType:
    """Return the dtype that says how precise a case is; an op without operands has its results'."""
    return coarsest(*(arrays or apply(op)))


def judge_op(engine: Engine, op: Op, arrays: Arrays) -> Difference | None:
    """Return what is wrong of an op on operands, or the error that it ends in; None if right."""
    graph = graph_of(op, [type_of(array) for array in arrays])
    try:
        graph = expand(graph, KernelNames(engine.name, engine.kernels))
        found = run_graph(engine, graph, inputs_of(arrays))
    except Exception as error:  # whatever a plugin raises
        return _say_raised(error)
    for number, expected in enumerate(apply(op, *arrays)):
        text = describe_difference(found[f"y{number}"], expected, coarsest(*arrays, expected))
        if text:
            return Difference(text)
    return None


def _say_raised(error: Exception) -> Difference:
    return Difference(describe_error(error), find_cause(error))


def has_no_expansion(name: str, engine: Engine) -> bool:
    """Return whether an op that the engine has no kernel for cannot be expanded either."""
    case = next(case for case in CASES if case.op.name == name)
    graph = graph_of(case.op, [type_of(array) for array in case.arrays])
    try:
        expand(graph, KernelNames(engine.name, engine.kernels))
    except BackendError:
        return True
    return False


def _say_needed(name: str) -> str:
    layers = list_layers_with(name)
    return f"; needed by {', '.join(layers)}" if layers else ""
