"""Many cases of an op in one program, which compiles in little more than the time of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mithril.engine import Engine, KernelNames
from mithril.ir import Builder, Graph, Op, Tensor
from mithril.testing.cases import Case
from mithril.testing.compare import describe_difference
from mithril.testing.evaluate import coarsest, evaluate, seeds, type_of
from mithril.testing.running import run_graph
from mithril.transform import cotangent_name, differentiate, gradient_of
from mithril.transform.expand import expand
from mithril.types import DType


def narrow(array: np.ndarray, engine: Engine) -> np.ndarray:
    """Return an array in the dtype that the engine has instead of one it lacks."""
    name = array.dtype.name
    if DType(name) in engine.dtypes:
        return array
    return array.astype(name.replace("64", "32"))


def narrow_op(op: Op, engine: Engine) -> Op:
    """Return an op that makes a dtype the engine has."""
    dtype = getattr(op, "dtype", None)
    if dtype is None or DType(dtype) in engine.dtypes:
        return op
    return replace(op, dtype=DType(dtype.replace("64", "32")))  # type: ignore[call-arg]


def arrays_in(case: Case, dtype: str | None = None) -> tuple[np.ndarray, ...]:
    """Return the operands of a case, floats in a dtype if one is given."""
    wanted = DType(dtype).numpy if dtype else None
    return tuple(a.astype(wanted) if wanted and a.dtype.kind == "f" else a for a in case.arrays)


class MergedCases:
    """Cases in one graph; inputs and outputs bear the name of their case, as `add-4.y0`.

    Args:
        engine: what runs them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.builder = Builder()
        self.results: dict[str, Tensor] = {}
        self.values: dict[str, np.ndarray] = {}
        self.arrays: dict[str, list[np.ndarray]] = {}
        """The operands of the case that an output belongs to: they say how precise it is."""
        self.differentiable: tuple[list[str], list[str]] = ([], [])
        """The outputs that gradients enter by, and the inputs whose gradients are wanted."""

    def add(self, case: Case, dtype: str | None = None, *, has_gradient: bool = False) -> None:
        """Add the op of a case, its floats in `dtype` if one is given, and maybe its gradient."""
        name = f"{case} in {dtype}" if dtype else str(case)
        arrays = [narrow(a, self.engine) for a in arrays_in(case, dtype)]
        values = {f"{name}.x{i}": array for i, array in enumerate(arrays)}
        inputs = [self.builder.input(type_of(a), n) for n, a in values.items()]
        made = self.builder.apply(narrow_op(case.op, self.engine), *inputs)
        results = {f"{name}.y{i}": y for i, y in enumerate(made)}
        self.values |= values
        self.results |= results
        self.arrays |= dict.fromkeys(results, arrays)
        if has_gradient:
            outputs, wanted = self.differentiable
            outputs += [n for n, y in results.items() if y.dtype.is_float]
            floats = [n for n, a in values.items() if type_of(a).dtype.is_float]
            wanted += floats
            self.arrays |= {gradient_of(n): arrays for n in floats}

    def graph(self) -> tuple[Graph, dict[str, np.ndarray]]:
        """Return all cases and their gradients, and values for the inputs."""
        graph = self.builder.build(self.results)
        outputs, wanted = self.differentiable
        if not wanted:
            return graph, self.values
        given = {cotangent_name(name): seeds(graph)[name] for name in outputs}
        return differentiate(graph, outputs, wanted), {**self.values, **given}

    def run(self) -> dict[str, str]:
        """Return what is wrong of the cases on the engine, by the names of results; empty if none.

        The program runs once more, with operands from their other end, before results are read:
        a kernel that returns one buffer at every call has then written over them.

        Raises:
            BackendError: an op has neither a kernel nor an expansion.
        """
        graph, values = self.graph()
        names = KernelNames(self.engine.name, self.engine.kernels)
        then = {name: np.flip(value) for name, value in values.items()}  # as good as those
        found = run_graph(self.engine, expand(graph, names), values, then)
        return self.compare(found, evaluate(graph, values))

    def compare(
        self, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
    ) -> dict[str, str]:
        """Return the differences of all results that differ."""
        assert set(found) == set(expected) == set(self.arrays)
        differences = {
            name: describe_difference(found[name], value, coarsest(*self.arrays[name], value))
            for name, value in expected.items()
        }
        return {name: text for name, text in differences.items() if text}
