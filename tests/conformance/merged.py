"""Many cases of an op in one program, which compiles in little more than the time of one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mithril.engine import Engine
from mithril.ir import Builder, Graph, Tensor
from mithril.testing.cases import Case
from mithril.testing.evaluate import assert_close, coarsest, evaluate, seeds, type_of
from mithril.transform import cotangent_name, differentiate, gradient_of

from tests.conformance.engines import held, narrowed, run
from tests.ops.test_gradients import arrays_for


class MergedCases:
    """Cases in one graph; inputs and outputs bear the name of their case, as `add-4.y0`."""

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
        arrays = [narrowed(a, self.engine) for a in arrays_for(case, dtype)]
        values = {f"{name}.x{i}": array for i, array in enumerate(arrays)}
        inputs = [self.builder.input(type_of(a), n) for n, a in values.items()]
        made = self.builder.apply(held(case.op, self.engine), *inputs)
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

    def check(self) -> None:
        """Compare what the engine makes of the cases with what NumPy does."""
        graph, values = self.graph()
        self.compare(run(self.engine, graph, values), evaluate(graph, values))

    def compare(self, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
        """Compare all results, and name those that differ."""
        assert set(found) == set(expected) == set(self.arrays)
        wrong = []
        for name, value in expected.items():
            try:
                assert_close(found[name], value, coarsest(*self.arrays[name], value))
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        assert not wrong, "\n".join(wrong)
