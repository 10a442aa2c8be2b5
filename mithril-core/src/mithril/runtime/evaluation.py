"""Evaluations of a compiled model: what is passed in is checked, ordered, planned for, and run.

A training loop evaluates arrays of the same kinds again and again; the next evaluations look at
each array just long enough to see that it is of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mithril.engine import Observer
from mithril.errors import GraphError, kind_of, listing, nearest
from mithril.models.trace_context import SEED
from mithril.option_checks import is_number
from mithril.runtime.array import Array, Kind
from mithril.runtime.asked import Evaluation
from mithril.runtime.backend import Backend
from mithril.runtime.call import Bound, Pick, pick
from mithril.runtime.donation import give_up_moved
from mithril.runtime.host_indices import check_host_indices
from mithril.runtime.input_conversion import InputConverter
from mithril.runtime.interrupts import hold_interrupts
from mithril.runtime.parameters import Parameters, initial_array
from mithril.runtime.planner import NOTHING, Planner, Seeded
from mithril.runtime.settings import Choice, Settings, read_donated
from mithril.runtime.submesh import on_whole_mesh
from mithril.runtime.unplaced import HostArray, PendingArray, settle_one
from mithril.runtime.written_evaluation import Evaluated, Names, write_evaluation
from mithril.types import DType

Given = Mapping[str, object]
MAPPINGS = (dict, Mapping)
"""A dict is recognised much faster than any other mapping."""


class Evaluator:
    """Evaluates one model on one backend.

    Args:
        backend: where it runs.
        planner: makes the plans.
        settings: how it is compiled.
        inputs: names of the inputs.
        outputs: names of the outputs.
        parameters: names of the parameters.
    """

    def __init__(
        self,
        backend: Backend,
        planner: Planner,
        settings: Settings,
        inputs: Sequence[str],
        outputs: Sequence[str],
        parameters: Sequence[str],
    ) -> None:
        self.latest: Bound[Evaluation] | None = None
        self._backend = backend
        self._planner = planner
        self._settings = settings
        self._inputs, self._outputs, self._parameters = inputs, outputs, parameters
        self._places = tuple(enumerate(outputs))
        self._pick_inputs, self._pick_parameters = pick(inputs), pick(parameters)
        self._converter = InputConverter(backend)
        self._donations: dict[Hashable, frozenset[str]] = {}
        # Of evaluations with gradients, and without: a loop may have both.
        self._last: list[Bound[Evaluation] | None] = [None, None]
        self.written: list[Callable[..., Evaluated | None] | None] = [None, None]

    def evaluate(
        self,
        params: Given,
        inputs: Given,
        gradients: Given | None,
        seed: int,
        observe: Observer | None,
        donate: Choice = (),
    ) -> tuple[dict[str, Array], Parameters]:
        """Return outputs, and gradients if those of outputs are given; see `CompiledModel`."""
        given = arrays = self._collect_given(params, inputs, gradients)
        seeded = None if gradients is None else tuple(gradients)
        donated = NOTHING if donate == () else self._read_donated(donate)
        bound = self._planner.bindings.of_last((seeded, donated), arrays)
        if bound is None:
            bound, arrays = self._prepare(params, arrays, seeded, donated)
        evaluation = bound.interface.source
        self._write(bound, arrays, seeded)
        if evaluation.captured.arrays:
            arrays = bound.settle([*arrays, *evaluation.captured.held])
        if evaluation.traced.uses_seed:
            arrays = [*arrays, self._seed_array(seed, bound)]
        donates = bool(bound.interface.donated)
        return hold_interrupts(donates, self._run, bound, arrays, given, seeded, observe)

    def bind(
        self, seeded: Seeded, kinds: Sequence[Kind], donated: frozenset[str] = NOTHING
    ) -> Bound[Evaluation]:
        """Return the plan for arrays of some kinds, which is the latest one from now on."""
        self.latest = self._planner.bind(seeded, kinds, donated)
        return self.latest

    def plan_for(self, params: Given, inputs: Given, gradients: Given | None) -> Bound[Evaluation]:
        """Return the plan for arrays, which is the latest one from now on; nothing runs."""
        given = self._collect_given(params, inputs, gradients)
        seeded = None if gradients is None else tuple(gradients)
        arrays = self._bring_together(self._convert(given, seeded))
        arrays = self._fit_all(arrays, seeded, given)
        return self.bind(seeded, [x.kind for x in arrays])

    def convert_inputs(self, given: Given, names: Sequence[str]) -> list[Array]:
        """Return inputs as arrays of the backend, in order; values of the host wait there.

        Args:
            given: the inputs.
            names: of those that must be given.

        Raises:
            GraphError: a name is missing or unknown.
        """
        found = _in_order(given, names, pick(names), "input", self._planner.explain_input)
        specs, convert = self._settings.in_shardings, self._converter.convert
        pairs = zip(found, names, strict=True)
        return self._bring_together([convert(x, "input", n, specs.get(n)) for x, n in pairs])

    def convert_parameters(self, given: Given) -> list[Array]:
        """Return parameters as arrays of the backend, in order.

        Raises:
            GraphError: a name is missing or unknown.
        """
        found = _in_order(given, self._parameters, self._pick_parameters, "parameter")
        pairs = zip(found, self._parameters, strict=True)
        return [self._converter.convert(x, "parameter", name) for x, name in pairs]

    def _read_donated(self, donate: Choice) -> frozenset[str]:
        """Return the names of what a call gives up; read once for each way to say it."""
        key = donate if isinstance(donate, Hashable) else tuple(donate)
        found = self._donations.get(key)
        if found is None:
            found = read_donated(donate, self._inputs, self._parameters, self._outputs)
            self._donations[key] = found
        return found

    def materialise(self, parameters: Mapping[str, Array], bound: Bound[Evaluation]) -> None:
        """Give waiting parameters their values, in the sharding the plan takes them in."""
        initializers = bound.interface.source.traced.initializers
        for name, x in parameters.items():
            if isinstance(x, PendingArray):
                port, initializer = bound.ports[name], initializers[name]
                made = initial_array(
                    self._backend, name, port.type, initializer, port.sharding, x.seed,
                    is_placed=bound.interface.is_placed,
                )  # fmt: skip
                x.materialise(made)

    def _run(
        self,
        bound: Bound[Evaluation],
        arrays: list[Array],
        given: Sequence[Any],
        seeded: Seeded,
        observe: Observer | None,
    ) -> tuple[dict[str, Array], Parameters]:
        """Return outputs and gradients.

        Args:
            bound: what runs.
            arrays: on the devices.
            given: what users passed for them.
            seeded: names of the outputs whose gradients are given.
            observe: told of every collective.
        """
        made = bound.run(arrays, observe)
        if arrays is not given and bound.interface.donated:
            give_up_moved(given, arrays, bound.interface.donated)
        outputs, slopes = {name: made[i] for i, name in self._places}, Parameters()
        if seeded is not None:  # filled one by one: faster for few, and as fast for many
            differentiated = bound.interface.source.differentiated
            for position, name in enumerate(differentiated, len(outputs)):
                slopes[name] = made[position]
        return outputs, slopes

    def _write(self, bound: Bound[Evaluation], arrays: Sequence[Array], seeded: Seeded) -> None:
        """Have the next evaluation like this one run without a detour, from the second in a row on.

        Args:
            bound: what runs.
            arrays: as it takes them.
            seeded: names of the outputs whose gradients are given.
        """
        evaluation, is_forward = bound.interface.source, seeded is None
        last, self._last[is_forward] = self._last[is_forward], bound
        is_plain = not (evaluation.captured.arrays or evaluation.traced.uses_seed)
        if not is_plain or bound.interface.donated or not bound.is_settled:
            return
        kinds = [x.kind for x in arrays]
        written = bound.written.get(seeded)
        if written is not None:
            written.adopt(kinds)
        elif bound is last:
            names = Names(
                self._inputs, self._parameters, seeded, self._outputs, evaluation.differentiated
            )
            takes = not evaluation.index_uses
            written = bound.written[seeded] = write_evaluation(names, bound, kinds, takes=takes)
        if written is not None:
            self.written[is_forward] = written.evaluate

    def take(self, position: int, given: object, seeded: Seeded, kind: Kind) -> Array:
        """Return what a user passed for an input or output gradient as a plan takes it.

        Args:
            position: of the argument.
            given: no array.
            seeded: names of the outputs whose gradients are given.
            kind: of the array that the plan takes; of another type nothing is put on devices yet.
        """
        x = self._convert_one(position, given, seeded)
        is_waiting = isinstance(x, HostArray) and x.kind.type == kind.type
        return settle_one(x, kind.sharding) if is_waiting else x

    # ------------------------------------------------------------------ arrays of new kinds

    def _prepare(
        self, params: Given, given: Sequence[Any], seeded: Seeded, donated: frozenset[str]
    ) -> tuple[Bound[Evaluation], list[Array]]:
        """Return what evaluates arrays like these, planned if need be, and the arrays."""
        first, last = len(self._inputs), len(self._inputs) + len(self._parameters)
        bindings, form = self._planner.bindings, (seeded, donated)
        convert = partial(self._convert, given, seeded)
        arrays, bound, others = bindings.of_last_said(form, given, convert)
        if bound is not None:
            arrays = bound.settle(arrays, others)
        else:
            arrays = self._fit_all(self._bring_together(arrays), seeded, given)
            bound = self.bind(seeded, [x.kind for x in arrays], donated)
            self.materialise(dict(zip(self._parameters, arrays[first:last], strict=True)), bound)
            arrays = bound.settle(arrays)
            bindings.remember(form, arrays, bound)
        check_host_indices(bound.interface.source.index_uses, self._inputs, given)
        if isinstance(params, Parameters):  # what a user has put in is on the devices from now on
            own = zip(self._parameters, given[first:last], arrays[first:last], strict=True)
            params.update({name: x for name, was, x in own if not isinstance(was, Array)})
        return bound, arrays

    def _convert(
        self, given: Sequence[Any], seeded: Seeded, positions: Sequence[int] | None = None
    ) -> list[Array]:
        """Return arrays of the backend for what users passed.

        Args:
            given: inputs, parameters and output gradients.
            seeded: names of the outputs whose gradients are given.
            positions: of what may be no such array; by default anything may.
        """
        arrays = list(given)
        for position in range(len(given)) if positions is None else positions:
            arrays[position] = self._convert_one(position, given[position], seeded)
        return arrays

    def _convert_one(self, position: int, x: Any, seeded: Seeded) -> Array:
        """Return an array of the backend for what a user passed as the argument at a position."""
        first, last = len(self._inputs), len(self._inputs) + len(self._parameters)
        convert = self._converter.convert
        if position < first:
            name = self._inputs[position]
            return convert(x, "input", name, self._settings.in_shardings.get(name))
        if position < last:
            return convert(x, "parameter", self._parameters[position - first])
        name = (seeded or ())[position - last]
        if _is_number(x):
            return self._convert_number(x, name, self._find_dtype(seeded, position))
        return convert(x, "gradient of output", name)

    def _find_dtype(self, seeded: Seeded, position: int) -> DType | None:
        """Return the dtype of an output gradient in the last call, None if it had others."""
        last = self._planner.bindings.last
        return last.kinds[position].type.dtype if last and last.form[0] == seeded else None

    def _convert_number(self, x: float, name: str, dtype: DType | None) -> Array:
        """Return a number as the gradient of an output, whose dtype it has."""
        return self._converter.convert(float(x), "gradient of output", name, dtype=dtype)

    def _bring_together(self, arrays: list[Array]) -> list[Array]:
        """Return arrays on the mesh that the model runs on: on all of it, unless layers do not."""
        return arrays if self._planner.is_placed else list(map(on_whole_mesh, arrays))

    def _fit_all(self, arrays: list[Array], seeded: Seeded, given: Sequence[Any]) -> list[Array]:
        """Return arrays with output gradients in the dtypes of the outputs."""
        first, last = len(self._inputs), len(self._inputs) + len(self._parameters)
        fitting = self._fit(arrays[last:], seeded or (), arrays[:first], given[last:])
        return arrays[:last] + fitting

    def _seed_array(self, seed: int, bound: Bound[Evaluation]) -> Array:
        value, port = np.asarray(seed, np.uint32), bound.ports[SEED]
        return self._backend.place(port.type, port.sharding, lambda box: value)

    def _fit(
        self,
        gradients: Sequence[Array],
        seeded: Sequence[str],
        inputs: Sequence[Array],
        given: Sequence[Any],
    ) -> list[Array]:
        """Return output gradients in the float dtypes of the outputs.

        Arrays have their own, unless a precision gives the outputs theirs; numbers have none.
        """
        is_given = self._settings.plan.precision.is_given
        if not (is_given and gradients) and not any(map(_is_number, given)):
            return list(gradients)
        types = tuple((n, x.type) for n, x in zip(self._inputs, inputs, strict=True))
        outputs, fitting = self._planner.output_types(types), list(gradients)
        for position, (name, x, passed) in enumerate(zip(seeded, gradients, given, strict=True)):
            dtype = outputs[name].dtype
            if dtype.is_float and _is_number(passed):
                fitting[position] = self._convert_number(passed, name, dtype)
            elif dtype.is_float and is_given and x.dtype.is_float:
                fitting[position] = x.astype(dtype)
        return fitting

    # ------------------------------------------------------------------ checking what is passed in

    def _collect_given(self, params: Given, inputs: Given, gradients: Given | None) -> list[Any]:
        """Return inputs, parameters and output gradients as they were passed in, in order.

        Raises:
            GraphError: a name is missing or unknown.
        """
        found = self._pick_given(params, inputs)
        if found is None:
            explain = self._planner.explain_input
            found = [
                *_in_order(inputs, self._inputs, self._pick_inputs, "input", explain),
                *_in_order(params, self._parameters, self._pick_parameters, "parameter"),
            ]
        if gradients is not None:
            found += self._check(gradients).values()
        return found

    def _pick_given(self, params: Given, inputs: Given) -> list[Any] | None:
        """Return inputs and parameters in order if all names are right, without a closer look."""
        if not isinstance(inputs, MAPPINGS) or not isinstance(params, MAPPINGS):
            return None
        if len(inputs) != len(self._inputs) or len(params) != len(self._parameters):
            return None
        try:
            return [*self._pick_inputs(inputs), *self._pick_parameters(params)]
        except KeyError:
            return None

    def _check(self, given: Given) -> Given:
        if not isinstance(given, MAPPINGS):
            raise GraphError(
                f"output_gradients is {kind_of(given)}; give a mapping of output names to "
                f"arrays, such as {{'{self._outputs[0]}': …}}"
            )
        for name in given:
            if name not in self._outputs:
                raise GraphError(
                    f"output_gradients names '{name}', which is no output"
                    f"{nearest(name, self._outputs)}; outputs: {listing(self._outputs)}"
                )
        return given


def _is_number(x: object) -> bool:
    """Return whether something is a number of Python or NumPy, and no truth value."""
    return is_number(x) or isinstance(x, np.integer | np.floating)


def _in_order(
    given: Given,
    names: Sequence[str],
    picked: Pick,
    what: str,
    explain: Callable[[str], str] | None = None,
) -> Sequence[object]:
    """Return what is given in the order of the names.

    Raises:
        GraphError: a name is missing or unknown.
    """
    if not isinstance(given, MAPPINGS) or len(given) != len(names):
        check_names(given, names, what, explain)
    try:
        return picked(given)
    except KeyError:
        check_names(given, names, what, explain)
        raise


def check_names(
    given: object,
    names: Sequence[str],
    what: str,
    explain: Callable[[str], str] | None = None,
) -> None:
    """Raise unless exactly these names are given.

    Args:
        given: what a user passed.
        names: of all that must be given.
        what: they are, for messages.
        explain: says why a name is one of them.

    Raises:
        GraphError: one is missing or unknown, or it is no mapping.
    """
    if not isinstance(given, Mapping):
        raise GraphError(
            f"{what}s are given as {kind_of(given)}; give a mapping of names to arrays"
        )
    unknown = [name for name in given if name not in names]
    missing = [name for name in names if name not in given]
    if unknown:
        raise GraphError(
            f"model has no {what} '{unknown[0]}'{nearest(unknown[0], missing or names)}; "
            f"{what}s: {listing(names)}"
        )
    if missing:
        several, are = ("", "is") if len(missing) == 1 else ("s", "are")
        why = "" if explain is None else f"; {explain(missing[0])}"
        raise GraphError(
            f"{what}{several} {listing(missing)} {are} missing; {what}s: {listing(names)}{why}"
        )
