"""The JAX engine: devices of one platform, and programs as jitted functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from mithril.engine import Engine, Observer
from mithril.engine.kernels.custom import kernels_for
from mithril.engine.protocol import Produce
from mithril.mesh import Mesh, Sharding
from mithril.plan import Program, Whole
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType

from mithril_jax import hlo
from mithril_jax.devices import Devices, arrange, find_devices, read_config
from mithril_jax.interop import JaxInterop
from mithril_jax.kernels import KERNELS, kernels_on
from mithril_jax.lower import function_of, needs_flag, output_order, whole_function
from mithril_jax.options import JaxOptions
from mithril_jax.processes import join
from mithril_jax.transfer import make_transfer

IN_FLIGHT = 8
"""How many runs may be queued on several CPU devices: XLA can deadlock when they are too many."""
_in_flight: deque[jax.Array] = deque()  # of the whole process, as XLA's threads are
_WIDE = frozenset({DType.int64, DType.uint64, DType.float64})


def open_engine(mesh: Mesh, options: JaxOptions) -> JaxEngine:
    """Open the devices of a mesh.

    Raises:
        BackendError: there are too few, or none of the platform.
        OptionError: an option does not fit the devices.
    """
    options.check_mesh(mesh.shape)
    join()
    found = find_devices(mesh.size, options.wanted_platform)
    options.check_devices(found)
    return JaxEngine(mesh, Devices(mesh, arrange(mesh, found)), options)


@dataclass(frozen=True, eq=False)
class JaxEngine(Engine):
    """JAX arrays as handles; see `mithril.engine.Engine`."""

    mesh: Mesh
    opened: Devices
    options: JaxOptions
    name = "jax"

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self.opened.platform

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device, as JAX writes it."""
        return tuple(map(str, self.opened.flat))

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices of this process."""
        return self.opened.local

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the ops with a kernel."""
        return frozenset(kernels_for(self.name, KERNELS))

    @property
    def dtypes(self) -> frozenset[DType]:
        """All dtypes; those of 64 bits if JAX has them switched on."""
        every = frozenset(DType)
        return every if read_config("jax_enable_x64") else every - _WIDE

    @cached_property
    def interop(self) -> JaxInterop:
        """What users of JAX are offered."""
        return JaxInterop(self)

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> jax.Array:
        """Make a distributed array."""
        return self.opened.put(type, sharding, produce)

    def shard(self, shards: jax.Array, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds."""
        return self.opened.part(shards, device)

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices, the same one every time."""
        found = self.parts.get(mesh)
        if found is None:
            found = self.parts[mesh] = replace(self, mesh=mesh, opened=self.opened.some(mesh))
        return found

    def lower_transfer(self, transfer: Transfer) -> Callable[[jax.Array], jax.Array]:
        """Return the function that brings a value from some devices to others."""
        return make_transfer(transfer, self.opened)

    @cached_property
    def parts(self) -> dict[Mesh, Self]:
        """The engines of the parts that are in use."""
        return {}

    def lower(self, program: Program, donate: Collection[int] = ()) -> JaxExecutable:
        """Turn a program into a jitted function; `donate` are inputs that are given up."""
        kernels = kernels_for(self.name, kernels_on(self.platform))
        function = function_of(program, self.opened, kernels)
        return JaxExecutable(program, function, self, tuple(donate))

    def lower_whole(
        self, whole: Whole, program: Program, donate: Collection[int] = ()
    ) -> JaxExecutable:
        """Turn a graph on whole tensors into a jitted function, if that is the strategy."""
        if self.options.pjit_lowering_strategy != "gspmd" or self.mesh.size == 1:
            return self.lower(program, donate)
        kernels = kernels_for(self.name, kernels_on(self.platform))
        function = whole_function(whole, program, self.opened, kernels)
        return JaxExecutable(program, function, self, tuple(donate), flagged=False)


class JaxExecutable:
    """A program as one jitted function of JAX arrays.

    Args:
        program: what runs: its ports say how inputs and outputs lie.
        function: the program as a function that JAX traces.
        engine: where.
        donate: positions of inputs whose memory the outputs may take.
        flagged: whether the function takes a flag besides; by default as the program needs it.
    """

    def __init__(
        self,
        program: Program,
        function: Callable[..., list[Any]],
        engine: JaxEngine,
        donate: tuple[int, ...] = (),
        *,
        flagged: bool | None = None,
    ) -> None:
        self.program = program
        self.function = function
        # On several devices outputs leave in their own order, and nothing has to be put back.
        order = output_order(program) if program.mesh.size == 1 else None
        self._restore_order = None if order is None else np.argsort(order).tolist()
        # What takes no input runs where its outputs are wanted, not on JAX's first device.
        placed = None if program.inputs else SingleDeviceSharding(engine.opened.flat[0])
        self.jitted = jax.jit(
            function if order is None else lambda *inputs: _reorder(function(*inputs), order),
            donate_argnums=donate,
            out_shardings=placed if engine.mesh.size == 1 else None,
            compiler_options=engine.options.compiler_options(engine.platform),
        )
        self._engine = engine
        self._flagged = needs_flag(program, engine.platform) if flagged is None else flagged
        self._is_capped = engine.platform == "cpu" and engine.mesh.size > 1

    def __call__(
        self, inputs: Sequence[jax.Array], observe: Observer | None = None
    ) -> list[jax.Array]:
        """Run once, without waiting for the result.

        An observer is told of the collectives as XLA compiled them.
        """
        given = (*inputs, self._flag) if self._flagged else inputs
        results: list[jax.Array] = self.jitted(*given)
        if self._restore_order is not None:
            results = _reorder(results, self._restore_order)
        if self._is_capped and results:
            self._wait_for_earlier(results[0])
        if observe is not None:
            for row in self.collectives(inputs):
                observe(*row)
        return results

    def collectives(self, inputs: Sequence[jax.Array]) -> list[hlo.Row]:
        """Return kind, mesh axes and bytes of every collective, as XLA compiled them; see `hlo`."""
        text = self._compile(inputs).as_text()
        return hlo.collectives(text or "", self.program.mesh)

    def memory(self, inputs: Sequence[jax.Array]) -> Any:
        """Return what XLA tells of the memory of a device, as `memory_analysis` of JAX does."""
        return self._compile(inputs).memory_analysis()

    def _compile(self, inputs: Sequence[jax.Array]) -> jax.stages.Compiled:
        given = (*inputs, self._flag) if self._flagged else inputs
        return self.jitted.lower(*given).compile()

    def trace(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for arrays that JAX is tracing."""
        given = (*inputs, jnp.zeros((), bool)) if self._flagged else inputs
        results: list[Any] = self.function(*given)
        return results

    @cached_property
    def _flag(self) -> jax.Array:
        replicated = Sharding.replicated(self._engine.mesh, 0)
        off = np.zeros((), bool)
        return self._engine.put(TensorType((), DType.bool_), replicated, lambda box: off)

    def _wait_for_earlier(self, result: jax.Array) -> None:
        _in_flight.append(result)
        if len(_in_flight) == IN_FLIGHT:
            # Asking costs microseconds: it is done once for the older half, which ends in order.
            for _ in range(IN_FLIGHT // 2):
                earlier = _in_flight.popleft()
            if not earlier.is_deleted():  # it was donated, so a later run waits for it
                earlier.block_until_ready()


def _reorder(items: Sequence[Any], order: Sequence[int]) -> list[Any]:
    return [items[i] for i in order]
