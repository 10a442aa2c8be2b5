"""Programs as jitted functions of JAX arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from mithril.spi import DType, Issued, Observer, Program, Sharding, TensorType, carry

from mithril_jax import hlo
from mithril_jax.devices import Devices
from mithril_jax.donation import name_donations, order_outputs, pair_donated
from mithril_jax.lower import needs_flag, output_order
from mithril_jax.options import JaxOptions
from mithril_jax.processes import raise_if_lost

IN_FLIGHT = 8
"""How many runs may be queued on several CPU devices: XLA can deadlock when they are too many."""
_in_flight: deque[jax.Array] = deque()  # of the whole process, as XLA's threads are


class JaxExecutable:
    """A program as one jitted function of JAX arrays.

    Args:
        program: what runs: its ports say how inputs and outputs lie.
        function: the program as a function that JAX traces.
        devices: where.
        options: of the backend.
        donate: positions of inputs whose memory the outputs may take.
        flagged: whether the function takes a flag besides; by default as the program needs it.
    """

    def __init__(
        self,
        program: Program,
        function: Callable[..., list[Any]],
        devices: Devices,
        options: JaxOptions,
        donate: tuple[int, ...] = (),
        *,
        flagged: bool | None = None,
    ) -> None:
        self.program = program
        self.function = function
        # On several devices outputs leave in their own order where donation needs no other one.
        own = list(range(len(program.outputs)))
        pairs = pair_donated(program, donate)
        first = output_order(program) if program.mesh.size == 1 else own
        order = order_outputs(program, first, pairs)
        self._restore_order = None if order == own else np.argsort(order).tolist()
        self._order_outputs = _make_picker(self._restore_order) if self._restore_order else None
        self._flagged = needs_flag(program, devices.platform) if flagged is None else flagged
        # XLA:CPU starts what an input makes ready before it takes the next one. What is given up
        # comes first, so that all that one gradient updates is computed while that is in a cache.
        given_up = name_donations(program, donate, pairs)
        count = len(program.inputs) + self._flagged
        entered = [*given_up, *(i for i in range(count) if i not in given_up)]
        self._enter_order = None if entered == sorted(entered) else entered
        self._order_inputs = _make_picker(entered) if self._enter_order else None
        back = np.argsort(entered).tolist()

        def run(*inputs: Any) -> list[Any]:
            return _reorder(function(*_reorder(inputs, back)), order)

        self._reordered = function if entered == sorted(entered) and order == own else run
        self._jit_options: dict[str, Any] = {
            "donate_argnums": tuple(range(len(given_up))),
            "out_shardings": _say_shardings(program, devices, order if pairs else ()),
            "compiler_options": options.compiler_options(devices.platform),
        }
        self.jitted = jax.jit(self._reordered, **self._jit_options)
        self.devices = devices
        self._is_capped = devices.platform == "cpu" and devices.mesh.size > 1
        enters_as_given = self._order_inputs is None and not self._flagged
        self._is_plain = enters_as_given and not self._is_capped
        leaves_as_made = self._order_outputs is None
        # On one device there is no other process that may be lost.
        is_alone = self._is_plain and leaves_as_made and devices.mesh.size == 1
        self.positional = self.jitted if is_alone else None

    def __call__(
        self, inputs: Sequence[jax.Array], observe: Observer | None = None
    ) -> list[jax.Array]:
        """Run once, without waiting for the result.

        An observer is told of the collectives as XLA compiled them.
        """
        if observe is None and self._is_plain:  # a small step would feel anything else
            try:
                made: list[jax.Array] = self.jitted(*inputs)
            except (RuntimeError, ValueError) as error:
                raise_if_lost(error)
                raise
            return made if self._order_outputs is None else list(self._order_outputs(made))
        results = self.run_compiled(self.jitted, inputs)
        if observe is not None:
            for issued in self.collectives(inputs):
                observe(issued)
        return results

    def run_compiled(self, run: Callable[..., Any], inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the results of a compiled form of the program, in the order of its outputs."""
        try:
            results: list[jax.Array] = run(*self._enter(inputs))
        except (RuntimeError, ValueError) as error:
            raise_if_lost(error)
            raise
        if self._order_outputs is not None:
            results = list(self._order_outputs(results))
        if self._is_capped and results:
            self._wait_for_earlier(results[0])
        return results

    def compile_as(self, name: str, inputs: Sequence[jax.Array]) -> jax.stages.Compiled:
        """Compile the program under a name, by which JAX's profiler knows it."""

        def run(*given: Any) -> list[Any]:
            return self._reordered(*given)

        run.__name__ = name
        return jax.jit(run, **self._jit_options).lower(*self._enter(inputs)).compile()

    def collectives(self, inputs: Sequence[jax.Array]) -> list[Issued]:
        """Return every collective, as XLA compiled them; see `hlo`."""
        text = self._compile(inputs).as_text()
        return hlo.collectives(text or "", self.program.mesh, self.program.graph)

    def memory(self, inputs: Sequence[jax.Array]) -> Any:
        """Return what XLA tells of the memory of a device, as `memory_analysis` of JAX does."""
        return self._compile(inputs).memory_analysis()

    def _compile(self, inputs: Sequence[jax.Array]) -> jax.stages.Compiled:
        return self.jitted.lower(*self._enter(inputs)).compile()

    def _enter(self, inputs: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Return what the jitted function is given, in the order in which it takes it."""
        given = (*inputs, self._flag) if self._flagged else inputs
        return given if self._order_inputs is None else self._order_inputs(given)

    def trace(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for arrays that JAX is tracing."""
        given = (*inputs, jnp.zeros((), bool)) if self._flagged else inputs
        results: list[Any] = self.function(*given)
        return results

    @cached_property
    def _flag(self) -> jax.Array:
        replicated = Sharding.replicated(self.devices.mesh, 0)
        off = np.zeros((), bool)
        return self.devices.put(TensorType((), DType.bool_), replicated, lambda box: off)

    def _wait_for_earlier(self, result: jax.Array) -> None:
        _in_flight.append(result)
        if len(_in_flight) == IN_FLIGHT:
            # Asking costs microseconds: it is done once for the older half, which ends in order.
            for _ in range(IN_FLIGHT // 2):
                earlier = _in_flight.popleft()
            if not earlier.is_deleted():  # it was donated, so a later run waits for it
                try:
                    earlier.block_until_ready()
                except (RuntimeError, ValueError) as error:
                    raise_if_lost(error)
                    raise


def _say_shardings(program: Program, devices: Devices, order: Sequence[int]) -> Any:
    """Return how outputs lie, in an order, if JAX has to be told.

    What uses no input runs where its outputs are wanted, not on JAX's first device. JAX would not
    count its results as placed either, and compile a program anew for those that are. On several
    devices, donated memory goes to the outputs that `order_outputs` means only if it is said how
    they lie: otherwise XLA pairs all of one size.
    """
    if devices.mesh.size == 1:
        graph = program.graph
        used = {*graph.outputs.values(), *(value for node in graph.nodes for value in node.inputs)}
        is_placed = not used.isdisjoint(graph.inputs)
        return None if is_placed else SingleDeviceSharding(devices.flat[0])
    ports = [program.outputs[position] for position in order]
    said = [devices.sharding(carry(port.sharding, program.mesh)) for port in ports]
    return said or None


def _make_picker(order: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what brings items into an order; there are hundreds, in every call."""
    if len(order) > 1:
        return itemgetter(*order)
    return lambda items: _reorder(items, order)


def _reorder(items: Sequence[Any], order: Sequence[int]) -> list[Any]:
    return [items[i] for i in order]
