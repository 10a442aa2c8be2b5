"""Evaluations of a compiled model: what is passed in is checked, ordered, planned for, and run.

A training loop evaluates arrays of the same kinds again and again. How they are handed to the plan
and how its results are named is worked out once for them, in a `Call`; the next evaluations look at
each array just long enough to see that it is of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from mithril.engine import Observer
from mithril.errors import GraphError, kind_of, listing, nearest
from mithril.plan import Port
from mithril.runtime.array import Array, Kind, PendingArray
from mithril.runtime.backend import Backend
from mithril.runtime.input_conversion import InputConverter
from mithril.runtime.parameters import Parameters, initial_array
from mithril.runtime.planner import ANYWHERE, Planner, Signature, Step, arguments_of
from mithril.runtime.sampling import check_seed
from mithril.runtime.settings import Settings
from mithril.runtime.submesh import on_whole_mesh
from mithril.transform import cotangent_name, gradient_of

SEED = "seed"
Given = Mapping[str, object]
Places = tuple[tuple[str, int], ...]
Pick = Callable[[Any], Sequence[Any]]
MAPPINGS = (dict, Mapping)
"""A dict is recognised much faster than any other mapping."""
_kind, _shards = attrgetter("kind"), attrgetter("shards")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """How arrays of some kinds are evaluated.

    Args:
        kinds: of inputs, parameters and output gradients, in that order.
        seeded: names of the outputs whose gradients are given; None for a forward evaluation.
        step: the plan.
        ordered: picks the inputs of the plan's program from these arrays' handles, and the seed's.
        made: the kinds of what the program returns.
        outputs: the model's outputs by name, as positions among these.
        gradients: the gradients, likewise.
    """

    kinds: list[Kind]
    seeded: tuple[str, ...] | None
    step: Step
    ordered: Pick
    made: tuple[Kind, ...]
    outputs: Places
    gradients: Places

    def fits(self, arrays: Sequence[Any], gradients: Given | None) -> bool:
        """Return whether arrays are of these kinds; what is no array is of none."""
        seeded = None if gradients is None else tuple(gradients)
        try:
            return seeded == self.seeded and list(map(_kind, arrays)) == self.kinds
        except AttributeError:
            return False


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
        self.latest: Step | None = None
        self._backend = backend
        self._planner = planner
        self._settings = settings
        self._inputs, self._outputs, self._parameters = inputs, outputs, parameters
        self._pick_inputs, self._pick_parameters = picker(inputs), picker(parameters)
        self._converter = InputConverter(backend)
        self._last: Call | None = None

    def evaluate(
        self,
        params: Given,
        inputs: Given,
        gradients: Given | None,
        seed: int,
        observe: Observer | None,
    ) -> tuple[dict[str, Array], Parameters]:
        """Return outputs, and gradients if those of outputs are given; see `CompiledModel`."""
        check_seed(seed)
        arrays = self._given(params, inputs, gradients)
        call = self._last
        if call is None or not call.fits(arrays, gradients):
            call, arrays = self._prepare(arrays, gradients)
        handles = list(map(_shards, arrays))
        if call.step.uses_seed:
            handles.append(self._seed_array(seed, call.step.ports[SEED]).shards)
        results = call.step.run(call.ordered(handles), observe)
        made = Array.of_kinds(call.made, results)
        return (
            {name: made[i] for name, i in call.outputs},
            Parameters({name: made[i] for name, i in call.gradients}),
        )

    def step(self, signature: Signature) -> Step:
        """Return the plan of a signature, which is the latest one from now on."""
        self.latest = self._planner.step(signature)
        return self.latest

    def materialise(self, parameters: Mapping[str, Array], step: Step) -> None:
        """Give waiting parameters their values, in the sharding the plan takes them in."""
        for name, x in parameters.items():
            if isinstance(x, PendingArray):
                type, initializer = step.ports[name].type, step.initializers[name]
                sharding = self._planner.remember(name, step)
                x.materialise(
                    initial_array(self._backend, name, type, initializer, sharding, x.seed)
                )

    # ------------------------------------------------------------------ arrays of new kinds

    def _prepare(
        self, given: Sequence[Any], output_gradients: Given | None
    ) -> tuple[Call, list[Array]]:
        """Return how arrays like these are evaluated, planned if need be, and the arrays."""
        first, last = len(self._inputs), len(self._inputs) + len(self._parameters)
        seeded = None if output_gradients is None else tuple(output_gradients)
        convert = self._converter.convert
        arrays = convert(given[:first], self._inputs, "input")
        arrays += convert(given[first:last], self._parameters, "parameter")
        arrays += convert(given[last:], seeded or (), "gradient of output")
        if not self._planner.is_placed:
            arrays = list(map(on_whole_mesh, arrays))
        if self._last is not None and self._last.fits(arrays, output_gradients):
            return self._last, arrays
        inputs = dict(zip(self._inputs, arrays[:first], strict=True))
        parameters = dict(zip(self._parameters, arrays[first:last], strict=True))
        gradients = None
        if seeded is not None:
            gradients = self._fit(dict(zip(seeded, arrays[last:], strict=True)), inputs)
        seeds = None if gradients is None else arguments_of(gradients)
        signature = Signature(arguments_of(inputs), arguments_of(parameters), seeds)
        step = self.step(signature)
        if any(placed is ANYWHERE for _, placed in signature.parameters):
            self.materialise(parameters, step)
        fitted = [*inputs.values(), *parameters.values(), *(gradients or {}).values()]
        call = self._call(step, [x.kind for x in fitted], seeded)
        self._last = call
        return call, fitted

    def _call(self, step: Step, kinds: list[Kind], seeded: tuple[str, ...] | None) -> Call:
        names = [*self._inputs, *self._parameters, *map(cotangent_name, seeded or ())]
        position = {name: i for i, name in enumerate(names)}
        if step.uses_seed:
            position[SEED] = len(names)
        ports = step.plan.outputs
        place = {port.name: i for i, port in enumerate(ports)}
        wanted = () if seeded is None else (*self._parameters, *self._settings.differentiable)
        return Call(
            kinds,
            seeded,
            step,
            picker([position[port.name] for port in step.plan.inputs]),
            tuple(Kind(self._backend, port.type, port.sharding) for port in ports),
            tuple((name, place[name]) for name in self._outputs),
            tuple((n, place[gradient_of(n)]) for n in wanted if gradient_of(n) in place),
        )

    def _seed_array(self, seed: int, port: Port) -> Array:
        value = np.asarray(seed, np.uint32)
        return self._backend.place(port.type, port.sharding, lambda box: value)

    def _fit(self, gradients: dict[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return output gradients in the float dtypes that the precision gives the outputs."""
        if not self._settings.precision.is_given:
            return gradients
        types = tuple((name, x.type) for name, x in inputs.items())
        outputs = self._planner.output_types(types)
        return {
            name: x.astype(outputs[name].dtype) if x.dtype.is_float else x
            for name, x in gradients.items()
        }

    # ------------------------------------------------------------------ checking what is passed in

    def _given(self, params: Given, inputs: Given, gradients: Given | None) -> list[Any]:
        """Return inputs, parameters and output gradients as they were passed in, in order.

        Raises:
            GraphError: a name is missing or unknown.
        """
        found = [
            *_in_order(inputs, self._inputs, self._pick_inputs, "input"),
            *_in_order(params, self._parameters, self._pick_parameters, "parameter"),
        ]
        if gradients is not None:
            found += self._check(gradients).values()
        return found

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


def _in_order(given: Given, names: Sequence[str], pick: Pick, what: str) -> Sequence[object]:
    """Return what is given in the order of the names.

    Raises:
        GraphError: a name is missing or unknown.
    """
    if not isinstance(given, MAPPINGS) or len(given) != len(names):
        check_names(given, names, what)
    try:
        return pick(given)
    except KeyError:
        check_names(given, names, what)
        raise


def picker(keys: Sequence[str] | Sequence[int]) -> Pick:
    """Return the function that picks the items under some keys, or at some places, in order."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda items: [items[key] for key in keys]


def check_names(given: object, names: Sequence[str], what: str) -> None:
    """Raise unless exactly these names are given.

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
        raise GraphError(
            f"{what}{several} {listing(missing)} {are} missing; {what}s: {listing(names)}"
        )
