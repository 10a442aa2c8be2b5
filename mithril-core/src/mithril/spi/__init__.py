"""The one import of those who write plugins: all that a backend needs of Mithril, and no more.

Names are resolved when they are first used, so that a plugin's own module, which declares the
backend, stays light: `from mithril.spi import BackendSpec, hookimpl` imports neither NumPy nor an
engine. What is here is recorded with its signatures and changes with `BACKEND_API` alone; see
`docs/plugins/versions.md`. Ops, as classes, are in `mithril.spi.ops`.

* Plugin declaration: `BACKEND_API`, `BackendSpec`, `Command`, `LaunchRequest`, `free_port`,
  `hookimpl`, `MEMORY_FORMATS`, `check_choice`, `check_flag`, `check_seconds`, `choose_name`.
* What plugins bring besides backends: `PluginKernel`, `Compiled`, `Evaluated`, `PassTarget`,
  `register_plugin`, `unregister_plugin`.
* Engine and its base class: `Engine`, `Executable`, `Handle`, `Observer`, `Produce`, `Execution`,
  `ALL_OPS`.
* Programs and plan: `Builder`, `Graph`, `Node`, `Op`, `Phase`, `Tensor`, `Value`, `op_registry`,
  `all_nodes`, `communicates`, `map_bodies`, `regions`, `rewrite`, `unroll`, `walk`, `find_begun`,
  `join_starts`, `Issued`, `Plan`, `Port`, `Program`, `Whole`, `IssuedRow`, `find_issued`,
  `issue_node`, `Message`, `Messages`, `GRADIENT_PREFIX`, `issue_transfer`, `describe_collective`,
  `Chunk`, `StageRun`, `StageSend`, `Timetable`, `Transfer`.
* Types and meshes: `Box`, `Mesh`, `Sharding`, `carry`, `coarsen`, `DType`, `Scalar`, `Shape`,
  `TensorType`, `as_dtype`, `promote`, `Types`.
* Kernels and tables: `ArrayNamespace`, `EXTENSIONS`, `SHARED_KERNELS`, `bind_namespace`,
  `dtype_in`, `kernels_for`, `Kernel`, `KernelTable`, `KernelRun`, `fix_column_signs`,
  `fix_qr_signs`, `accumulator`, `THREEFRY_PARITY`, `THREEFRY_ROTATIONS`, `KernelChecks`,
  `join_equal_scalars`,
  `OfImages`, `channels_second`, `lay_channels_last`.
* Collectives and transports: `JobStore`, `LockstepExecutable`, `RankExecutable`, `TransportCall`,
  `Transport`, `ArrivedChunk`, `move_shards`, `join_chunks`, `take_chunk`.
* Memory: `Arena`, `Arrange`, `NO_ARENA`, `SimulatedArenas`, `Writing`, `makes_anew`,
  `host_arena`, `find_overwritten`, `find_reused_operands`, `reuse_donated`.
* Host data: `host_shards`, `trim_padding`.
* Profiles: `EngineProfiler`, `Recorder`, `Marks`, `MeasuredLockstep`, `run_marked`, `MemoryUse`,
  `Segment`, `Span`, `segment_of`.
* Interop: `Adopted`, `ArrayMethods`, `ArrayView`, `BackendView`, `Interop`, `ModelMethods`,
  `ModelView`, `Placed`, `ProgramView`.
* Errors: `BackendError`, `GraphError`, `MithrilError`, `OptionError`, `listing`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mithril.engine import Engine, EngineProfiler, Executable, Handle, Observer, Recorder
    from mithril.engine.arena import NO_ARENA, Arena, Arrange, SimulatedArenas, Writing, makes_anew
    from mithril.engine.channels_last import OfImages, channels_second, lay_channels_last
    from mithril.engine.checks import KernelChecks
    from mithril.engine.equal_scalars import join_equal_scalars
    from mithril.engine.host_arena import host_arena
    from mithril.engine.interop import (
        Adopted,
        ArrayMethods,
        ArrayView,
        BackendView,
        Interop,
        ModelMethods,
        ModelView,
        Placed,
        ProgramView,
    )
    from mithril.engine.job_store import JobStore
    from mithril.engine.kernel_table import Kernel, KernelTable
    from mithril.engine.kernel_table import Run as KernelRun
    from mithril.engine.kernels import kernels_for
    from mithril.engine.kernels.matrix import fix_column_signs, fix_qr_signs
    from mithril.engine.kernels.precision import accumulator
    from mithril.engine.lockstep import LockstepExecutable
    from mithril.engine.marks import Marks
    from mithril.engine.measured import MeasuredLockstep, run_marked
    from mithril.engine.moving import Arrival as ArrivedChunk
    from mithril.engine.moving import move as move_shards
    from mithril.engine.moving import put_together as join_chunks
    from mithril.engine.moving import take as take_chunk
    from mithril.engine.operand_reuse import find_reused_operands
    from mithril.engine.protocol import Produce
    from mithril.engine.rank import RankExecutable
    from mithril.engine.recording import MemoryUse, Segment, Span, segment_of
    from mithril.engine.reuse import find_overwritten, reuse_donated
    from mithril.engine.shards import host_shards, trim_padding
    from mithril.engine.standard import (
        EXTENSIONS,
        SHARED_KERNELS,
        ArrayNamespace,
        bind_namespace,
        dtype_in,
    )
    from mithril.engine.standard.random import PARITY as THREEFRY_PARITY
    from mithril.engine.standard.random import ROTATIONS as THREEFRY_ROTATIONS
    from mithril.engine.transport import Call as TransportCall
    from mithril.engine.transport import Transport
    from mithril.errors import BackendError, GraphError, MithrilError, OptionError, listing
    from mithril.ir import Builder, Graph, Node, Op, Phase, Tensor, Value
    from mithril.ir import registry as op_registry
    from mithril.ir.op import Types
    from mithril.ir.rewrite import (
        all_nodes,
        communicates,
        map_bodies,
        regions,
        rewrite,
        unroll,
        walk,
    )
    from mithril.ir.start import find_begun, join_starts
    from mithril.mesh import Box, Mesh, Sharding, carry, coarsen
    from mithril.option_checks import (
        MEMORY_FORMATS,
        check_choice,
        check_flag,
        check_seconds,
        choose_name,
    )
    from mithril.plan import Execution, Issued, Plan, Port, Program, Whole
    from mithril.plan.execution import ALL as ALL_OPS
    from mithril.plan.issued import Row as IssuedRow
    from mithril.plan.issued import find_issued, issue_node
    from mithril.plan.messages import Message, Messages
    from mithril.plan.names import GRADIENT as GRADIENT_PREFIX
    from mithril.plan.plan import issue_transfer
    from mithril.plan.program import describe_collective
    from mithril.plan.timetable import Chunk, Timetable, Transfer
    from mithril.plan.timetable import Run as StageRun
    from mithril.plan.timetable import Send as StageSend
    from mithril.plugins import (
        BACKEND_API,
        BackendSpec,
        Command,
        Compiled,
        Evaluated,
        LaunchRequest,
        PassTarget,
        PluginKernel,
        free_port,
        hookimpl,
        register_plugin,
        unregister_plugin,
    )
    from mithril.spi import ops
    from mithril.types import DType, Scalar, Shape, TensorType, as_dtype, promote

__all__ = [
    "ALL_OPS", "Adopted", "Arena", "Arrange", "ArrayMethods", "ArrayNamespace", "ArrayView",
    "ArrivedChunk", "BACKEND_API", "BackendError", "BackendSpec", "BackendView", "Box", "Builder",
    "Chunk", "Command", "Compiled", "DType", "EXTENSIONS", "Engine", "EngineProfiler", "Evaluated",
    "Executable", "Execution", "GRADIENT_PREFIX", "Graph", "GraphError", "Handle", "Interop",
    "Issued", "IssuedRow", "JobStore", "Kernel", "KernelChecks", "KernelRun", "KernelTable",
    "LaunchRequest", "LockstepExecutable", "MEMORY_FORMATS", "Marks", "MeasuredLockstep",
    "MemoryUse", "Mesh", "Message", "Messages", "MithrilError", "ModelMethods", "ModelView",
    "NO_ARENA", "Node", "Observer", "OfImages", "Op", "OptionError", "PassTarget", "Phase",
    "Placed", "Plan", "PluginKernel", "Port", "Produce", "Program", "ProgramView", "RankExecutable",
    "Recorder", "SHARED_KERNELS", "Scalar", "Segment", "Shape", "Sharding", "SimulatedArenas",
    "Span", "StageRun", "StageSend", "THREEFRY_PARITY", "THREEFRY_ROTATIONS", "Tensor",
    "TensorType", "Timetable", "Transfer", "Transport", "TransportCall", "Types", "Value", "Whole",
    "Writing", "accumulator", "all_nodes", "as_dtype", "bind_namespace", "carry", "channels_second",
    "check_choice", "check_flag", "check_seconds", "choose_name", "coarsen", "communicates",
    "describe_collective", "dtype_in", "find_begun", "find_issued", "find_overwritten",
    "find_reused_operands", "fix_column_signs", "fix_qr_signs", "free_port", "hookimpl",
    "host_arena", "host_shards", "issue_node", "issue_transfer", "join_chunks",
    "join_equal_scalars", "join_starts", "kernels_for", "lay_channels_last", "listing",
    "makes_anew", "map_bodies", "move_shards", "op_registry", "ops", "promote", "regions",
    "register_plugin", "reuse_donated", "rewrite", "run_marked", "segment_of", "take_chunk",
    "trim_padding", "unregister_plugin", "unroll", "walk",
]  # fmt: skip

_HOMES = {
    "mithril.engine": ("Engine", "EngineProfiler", "Executable", "Handle", "Observer", "Recorder"),
    "mithril.engine.arena": (
        "Arena", "Arrange", "NO_ARENA", "SimulatedArenas", "Writing", "makes_anew",
    ),
    "mithril.engine.channels_last": ("OfImages", "channels_second", "lay_channels_last"),
    "mithril.engine.checks": ("KernelChecks",),
    "mithril.engine.equal_scalars": ("join_equal_scalars",),
    "mithril.engine.host_arena": ("host_arena",),
    "mithril.engine.interop": (
        "Adopted", "ArrayMethods", "ArrayView", "BackendView", "Interop", "ModelMethods",
        "ModelView", "Placed", "ProgramView",
    ),
    "mithril.engine.job_store": ("JobStore",),
    "mithril.engine.kernel_table": ("Kernel", "KernelTable", "Run as KernelRun"),
    "mithril.engine.kernels": ("kernels_for",),
    "mithril.engine.kernels.matrix": ("fix_column_signs", "fix_qr_signs"),
    "mithril.engine.kernels.precision": ("accumulator",),
    "mithril.engine.lockstep": ("LockstepExecutable",),
    "mithril.engine.marks": ("Marks",),
    "mithril.engine.measured": ("MeasuredLockstep", "run_marked"),
    "mithril.engine.moving": (
        "Arrival as ArrivedChunk", "move as move_shards", "put_together as join_chunks",
        "take as take_chunk",
    ),
    "mithril.engine.protocol": ("Produce",),
    "mithril.engine.rank": ("RankExecutable",),
    "mithril.engine.recording": ("MemoryUse", "Segment", "Span", "segment_of"),
    "mithril.engine.operand_reuse": ("find_reused_operands",),
    "mithril.engine.reuse": ("find_overwritten", "reuse_donated"),
    "mithril.engine.shards": ("host_shards", "trim_padding"),
    "mithril.engine.standard": (
        "ArrayNamespace", "EXTENSIONS", "SHARED_KERNELS", "bind_namespace", "dtype_in",
    ),
    "mithril.engine.standard.random": (
        "PARITY as THREEFRY_PARITY", "ROTATIONS as THREEFRY_ROTATIONS",
    ),
    "mithril.engine.transport": ("Call as TransportCall", "Transport"),
    "mithril.errors": ("BackendError", "GraphError", "MithrilError", "OptionError", "listing"),
    "mithril.ir": (
        "Builder", "Graph", "Node", "Op", "Phase", "Tensor", "Value", "registry as op_registry",
    ),
    "mithril.ir.op": ("Types",),
    "mithril.ir.rewrite": (
        "all_nodes", "communicates", "map_bodies", "regions", "rewrite", "unroll", "walk",
    ),
    "mithril.ir.start": ("find_begun", "join_starts"),
    "mithril.mesh": ("Box", "Mesh", "Sharding", "carry", "coarsen"),
    "mithril.option_checks": (
        "MEMORY_FORMATS", "check_choice", "check_flag", "check_seconds", "choose_name",
    ),
    "mithril.plan": ("Execution", "Issued", "Plan", "Port", "Program", "Whole"),
    "mithril.plan.execution": ("ALL as ALL_OPS",),
    "mithril.plan.issued": ("Row as IssuedRow", "find_issued", "issue_node"),
    "mithril.plan.messages": ("Message", "Messages"),
    "mithril.plan.names": ("GRADIENT as GRADIENT_PREFIX",),
    "mithril.plan.plan": ("issue_transfer",),
    "mithril.plan.program": ("describe_collective",),
    "mithril.plan.timetable": (
        "Chunk", "Run as StageRun", "Send as StageSend", "Timetable", "Transfer",
    ),
    "mithril.plugins": (
        "BACKEND_API", "BackendSpec", "Command", "Compiled", "Evaluated", "LaunchRequest",
        "PassTarget", "PluginKernel", "free_port", "hookimpl", "register_plugin",
        "unregister_plugin",
    ),
    "mithril.types": ("DType", "Scalar", "Shape", "TensorType", "as_dtype", "promote"),
}  # fmt: skip
"""By module, its names that are offered; `A as B` is offered as `B`."""


class Deprecated(NamedTuple):
    """A name that was offered, and still works with a warning.

    Args:
        home: the module and the name that it stands for: `mithril.engine:Engine`.
        since: the backend API that deprecated it.
        remedy: what to write instead.
    """

    home: str
    since: tuple[int, int]
    remedy: str


DEPRECATED: dict[str, Deprecated] = {}
"""By name; a name leaves this table with the next major number of the backend API, not earlier."""


def _index() -> dict[str, tuple[str, str]]:
    """Return for each name offered the module that has it, and its name there."""
    found = {}
    for home, names in _HOMES.items():
        for text in names:
            name, _, offered = text.partition(" as ")
            found[offered or name] = home, name
    return found


_HOME_OF = _index()


def __getattr__(name: str) -> object:
    if name == "ops":
        return import_module("mithril.spi.ops")
    if name in DEPRECATED:
        return _resolve_deprecated(name, DEPRECATED[name])
    if name not in _HOME_OF:
        from mithril.errors import nearest

        remedy = nearest(name, __all__) or "; dir(mithril.spi) lists what there is"
        raise AttributeError(f"mithril.spi has no '{name}'{remedy}")
    home, known_as = _HOME_OF[name]
    value = getattr(import_module(home), known_as)
    globals()[name] = value
    return value


def _resolve_deprecated(name: str, said: Deprecated) -> object:
    major, minor = said.since
    warnings.warn(
        f"mithril.spi.{name} is deprecated since backend API {major}.{minor}; {said.remedy}; "
        f"backend API {major + 1}.0 is without it",
        DeprecationWarning,
        stacklevel=3,
    )
    home, _, known_as = said.home.partition(":")
    return getattr(import_module(home), known_as)


def __dir__() -> list[str]:
    """Return what is offered, and what every module has; not what this one is made of."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
