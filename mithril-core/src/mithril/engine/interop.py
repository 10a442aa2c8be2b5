"""How arrays and models of a backend pass to and from its framework.

An engine's `interop` offers methods under the names its users know (`x.jax()`,
`compiled.as_jax()`), takes arrays of the framework as they are, and may tell the framework about
Mithril's classes. The methods see arrays and models by the views declared here: a plugin needs
nothing else of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, Protocol, TypeVar

import numpy as np

from mithril.engine.protocol import Executable, Handle
from mithril.mesh import Sharding
from mithril.plan import Plan
from mithril.types import TensorType

EngineT_co = TypeVar("EngineT_co", covariant=True)
"""The plugin's own class of engines: `ModelView[JaxEngine]`."""
Placed = tuple[TensorType, Sharding]
"""What an array is, and how it lies."""


class ArrayView(Protocol[EngineT_co]):
    """An array of the backend, as a method of its framework sees it."""

    @property
    def backend(self) -> BackendView[EngineT_co]:
        """Whose it is."""
        ...

    @property
    def type(self) -> TensorType:
        """Global shape and dtype."""
        ...

    @property
    def sharding(self) -> Sharding:
        """How it lies."""
        ...

    @property
    def shards(self) -> Handle:
        """The engine's handle."""
        ...

    def numpy(self) -> np.ndarray:
        """Return all of it on the host."""
        ...


class BackendView(Protocol[EngineT_co]):
    """The backend of an array or a model: what makes arrays of a user's."""

    @property
    def engine(self) -> EngineT_co:
        """The engine that it was opened with."""
        ...

    def own(self, x: object, what: str) -> ArrayView[EngineT_co]:
        """Return `x` if it is an array of this backend.

        Args:
            x: what a user passed in.
            what: names it in the message: `input 'tokens'`.

        Raises:
            BackendError: it belongs to another backend, or is no array.
        """
        ...

    def array(self, values: object) -> ArrayView[EngineT_co]:
        """Return an array with the given values; one of the framework lies as it is."""
        ...

    def reshard(self, x: Any, sharding: Sharding) -> ArrayView[EngineT_co]:
        """Return an array of this backend, laid out otherwise."""
        ...


class ProgramView(Protocol):
    """A compiled model for inputs of some shapes: a plan with the names of what goes in and out.

    The plan's inputs are the model's inputs and parameters by their names, the cotangents, the
    captured arrays, and `seed` if it draws random numbers; its outputs are the model's and the
    gradients.
    """

    @property
    def plan(self) -> Plan:
        """What runs."""
        ...

    @property
    def executable(self) -> Executable:
        """The plan lowered on the model's engine; it is lowered when this is first read."""
        ...

    @property
    def cotangents(self) -> Mapping[str, str]:
        """For each output that a gradient goes in for, the name of the plan's input."""
        ...

    @property
    def gradients(self) -> Mapping[str, str]:
        """For each parameter and input that a gradient comes out for, the plan's output."""
        ...

    @property
    def captured(self) -> Mapping[str, ArrayView[Any]]:
        """Arrays that layers use from around them, as the plan takes them, by its inputs' names."""
        ...

    @property
    def uses_seed(self) -> bool:
        """Whether the plan has an input `seed`, a uint32 scalar that decides random numbers."""
        ...

    def cotangent_type(self, output: str) -> TensorType:
        """Return the type of the gradient that goes in for an output."""
        ...


class ModelView(Protocol[EngineT_co]):
    """A compiled model, as a method of the framework sees it."""

    @property
    def backend(self) -> BackendView[EngineT_co]:
        """What makes arrays of a user's."""
        ...

    @property
    def engine(self) -> EngineT_co:
        """What runs the plans: the backend's engine, with ranges for a profiler if asked for."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the model's order."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in the model's order."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Full names of the parameters."""
        ...

    @property
    def trainable(self) -> tuple[str, ...]:
        """Full names of the parameters that gradients are given of, if they are of floats."""
        ...

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The inputs that the model was compiled to give gradients of."""
        ...

    @property
    def plan(self) -> Plan:
        """The plan that was made last.

        Raises:
            PlanError: no shapes are known yet.
        """
        ...

    @property
    def captured(self) -> Mapping[str, ArrayView[EngineT_co]]:
        """Arrays that layers use from around them, by the names of the last plan's inputs.

        Raises:
            PlanError: no shapes are known yet.
        """
        ...

    def randomize_params(self, seed: int = 0) -> Mapping[str, ArrayView[EngineT_co]]:
        """Return initial parameters by full name."""
        ...

    def program_for(
        self,
        shapes: Mapping[str, object],
        *,
        gradients: bool,
        differentiable: Sequence[str] | None = None,
        inference: bool = False,
        parameters: Mapping[str, Placed] | None = None,
        cotangents: Mapping[str, Placed] | None = None,
    ) -> ProgramView:
        """Return the model for inputs of given shapes, to be run by itself.

        An input that is no array lies as in the plan that was made last, if there is one.

        Args:
            shapes: for each input a shape, an array or its kind, or a `TensorSpec`.
            gradients: whether output gradients go in and gradients come out.
            differentiable: the inputs that gradients come out of; by default all of floats.
            inference: whether dropout and its like do nothing even if the model was compiled to
                train.
            parameters: type and sharding of the parameters whose sharding is settled.
            cotangents: the same of gradients of outputs, by output.
        """
        ...


ArrayMethods = Mapping[str, Callable[Concatenate[ArrayView[Any], ...], Any]]
"""Methods of arrays by name; each takes an `ArrayView` first."""
ModelMethods = Mapping[str, Callable[Concatenate[ModelView[Any], ...], Any]]
"""Methods of compiled models by name; each takes a `ModelView` first."""


class Adopted(NamedTuple):
    """An array of the framework as one of Mithril's.

    Args:
        type: global shape and dtype.
        sharding: how it lies.
        shards: the engine's handle.
        is_placed: whether the framework's user said that it lies so; if not, a plan moves it.
    """

    type: TensorType
    sharding: Sharding
    shards: Handle
    is_placed: bool = False


class Interop:
    """What an engine offers to users of its framework; what it does not override does nothing."""

    @property
    def array_methods(self) -> ArrayMethods:
        """Methods of arrays by name; each takes the array, an `ArrayView`."""
        return {}

    @property
    def model_methods(self) -> ModelMethods:
        """Methods of compiled models by name; each takes the compiled model, a `ModelView`."""
        return {}

    def adopt(self, x: object) -> Adopted | None:
        """Return an array of the framework as one of Mithril's, without a copy where it can be.

        Args:
            x: what a user passed in.

        Returns:
            None when it is no array of the framework.
        """
        return None

    def host(self, x: object) -> np.ndarray | None:
        """Return an array of the framework that lies on the host as NumPy's, with the same memory.

        Several devices then get a part of it each, and none of them the whole.

        Args:
            x: what a user passed in.

        Returns:
            None when it is no array of the framework, or lies on devices.
        """
        return None

    def meet(self, arrays: tuple[type, ...], mapping: type) -> None:
        """Tell the framework about the classes of arrays, and of mappings from names to arrays."""
        return
