"""A compiled model as a PyTorch module: its parameters are real ones, and optimizers train it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mithril.spi import ArrayView, BackendError, GraphError, ModelView, Placed, TensorType, listing

from mithril_torch.engine_view import EngineView
from mithril_torch.executors.local import LocalExecutor
from mithril_torch.interop.autograd_function import ModelCall, ModelFunction, PlanFunction
from mithril_torch.interop.disable_compile import disable_compile
from mithril_torch.interop.dtensors import is_dtensor
from mithril_torch.interop.tensor_conversion import to_tensors
from mithril_torch.tensors import dtype_of


def as_module(
    compiled: ModelView[EngineView], params: Mapping[str, Any] | None = None, *, seed: int = 0
) -> CompiledModule:
    """Return a compiled model as a `torch.nn.Module`.

    Its parameters have Mithril's names. They are whole in a script, and the parts of this rank
    under torchrun; so are outputs. Inputs are whole tensors, or Mithril's arrays.

    Args:
        compiled: a compiled model of a PyTorch backend, whose shapes are known.
        params: initial parameters, which are copied; by default those of `randomize_params()`.
        seed: decides the dropout masks of the first call in training; later ones count on.

    Raises:
        BackendError: a parameter has no size yet, or is an array of another backend.
        GraphError: parameters are missing or unknown, or cannot be attributes of a module.

    >>> import mithril as ml
    >>> compiled = ml.compile(ml.Linear(2), ml.TorchBackend(), shapes={"input": (4, 3)})
    >>> compiled.as_module()
    CompiledModule(weight: (2, 3), bias: (2,))
    """
    return CompiledModule(compiled, params, seed)


class Scope(torch.nn.Module):
    """What holds the parameters of a layer, under the layer's name."""

    def extra_repr(self) -> str:
        """Return the parameters and their shapes."""
        return ", ".join(
            f"{name}: {tuple(x.shape)}" for name, x in self._parameters.items() if x is not None
        )


