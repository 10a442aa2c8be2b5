"""Trials: inputs and gradients of the sizes that a plan is for, and a run that is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mithril.plan import Plan, Port
from mithril.plan.names import next_of
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.profiling import profile
from mithril.transform import cotangent_name


@dataclass(frozen=True, slots=True)
class Trial:
    """What a compiled model is run with to be measured.

    Args:
        compiled: the model.
        inputs: of the sizes of its plan: floats are random, integers 0.
        gradients: of its outputs, ones; None for a forward.
    """

    compiled: CompiledModel
    inputs: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray] | None

    @staticmethod
    def of(compiled: CompiledModel, plan: Plan) -> Trial:
        """Return that of a plan.

        Args:
            compiled: the model.
            plan: of it.
        """
        ports = {port.name: port for port in plan.inputs}
        rng = np.random.default_rng(0)
        given = {
            name: np.ones(ports[seed].type.shape, np.float32)
            for name in compiled.outputs
            if (seed := cotangent_name(name)) in ports
        }
        inputs = {name: make_values(ports[name], rng) for name in compiled.inputs if name in ports}
        return Trial(compiled, inputs, given or None)

    def time_layers(self) -> dict[str, float]:
        """Return the measured seconds of each layer, by path, forward and backward, when warm."""
        params = self.compiled.randomize_params(seed=0)
        self.compiled.evaluate(params, self.inputs, self.gradients)
        with profile(self.compiled.backend, profile_memory=False) as found:
            self.compiled.evaluate(params, self.inputs, self.gradients)
        return {path: float(row["seconds"]) for path, row in found.layers().items()}


def make_arguments(plan: Plan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return values for all inputs of a plan, with which a run takes as long as in use.

    Parameters are about as large as a layer draws them: larger ones make a softmax so sharp that
    what it gives are denormal numbers, with which a processor takes several times as long.
    Gradients of outputs are ones, and what a train step hands on to the next is zeros.

    Args:
        plan: of a model, or of a train step.
        rng: draws what is random.
    """
    leaves = {port.name for port in plan.outputs}
    seeds = set(map(cotangent_name, leaves))
    found = {}
    for port in plan.inputs:
        shape, dtype = port.type.shape, port.type.dtype.numpy
        if port.name in plan.parameters:
            values = make_values(port, rng) / np.sqrt(max(shape, default=1))
        elif port.name in seeds:
            values = np.ones(shape)
        else:
            is_state = next_of(port.name) in leaves
            values = np.zeros(shape) if is_state else make_values(port, rng)
        found[port.name] = values.astype(dtype)
    return found


def make_values(port: Port, rng: np.random.Generator) -> np.ndarray:
    """Return values for an input: random floats, or integers that index any table."""
    shape, dtype = port.type.shape, port.type.dtype
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32)
    return np.zeros(shape, bool if str(dtype) == "bool" else np.int32)


__all__ = ["Trial", "make_arguments"]
