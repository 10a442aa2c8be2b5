"""Devices that are only planned for: nobody opens them, and nothing runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Never

from mithril.engine.numpy_engine import NumpyEngine
from mithril.errors import BackendError
from mithril.ir import registry
from mithril.ops.definition import UserOp
from mithril.plan import Execution, Program
from mithril.plan.execution import ALL

PLANNED = "planned"
"""The platform of devices that nothing runs on."""


@dataclass(frozen=True, slots=True)
class PlannedEngine(NumpyEngine):
    """What an accelerator offers that has a compiler: kernels of all ops, fused and overlapped."""

    name = PLANNED

    @property
    def platform(self) -> str:
        """`planned`."""
        return PLANNED

    @property
    def devices(self) -> tuple[str, ...]:
        """One label per device."""
        return tuple(f"planned {index}" for index in self.mesh.flat)

    @property
    def kernels(self) -> frozenset[str]:
        """Names of all ops that some backend has a kernel for, those of users among them."""
        found = registry().items()
        users = (name for name, op in found if issubclass(op, UserOp) and op.definition.kernels)
        return frozenset(self.own_kernels).union(users)

    @property
    def execution(self) -> Execution:
        """A compiler fuses elementwise ops, and collectives go on beside other work."""
        in_arena = ALL if self.arrange else ()
        return Execution(fuses=True, overlaps=True, adds_narrow=True, in_arena=in_arena)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Never:
        """Refuse to run.

        Raises:
            BackendError: always.
        """
        raise BackendError(
            f"devices of {self.mesh!r} are planned for and not opened; nothing runs on them; open "
            f"a backend on devices that are there"
        )