class CompiledModule(Scope):
    """A compiled model as a module; see `as_module`.

    `seed` decides the dropout masks of the next call in training, and counts on with each.
    """

    def __init__(
        self, compiled: ModelView[EngineView], params: Mapping[str, Any] | None, seed: int
    ) -> None:
        super().__init__()
        self.seed = seed
        self._runner = Runner(compiled)
        self._holders: dict[str, tuple[torch.nn.Module, str]] = {}
        is_own = params is None
        arrays = compiled.randomize_params() if params is None else params
        _check_names(list(arrays), compiled.parameters, "parameters given to as_module()")
        for name in compiled.parameters:
            array = compiled.backend.own(arrays[name], f"parameter '{name}'")
            _check_is_here(compiled.engine, name, array)
            found = array.type, array.sharding
            (tensor,) = to_tensors(compiled.backend.engine, [(array.shards, *found)])
            self._runner.remember(name, found, tensor)
            self._hold(name, tensor.contiguous() if is_own else tensor.clone())

    @disable_compile
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output, or all by name if there are several.

        Args:
            inputs: in the order of the model's.
            named: the others, by name.

        Raises:
            GraphError: one is missing, unknown, or given twice.
            BackendError: an input or a parameter is not what it must be.
        """
        given = self._runner.arguments(inputs, named)
        weights = {name: getattr(*place) for name, place in self._holders.items()}
        outputs, uses_seed = self._runner.run(weights, given, self.seed, not self.training)
        self.seed += uses_seed
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    def _hold(self, name: str, tensor: torch.Tensor) -> None:
        """Make a parameter an attribute, of modules within this one where its name has dots."""
        *path, leaf = name.split(".")
        holder: torch.nn.Module = self
        for part in path:
            if part not in holder._modules:
                _check_free(holder, part, name)
                holder.add_module(part, Scope())
            holder = holder.get_submodule(part)
        _check_free(holder, leaf, name)
        is_trained = tensor.is_floating_point() and name in self._runner.trainable
        holder.register_parameter(leaf, torch.nn.Parameter(tensor, is_trained))
        self._holders[name] = holder, leaf


class Runner:
    """What runs a module: the same for all copies of it.

    Args:
        compiled: the model.
    """

    def __init__(self, compiled: ModelView[EngineView]) -> None:
        self.compiled = compiled
        self.trainable = frozenset(compiled.trainable)
        self.parameters: dict[str, Placed] = {}
        self._weights: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._functions: dict[Any, ModelFunction] = {}

    def remember(self, name: str, found: Placed, tensor: torch.Tensor) -> None:
        """Note what a parameter is, and what users see of it."""
        self.parameters[name] = found
        self._weights[name] = tensor.shape, tensor.dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> Runner:
        return self

    def __reduce__(self) -> Any:
        raise BackendError(
            "module of as_module() holds devices and cannot be pickled; save module.state_dict()"
        )

    def arguments(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs by name: plain tensors, or arrays.

        Raises:
            GraphError: one is missing, unknown, or given twice.
        """
        names = self.compiled.inputs
        if len(inputs) > len(names):
            raise GraphError(
                f"module is called with {len(inputs)} inputs; the model has {len(names)}: "
                f"{listing(names)}; give these"
            )
        given = dict(zip(names, inputs, strict=False))
        twice = [name for name in named if name in given]
        if twice:
            raise GraphError(f"input '{twice[0]}' is given by position and by name; give it once")
        given.update(named)
        _check_names(list(given), names, "inputs given to the module")
        return {name: self._argument(name, given[name]) for name in names}

    def run(
        self,
        weights: Mapping[str, torch.Tensor],
        given: Mapping[str, Any],
        seed: int,
        inference: bool,
    ) -> tuple[dict[str, torch.Tensor], bool]:
        """Return the outputs by name, and whether the seed decided anything."""
        for name, x in weights.items():
            self._check_weight(name, x)
        inputs = {n: x for n, x in given.items() if isinstance(x, torch.Tensor)}
        arrays = {n: x for n, x in given.items() if n not in inputs}
        tensors = {**inputs, **weights}
        with_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in tensors.values())
        sloped = [n for n, x in inputs.items() if with_gradients and x.requires_grad]
        function = self._function(given, sloped, inference)
        call = ModelCall(function, tuple(tensors), arrays, seed % 2**32)
        if with_gradients:
            found = PlanFunction.apply(call, *tensors.values())
        else:
            found = call.outputs(list(tensors.values()))
        is_joint = with_gradients and function.keeps_gradients
        program = function.joint if is_joint else function.forward
        return dict(zip(self.compiled.outputs, found, strict=True)), program.uses_seed

    def _function(
        self, given: Mapping[str, Any], sloped: Sequence[str], inference: bool
    ) -> ModelFunction:
        shapes = {
            name: TensorType(tuple(x.shape), dtype_of(x)) if isinstance(x, torch.Tensor) else x.kind
            for name, x in given.items()
        }
        key = tuple(shapes.values()), tuple(sloped), inference
        if key not in self._functions:
            self._functions[key] = ModelFunction(
                self.compiled, shapes, self.parameters, sloped, inference
            )
        return self._functions[key]

    def _argument(self, name: str, x: Any) -> Any:
        """Return an input as a plain tensor, or as an array.

        Raises:
            BackendError: it is a DTensor that wants a gradient, or an array of another backend.
        """
        if not is_dtensor(x):
            if isinstance(x, torch.Tensor):
                return x
        elif x.requires_grad and torch.is_grad_enabled():
            raise BackendError(
                f"input '{name}' is a DTensor that requires a gradient, which the module gives to "
                f"plain tensors only; pass in x.detach(), or x.full_tensor()"
            )
        backend = self.compiled.backend
        return backend.own(x, f"input '{name}'") if hasattr(x, "kind") else backend.array(x)

    def _check_weight(self, name: str, x: torch.Tensor) -> None:
        shape, dtype = self._weights[name]
        if x.shape != shape or x.dtype != dtype:
            raise BackendError(
                f"parameter '{name}' of the module is {x.dtype}{list(x.shape)}; it was compiled as "
                f"{dtype}{list(shape)}; keep it so, or compile another model"
            )


def _check_names(given: Sequence[str], names: Sequence[str], what: str) -> None:
    if set(given) != set(names):
        raise GraphError(
            f"{what} are {listing(given) or 'none'}; the model has {listing(names) or 'none'}; "
            f"give exactly these"
        )


def _check_is_here(engine: EngineView, name: str, array: ArrayView[EngineView]) -> None:
    """Raise if only some ranks of a job have a parameter.

    Raises:
        BackendError: it lies on a part of the mesh.
    """
    ranks = array.sharding.mesh.devices
    if ranks and isinstance(engine.executor, LocalExecutor):
        raise BackendError(
            f"as_module() needs every parameter on every rank, and '{name}' lies on ranks "
            f"{', '.join(map(str, ranks))} only; train models of several stages by evaluate(), or "
            f"run the script without torchrun"
        )


def _check_free(holder: torch.nn.Module, attribute: str, name: str) -> None:
    if hasattr(holder, attribute):
        raise GraphError(
            f"parameter '{name}' cannot be reached in a module; '{attribute}' is an attribute of "
            f"torch.nn.Module already; give the layer another name="
        )
