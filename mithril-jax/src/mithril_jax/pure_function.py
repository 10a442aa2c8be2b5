"""A compiled model as a pure function of JAX, with the plan's gradients.

Inside, the function is the plan's program under `shard_map`; JAX does not differentiate it: the
backward rule is the joint program that the core made. A model whose only float output is a scalar
loss keeps the gradients that the joint program gives beside the loss, and scales them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mithril.spi import (
    BackendError,
    GraphError,
    ModelView,
    OptionError,
    ProgramView,
    TensorType,
    as_dtype,
    listing,
)

from mithril_jax.executable import JaxExecutable
from mithril_jax.padding import from_padded, to_padded

Leaves = dict[str, jax.Array]
PureFunction = Callable[..., dict[str, jax.Array]]


REPEATED_MASKS = (
    "function of as_jax is called without a seed and the model draws random numbers, such as "
    "dropout masks: every call draws the same; pass seed=step, or compile with inference=True"
)


def as_jax(compiled: ModelView[object]) -> PureFunction:
    """Return a compiled model as a pure function `(params, inputs, seed=None) -> outputs`.

    It may be used inside `jax.jit` and `jax.grad`, with respect to parameters and float inputs, and
    with Mithril's arrays or JAX's. Inputs lie as in the plan that was made last (by `shapes=`,
    say), otherwise they are replicated. Names that are not the model's are a `GraphError`, a seed
    that does not fit 32 bits is an `OptionError` unless it is an array. Without a seed it is 0, and
    a model that draws random numbers warns once.

    Args:
        compiled: a compiled model of a JAX backend.
    """
    made: dict[Any, _Function] = {}
    warned: list[str] = []

    def pure(
        params: Mapping[str, Any], inputs: Mapping[str, Any], seed: int | None = None
    ) -> dict[str, jax.Array]:
        _check_names(params, compiled.parameters, "parameter")
        _check_names(inputs, compiled.inputs, "input")
        leaves = {name: _leaf(x) for name, x in {**inputs, **params}.items()}
        key = tuple((n, leaves[n].shape, str(leaves[n].dtype)) for n in compiled.inputs)
        if key not in made:
            made[key] = _Function(compiled, {name: leaves[name] for name in compiled.inputs})
        outputs = made[key](leaves, _seed(0 if seed is None else seed))
        if seed is None and not warned and made[key].draws:
            warned.append(REPEATED_MASKS)
            warnings.warn(REPEATED_MASKS, stacklevel=2)
        return outputs

    return pure


class _Function:
    """The pure function for inputs of some shapes and dtypes."""

    def __init__(self, compiled: ModelView[object], inputs: Leaves) -> None:
        self._compiled = compiled
        self._shapes = {name: TensorType(x.shape, as_dtype(x.dtype)) for name, x in inputs.items()}
        call = jax.custom_vjp(self._forward)
        call.defvjp(self._forward_rule, self._backward_rule)
        self._call = jax.jit(call)

    def __call__(self, leaves: Leaves, seed: jax.Array) -> Leaves:
        captured = self._forward_program.captured
        leaves = {**leaves, **{name: _leaf(x) for name, x in captured.items()}}
        devices = _executable_of(self._forward_program).devices
        leaves = {name: devices.in_order(x) for name, x in leaves.items()}
        floats = {n: x for n, x in leaves.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
        others = {n: x for n, x in leaves.items() if n not in floats}
        outputs: Leaves = self._call(floats, others, seed)
        return outputs

    @property
    def draws(self) -> bool:
        """Whether a program that was called so far draws random numbers."""
        made = (vars(self).get(name) for name in ("_forward_program", "_joint_program"))
        return any(program is not None and program.uses_seed for program in made)

    @cached_property
    def _forward_program(self) -> ProgramView:
        return _single(self._compiled.program_for(self._shapes, gradients=False))

    @cached_property
    def _joint_program(self) -> ProgramView:
        return _single(self._compiled.program_for(self._shapes, gradients=True))

    @property
    def _keeps_gradients(self) -> bool:
        """Whether the only gradient that can come in is the factor of a scalar."""
        joint = self._joint_program
        return [joint.cotangent_type(name).shape for name in joint.cotangents] == [()]

    def _forward(self, floats: Leaves, others: Leaves, seed: jax.Array) -> Leaves:
        return _run(self._forward_program, {**floats, **others}, seed, {})

    def _forward_rule(self, floats: Leaves, others: Leaves, seed: jax.Array) -> Any:
        if not self._keeps_gradients:
            return self._forward(floats, others, seed), (floats, others, seed, None)
        joint = self._joint_program
        (name,) = joint.cotangents
        one = {name: jnp.ones((), joint.cotangent_type(name).dtype.numpy)}
        found = _run(joint, {**floats, **others}, seed, one)
        outputs = {n: found[n] for n in self._compiled.outputs}
        gradients = {n: found[port] for n, port in joint.gradients.items()}
        return outputs, (floats, others, seed, gradients)

    def _backward_rule(self, kept: Any, cotangents: Leaves) -> Any:
        floats, others, seed, gradients = kept
        joint = self._joint_program
        if gradients is not None:
            (name,) = joint.cotangents
            factor = cotangents[name]
            slopes = {n: g * factor.astype(g.dtype) for n, g in gradients.items()}
        else:
            given = {name: cotangents[name] for name in joint.cotangents}
            found = _run(joint, {**floats, **others}, seed, given)
            slopes = {n: found[port] for n, port in joint.gradients.items()}
        by_float = {n: slopes.get(n, jnp.zeros_like(x)) for n, x in floats.items()}
        nothing = {n: np.zeros(x.shape, jax.dtypes.float0) for n, x in others.items()}
        return by_float, nothing, np.zeros((), jax.dtypes.float0)


def _single(program: ProgramView) -> ProgramView:
    """Return a program that JAX can trace as one function.

    Raises:
        BackendError: it is several, on parts of the mesh.
    """
    stages = program.plan.stages
    if program.plan.only_stage is None:
        raise BackendError(
            f"model runs as {len(stages)} programs on parts of the mesh and is no single function "
            f"of JAX; call evaluate(), or remove device_id, Pipeline and model.stage"
        )
    return program


def _run(program: ProgramView, leaves: Leaves, seed: Any, cotangents: Leaves) -> Leaves:
    """Run a program on whole arrays by name, inside whatever JAX traces."""
    given = {**leaves, **{program.cotangents[name]: x for name, x in cotangents.items()}}
    if program.uses_seed:
        given["seed"] = seed
    held = [to_padded(given[port.name], port.sharding) for port in program.plan.inputs]
    made = _executable_of(program).trace(held)
    return {
        port.name: from_padded(result, port.type.shape, port.sharding)
        for port, result in zip(program.plan.outputs, made, strict=True)
    }


def _executable_of(program: ProgramView) -> JaxExecutable:
    with jax.ensure_compile_time_eval():  # the processes of a job compare what they were given
        executable = program.executable
    assert isinstance(executable, JaxExecutable), "what the engine of JAX lowers a program to"
    return executable


def _seed(seed: Any) -> jax.Array:
    """Return what JAX traces of a seed; what an array holds cannot be checked.

    Raises:
        OptionError: it does not fit 32 bits.
    """
    if isinstance(seed, jax.Array):
        return seed.astype(jnp.uint32)
    is_integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed < 2**32:
        raise OptionError(f"seed={seed!r} is not an integer in [0, 2**32); give another")
    return jnp.asarray(seed, jnp.uint32)


def _leaf(x: Any) -> jax.Array:
    """Return what JAX traces of an argument."""
    if hasattr(x, "kind"):  # one of Mithril's arrays, as it lies
        return from_padded(x.shards, x.type.shape, x.sharding)
    return jnp.asarray(x)


def _check_names(given: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    if set(given) != set(names):
        raise GraphError(
            f"{what}s given to the function of as_jax are {listing(given) or 'none'}; the model "
            f"has {listing(names) or 'none'}; give exactly these"
        )
