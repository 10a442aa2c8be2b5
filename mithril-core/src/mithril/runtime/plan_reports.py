"""What a compiled model tells of the plan that was made last: the plan, tables, explanations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mithril.cost import PlanMemory
from mithril.errors import PlanError
from mithril.keywords import checked_keywords
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.summary import summarize, tabulate
from mithril.plan import Plan
from mithril.report import check_name, explain, partition_map, print_collectives, print_shapes
from mithril.runtime.asked import Evaluation
from mithril.runtime.backend import Backend
from mithril.runtime.call import Bound
from mithril.runtime.evaluation import Evaluator
from mithril.tables import Table, render_html


class PlanReports(ABC):
    """The part of `CompiledModel` that reads its latest plan."""

    backend: Backend
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    _model: Composition | Layer
    _evaluator: Evaluator

    @abstractmethod
    def _plan_arrays(
        self,
        params: Mapping[str, object],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object] | None,
    ) -> Bound[Evaluation]:
        """Return what evaluates arrays; nothing runs."""

    @property
    def plan(self) -> Plan:
        """The plan that was made last.

        Raises:
            PlanError: no shapes are known yet.
        """
        if self._evaluator.latest is None:
            raise PlanError(
                "plan is not known before the shapes; evaluate once, or pass shapes= to compile()"
            )
        return self._evaluator.latest.plan

    def get_partition_map(self) -> dict[str, Any]:
        """Return which device runs which layers and holds which parameters, by the last plan.

        The result is plain data: `mesh`, `order`, `stages`, `layers`, `parameters` and `devices`;
        see `mithril.report.partition_map`.

        Raises:
            PlanError: no shapes are known yet.
        """
        return partition_map(self.plan, self.parameters)

    @checked_keywords()
    def get_memory_usage(
        self,
        params: Mapping[str, object],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object] | None = None,
    ) -> list[dict[str, int]]:
        """Return what each device holds at most when these arrays are evaluated; nothing runs.

        It is read off the plan, which is made if there is none yet; see `Plan.memory`, which says
        more.

        Args:
            params: one array per parameter name, as for `evaluate`.
            inputs: one array per input name.
            output_gradients: the gradient of some outputs, if gradients are wanted.

        Returns:
            For each device a dict of bytes: `total`, which is the peak, and what it is made of:
            `parameters`, `gradients`, `optimizer`, `inputs`, `outputs`, `activations`,
            `temporaries`, `collectives` and `arena`.

        Raises:
            GraphError: a name is missing or unknown.
            ShapeError: shapes or dtypes do not fit the model.

        >>> import mithril as ml, numpy as np
        >>> compiled = ml.compile(ml.Linear(4), ml.NumpyBackend(ml.Mesh(data=2)))
        >>> inputs = {"input": np.ones((8, 3))}
        >>> usage = compiled.get_memory_usage(compiled.randomize_params(), inputs)
        >>> usage[1]["parameters"]
        64
        """
        bound = self._plan_arrays(params, inputs, output_gradients)
        arguments, donated = bound.interface.arguments, bound.interface.donated
        names = [arguments[position] for position in donated]
        memory: PlanMemory = bound.plan.memory(donated=names)
        return memory.by_device()

    def summary(self) -> str:
        """Return the model as a table, and what the last plan makes of it, if there is one."""
        described = (
            summarize(self._model)
            if isinstance(self._model, Composition)
            else f"{self._model!r}: parameters {', '.join(self.parameters) or 'none'}"
        )
        if self._evaluator.latest is None:
            return f"{described}\non {self.backend!r}; no shapes are known yet"
        return f"{described}\n{print_shapes(self.plan, self.parameters)}"

    def _repr_html_(self) -> str:
        if self._evaluator.latest is not None:
            shown = self.plan._repr_html_()
        else:
            shown = render_html([Table("no plan yet: no shapes are known", (), ())])
        return f"{render_html([self._tabulate()])}{shown}"

    def _tabulate(self) -> Table:
        if isinstance(self._model, Composition):
            table = tabulate(self._model)
            return replace(table, title=f"{table.title}, on {self.backend!r}")
        return Table(f"{self._model!r} on {self.backend!r}", (), ())

    def plan_summary(self) -> str:
        """Return the last plan's collectives, each with its reason, and the bytes per mesh axis."""
        return print_collectives(self.plan)

    def explain(self, tensor: str | None = None) -> str:
        """Return why the last plan has its collectives, or why one tensor lies as it does.

        Args:
            tensor: name of a parameter, input, output or layer output.

        Raises:
            OptionError: it is no name.
            PlanError: the plan knows no tensor of that name, or no shapes are known yet.
        """
        check_name(tensor, self.outputs[0])  # also where there is no plan yet
        return explain(self.plan, tensor)
