"""A compiled model as a function that autograd differentiates by the plan's own gradients.

A model whose only float output is a scalar loss runs the joint program at once, and keeps the
gradients until the factor of the loss is known. Any other runs forward, and joint at the backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from mithril.spi import BackendError, Handle, ModelView, Placed, Port, ProgramView
from torch.autograd.function import once_differentiable

from mithril_torch.engine_view import EngineView
from mithril_torch.executors.local import LocalExecutor
from mithril_torch.interop.disable_compile import disable_compile
from mithril_torch.interop.tensor_conversion import to_handle, to_tensors
from mithril_torch.tensors import torch_dtype

Tensors = dict[str, torch.Tensor]


class ModelFunction:
    """A compiled model for inputs of some shapes.

    Args:
        compiled: the model.
        shapes: of each input a type, or what kind of array it is.
        parameters: what each parameter is, and how it lies.
        differentiable: inputs that gradients are wanted of.
        inference: whether dropout and its like do nothing.
    """

    def __init__(
        self,
        compiled: ModelView[EngineView],
        shapes: Mapping[str, Any],
        parameters: Mapping[str, Placed],
        differentiable: Sequence[str],
        inference: bool,
    ) -> None:
        self.compiled = compiled
        self.engine = compiled.engine
        self._shapes = shapes
        self._parameters = parameters
        self._planned: dict[str, Any] = {
            "parameters": parameters, "differentiable": differentiable, "inference": inference,
        }  # fmt: skip

    @cached_property
    def forward(self) -> ProgramView:
        """The program without gradients."""
        return self.compiled.program_for(self._shapes, gradients=False, **self._planned)

    @cached_property
    def joint(self) -> ProgramView:
        """The program with gradients; gradients of outputs lie as the outputs do."""
        ports = self.forward.plan.outputs if self._is_one_of_many else ()
        lying = {p.name: (p.type, p.sharding) for p in ports if p.type.dtype.is_float}
        program = self.compiled.program_for(
            self._shapes, gradients=True, cotangents=lying, **self._planned
        )
        if self._is_one_of_many:
            self._check(program)
        return program

    @cached_property
    def keeps_gradients(self) -> bool:
        """Whether the only gradient that can come in is the factor of a scalar."""
        return [self.joint.cotangent_type(name).shape for name in self.joint.cotangents] == [()]

    @property
    def _is_one_of_many(self) -> bool:
        return isinstance(self.engine.executor, LocalExecutor) and self.engine.mesh.size > 1

    def _check(self, program: ProgramView) -> None:
        """Raise if an input's gradient would be a part of it: it came in whole.

        Raises:
            BackendError: it is.
        """
        for port in program.plan.outputs:
            for name in self._planned["differentiable"]:
                if program.gradients[name] == port.name and not port.sharding.is_replicated:
                    raise BackendError(
                        f"gradient of input '{name}' is split as {port.sharding.describe()}, and "
                        f"each rank has a part of it only; pass in x.detach(), or plan with this "
                        f"input replicated"
                    )

    def run(
        self, program: ProgramView, given: Mapping[str, Handle], wanted: Iterable[str]
    ) -> list[torch.Tensor]:
        """Run a program and return some of what it makes."""
        plan = program.plan
        results = program.executable([given[port.name] for port in plan.inputs])
        made = {
            port.name: (result, port.type, port.sharding)
            for port, result in zip(plan.outputs, results, strict=True)
        }
        return to_tensors(self.engine, [made[name] for name in wanted])


@dataclass(frozen=True)
class ModelCall:
    """One call of a function.

    Args:
        function: which.
        names: of the tensors that were passed in: parameters, and inputs that are no arrays.
        arrays: the other inputs, which are Mithril's arrays.
        seed: decides the dropout masks.
    """

    function: ModelFunction
    names: tuple[str, ...]
    arrays: Mapping[str, Any]
    seed: int

    def outputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs, in the model's order."""
        program = self.function.forward
        return self.function.run(
            program, self._bind_inputs(program, tensors, {}), self._output_names
        )

    def outputs_and_gradients(
        self, tensors: Sequence[torch.Tensor], wanted: Sequence[bool]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Return the outputs and, for a factor of 1, the gradients of the tensors that have one."""
        program = self.function.joint
        (name,) = program.cotangents
        one = torch.ones((), dtype=torch_dtype(program.cotangent_type(name).dtype), device="cpu")
        given = self._bind_inputs(program, tensors, {name: one})
        sources = self._sources(program, wanted)
        found = self.function.run(program, given, [*self._output_names, *sources])
        count = len(self._output_names)
        return found[:count], self._by_tensor(program, wanted, found[count:], [])

    def gradients(
        self,
        tensors: Sequence[torch.Tensor],
        wanted: Sequence[bool],
        slopes: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """Return the gradients of the tensors that have one, for gradients of the outputs."""
        program = self.function.joint
        coming = {
            name: slope
            for name, slope in zip(self._output_names, slopes, strict=True)
            if slope is not None
        }
        given = self._bind_inputs(program, tensors, coming)
        found = self.function.run(program, given, self._sources(program, wanted))
        return self._by_tensor(program, wanted, found, list(coming.values()))

    @property
    def _output_names(self) -> tuple[str, ...]:
        return self.function.compiled.outputs

    def _sources(self, program: ProgramView, wanted: Sequence[bool]) -> list[str]:
        return [
            program.gradients[name]
            for name, is_wanted in zip(self.names, wanted, strict=True)
            if is_wanted and name in program.gradients
        ]

    def _by_tensor(
        self,
        program: ProgramView,
        wanted: Sequence[bool],
        found: list[torch.Tensor],
        slopes: list[torch.Tensor],
    ) -> list[torch.Tensor | None]:
        """Return gradients in the order of the tensors; each has memory of its own."""
        own = iter(_copy_shared(found, slopes))
        return [
            next(own) if is_wanted and name in program.gradients else None
            for name, is_wanted in zip(self.names, wanted, strict=True)
        ]

    def _bind_inputs(
        self, program: ProgramView, tensors: Sequence[torch.Tensor], slopes: Tensors
    ) -> dict[str, Handle]:
        """Return a handle for each input of a program."""
        named = dict(zip(self.names, tensors, strict=True))
        seeded = {port: name for name, port in program.cotangents.items()}
        captured, found = program.captured, {}
        for port in program.plan.inputs:
            if port.name in seeded:
                found[port.name] = self._slope(port, slopes.get(seeded[port.name]))
            elif port.name in self.arrays:
                array, backend = self.arrays[port.name], self.function.compiled.backend
                found[port.name] = backend.reshard(array, port.sharding).shards
            elif port.name in captured:
                found[port.name] = captured[port.name].shards
            elif port.name in named:
                is_part = port.name in self.function.compiled.parameters
                found[port.name] = to_handle(
                    self.function.engine, named[port.name], port.type, port.sharding,
                    is_part=is_part,
                )  # fmt: skip
            else:
                found[port.name] = self._fill(port, self.seed)
        return found

    def _slope(self, port: Port, slope: torch.Tensor | None) -> Handle:
        if slope is None:
            return self._fill(port, 0)
        return to_handle(self.function.engine, slope, port.type, port.sharding, is_part=True)

    def _fill(self, port: Port, value: int) -> Handle:
        def produce(box: tuple[slice, ...]) -> np.ndarray:
            return np.full([cut.stop - cut.start for cut in box], value, port.type.dtype.numpy)

        return self.function.engine.put(port.type, port.sharding, produce)


class PlanFunction(torch.autograd.Function):
    """A call that autograd knows of."""

    @staticmethod
    def forward(ctx: Any, call: ModelCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs, and keep what the backward needs."""
        ctx.call, ctx.kept, ctx.wanted = call, None, ctx.needs_input_grad[1:]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        if call.function.keeps_gradients:
            outputs, ctx.kept = call.outputs_and_gradients(tensors, ctx.wanted)
        else:
            outputs = call.outputs(tensors)
        ctx.mark_non_differentiable(*(x for x in outputs if not x.is_floating_point()))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    @disable_compile
    def backward(ctx: Any, *slopes: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the tensors.

        Those that were kept are given away; a second backward of the same outputs runs again.
        """
        tensors, kept = ctx.saved_tensors, ctx.kept
        ctx.kept = None
        if kept is None:
            kept = ctx.call.gradients(tensors, ctx.wanted, slopes)
        else:
            factor = next((slope for slope in slopes if slope is not None), None)
            kept = [None if g is None else _scale(g, factor) for g in kept]
        return None, *(
            None if g is None else g.to(x.device) for g, x in zip(kept, tensors, strict=True)
        )


def _scale(gradient: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    if factor is None:
        return gradient.zero_()
    if factor.device.type == "cpu" and factor.item() == 1:
        return gradient
    return gradient.mul_(factor.to(gradient.device))


def _copy_shared(gradients: list[torch.Tensor], others: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients, copied where they share memory: users change gradients in place.

    A program returns one tensor for two gradients that are equal, and one that came in as it is.
    """
    found: list[torch.Tensor] = [x.contiguous() for x in gradients]
    taken = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in others)
    order = sorted(range(len(found)), key=lambda i: found[i].data_ptr())
    end = 0
    for i in order:
        x = found[i]
        start, stop = x.data_ptr(), x.data_ptr() + x.nbytes
        if start < end or any(low < stop and start < high for low, high in taken):
            found[i] = x.clone()
        end = max(end, stop)
    return found
