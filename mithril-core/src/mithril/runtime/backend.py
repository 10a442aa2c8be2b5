"""Backend: an engine opened on a mesh, with the functions that make and compute with arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np

from mithril.compiler import PlanOptions, Request
from mithril.compiler.communication_options import COMMUNICATE_AS_IT_PAYS, Communication
from mithril.compiler.options import check_precision
from mithril.cost import Hardware, find_hardware
from mithril.engine import Engine
from mithril.engine.checked_engine import look_at_engine
from mithril.engine.checks import is_checking
from mithril.errors import BackendError, kind_of, nearest
from mithril.ir import Builder, Op, Operand, Tensor
from mithril.mesh import Mesh, PartitionSpec, Sharding, coarse, may_meet
from mithril.ops.dynamic_slicing import DynamicSlice
from mithril.ops.own_kernel import choose_op
from mithril.ops.slicing import Slice
from mithril.options import AS_THEY_COME, Precision
from mithril.partition.compression import PLAIN, Compression
from mithril.partition.limits import check_dtypes
from mithril.runtime.array import Array, Kind
from mithril.runtime.bindings import Bindings
from mithril.runtime.call import Bound, Interface, bind
from mithril.runtime.creation import Creation
from mithril.runtime.eager_calls import EagerCalls
from mithril.runtime.eager_plans import find_common_sharding, plan_in_place, take_positions
from mithril.runtime.family import Family, bring_over, follow_kind
from mithril.runtime.functional.function import Function
from mithril.runtime.functions import EAGER, eager
from mithril.runtime.lru import LRUCache
from mithril.runtime.parallelism import AS_MODELS_SAY, Parallelism
from mithril.runtime.parameters import Parameters
from mithril.runtime.processes import meet
from mithril.runtime.sharing import Shared
from mithril.runtime.submesh import colocate, move_to
from mithril.runtime.unplaced import HostArray, PendingArray
from mithril.sharding import Layout, Search
from mithril.types import DType, Scalar, TensorType, check_number

EAGER_PLANS = 4096
"""How many plans of single ops a backend keeps; the one unused for longest goes first."""
RETRACED = 256
"""How many plans it keeps of functions that are traced at each call."""
NUMBERS = 256
"""How many Python numbers that met arrays a backend keeps on its devices."""
CALLS = 1024
"""How many calls of operators it knows again; one with a number keeps that on the devices, too."""


class Backend(Creation, Shared):
    """An engine on a mesh: makes arrays, computes with them eagerly, and runs compiled models.

    Open one with `ml.NumpyBackend(device_mesh=(4, 2))`, `ml.open_backend(name, …)` and the like.
    Besides the methods shown here it has the eager functions named in `Backend.functions`, such as
    `backend.argmax(x, axis=1)`.
    """

    functions: ClassVar[tuple[str, ...]] = EAGER

    def __init__(
        self,
        engine: Engine,
        uneven: str = "pad",
        precision: Precision = AS_THEY_COME,
        hardware: Hardware | None = None,
        parallelism: Parallelism = AS_MODELS_SAY,
        communication: Communication = COMMUNICATE_AS_IT_PAYS,
        compression: Compression = PLAIN,
        gather_dtype: DType | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise BackendError(
                f"Backend is given {kind_of(engine)}, which is no engine; derive from Engine, or "
                f"open one by name with ml.open_backend"
            )
        super().__init__()
        self.engine = engine
        self.uneven = uneven
        self.hardware = find_hardware(engine, hardware)
        self.precision = self.check_precision(precision)
        self.parallelism = parallelism
        self.communication = communication
        self.compression = compression
        self.gather_dtype = gather_dtype
        self.search: Search | None = None
        self.is_topology_aware = False
        self.own_options: Mapping[
            str, object
        ] = {}  # as it was opened with, besides the common ones
        self.family = Family()  # what it shares with backends of the same devices
        self._enter(engine)
        meet(self)

    def _enter(self, engine: Engine) -> None:
        """Begin without plans on an engine."""
        self.engine = look_at_engine(engine) if is_checking() else engine
        self._eager: Bindings[Hashable, None] = Bindings(EAGER_PLANS)
        self.op_functions: LRUCache[object, Function] = LRUCache(EAGER_PLANS)
        self.retraced: LRUCache[object, Bound[Any]] = LRUCache(RETRACED)
        self._numbers: LRUCache[object, Array] = LRUCache(NUMBERS)
        self.calls = EagerCalls(CALLS)  # of operators on its arrays
        self.interop = engine.interop
        self.interop.meet((Array, PendingArray), Parameters)

    def reorder(self, order: Sequence[str]) -> Backend:
        """Return the backend of the same devices with the mesh axes in another order.

        Either takes arrays of the other, and brings them to where it has them. The order is that of
        all models that are compiled for it: `network_topology_aware` chooses no other.

        Args:
            order: all axis names, the slowest first; see `Mesh`.

        Raises:
            MeshError: it does not name each axis once.

        >>> import mithril as ml
        >>> ml.open_backend("numpy", ml.Mesh(data=2, tensor=2)).reorder(("tensor", "data")).mesh
        Mesh(data=2, tensor=2, order=('tensor', 'data'))
        """
        mesh = self.mesh.reorder(order)
        known = self.family.backends
        known.setdefault(self.mesh, self)
        found = known.get(mesh)
        if not isinstance(found, Backend):
            found = known[mesh] = object.__new__(type(self))
            vars(found).update(vars(self))
            found._enter(self.engine_on(mesh))
            found.is_topology_aware = False
        return found

    def follow(self, kind: Kind) -> Kind:
        """Return the kind of an array as this backend has it; see `reorder`."""
        return follow_kind(self, kind) if self._is_related(kind.backend) else kind

    def _is_related(self, backend: object) -> bool:
        """Whether a backend is of the same devices in another order."""
        return backend is not self and self.family.has(backend)

    @property
    def mesh(self) -> Mesh:
        """The device mesh."""
        return self.engine.mesh

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.engine.name

    def to_numpy(self, x: Array | np.ndarray | np.generic) -> Any:
        """Return an array on the host; a scalar becomes a NumPy scalar.

        Raises:
            BackendError: the array belongs to another backend.
        """
        if isinstance(x, np.ndarray | np.generic):
            return x
        if not isinstance(x, Array) or not self._is_related(x.backend):
            self.own(x, "to_numpy")
        whole = x.numpy()
        return whole if whole.ndim else whole[()]

    def engine_on(self, mesh: Mesh) -> Engine:
        """Return the engine of the devices of a mesh: of all of them, or of a part."""
        return self.engine.on(mesh)

    def own(self, x: object, what: str) -> Array:
        """Return `x` if it is an array of this backend.

        Raises:
            BackendError: it belongs to another backend, or is no array.
        """
        if isinstance(x, Tensor):
            raise BackendError(
                f"{what} is a tensor of a function that is being traced; call the layer or model "
                f"itself inside the function, and what runs on arrays outside of it"
            )
        if not isinstance(x, Array):
            raise BackendError(
                f"{what} is {kind_of(x)}, not an array of backend '{self.name}'; make one with "
                f"backend.array(…)"
            )
        if x.backend is not self:
            if self._is_related(x.backend):
                return bring_over(self, x)
            raise BackendError(
                f"{what} belongs to another backend, one opened before or after this {self!r}; "
                f"carry it over with backend.array(x.numpy())"
            )
        return x

    def as_array(self, x: object, what: str) -> Array:
        """Return an array of this backend; those of its framework are taken as they lie.

        NumPy arrays and Python numbers are put on its devices.

        Raises:
            BackendError: `x` belongs to another backend or is something else.
        """
        if isinstance(x, np.ndarray | np.generic | bool | int | float):
            return self.array(x)
        adopted = self.adopt(x)
        return self.own(x, what) if adopted is None else adopted

    def as_unplaced(self, x: object, what: str, dtype: DType | None = None) -> Array:
        """Return an array of this backend; values of the host wait there for a plan to place them.

        Args:
            x: an array, or a number.
            what: what it is, for messages.
            dtype: of values of the host; by default as `array` reads them.

        Raises:
            BackendError: `x` belongs to another backend or is something else.
        """
        is_number = isinstance(x, np.ndarray | np.generic | bool | int | float)
        if is_number or (self.mesh.size > 1 and self.interop.host(x) is not None):
            host, type = self.read_host(x, dtype, what)
            return HostArray(self, type, host)
        return self.as_array(x, what)

    def check_precision(self, precision: Precision) -> Precision:
        """Return a precision, all of whose dtypes the engine has.

        Raises:
            OptionError: it is no `Precision`.
            BackendError: the engine lacks a dtype.
        """
        checked = check_precision(precision)
        for option, dtype in checked.list_given():
            self.check_dtype(DType(dtype), f"the option '{option}'")
        return checked

    def reshard(self, x: Array, sharding: PartitionSpec | Sharding) -> Array:
        """Return an array laid out otherwise on the mesh, by the cheapest moves; it is placed.

        Args:
            x: an array of this backend.
            sharding: how it shall lie.

        Raises:
            BackendError: the array belongs to another backend.
            MeshError: the mesh lacks an axis.
            ShardingError: parts would be uneven, and the backend has `uneven="error"`.
        """
        x = self.own(x, "array")
        return self.lay_out(x, self._sharding_of(x.type, {"sharding": sharding}))

    def lay_out(self, x: Array, wanted: Sharding) -> Array:
        """Return an array of this backend that lies as a plan says."""
        if wanted == x.sharding and (x.is_placed or self.mesh.size == 1):
            return x
        if wanted.mesh.numbering != x.sharding.mesh.numbering:
            return move_to(x, wanted, is_placed=True)
        form = ("reshard", wanted)
        bound = self._eager.find(form, (x.kind,))
        if bound is None and not may_meet(x.sharding.mesh, wanted.mesh):
            whole = Sharding.replicated(coarse(wanted.mesh), len(x.shape))
            return self.lay_out(self.lay_out(x, whole), wanted)
        if bound is None:
            bound = self._bind_reshard(x, wanted)
            self._eager.keep(form, (x.kind,), bound)
        return bound.run((x,))[0]

    @cached_property
    def _takes_positions(self) -> bool:
        """Whether a plan may be given where a slice begins."""
        return DynamicSlice.name in self.engine.kernels

    def run(self, op: Op, operands: Sequence[Operand]) -> tuple[Array, ...]:
        """Run one op on arrays now, through a cached plan of its own."""
        mesh, arrays = self.engine.mesh, operands
        kinds: list[Kind] = []
        for x in operands:
            kind = x.kind if type(x) is Array else None
            if kind is None or kind.backend is not self or kind.sharding.mesh is not mesh:
                arrays = colocate(self, [self.own(x, f"operand of '{op.name}'") for x in operands])
                kinds = [x.kind for x in arrays]
                break
            kinds.append(kind)
        if isinstance(op, Slice) and self._takes_positions:
            moved = take_positions(op, kinds[0])
            if moved is not None:
                starts = [self.constant(start, DType.int32) for start in moved[1]]
                return self.run(moved[0], [*arrays, *starts])
        bound = self._eager.find(op, kinds)
        if bound is None:
            bound = self._bind_op(op, kinds)
            self._eager.keep(op, kinds, bound)
        given = cast("Sequence[Array]", arrays)
        made = tuple(bound.run(given))
        self.calls.note(bound, given, made)
        return made

    def constant(self, value: Scalar, dtype: DType) -> Array:
        """Return a number as an array, the same one for the same number.

        A plan takes the number as an argument: one that changes from call to call needs no other
        plan, and one that does not change is on the devices already.

        Raises:
            ShapeError: the dtype does not hold it.
        """
        # 2 and 2.0 are equal, and so are 0.0 and -0.0.
        key = dtype, type(value), value or str(value), value
        known = self._numbers.get(key)
        if type(known) is Array:  # nobody has given it up
            self.calls.note_number(known)
            return known
        check_number(value, dtype)
        host, sharding = np.asarray(value, dtype.numpy), Sharding.replicated(self.mesh, 0)
        made = self.place(TensorType((), dtype), sharding, lambda box: host, is_placed=False)
        self._numbers.put(key, made)  # a call is known again from its second time on
        return made

    def _bind_reshard(self, x: Array, wanted: Sharding) -> Bound[None]:
        builder = Builder()
        graph = builder.build({"result": builder.input(x.type, "x")})
        request = Request({"x": Layout(arrives=x.sharding), "result": Layout(leaves=wanted)})
        interface = Interface("reshard()", self, None, ("x",), ("result",))
        options = self.communication.apply(PlanOptions())
        return bind(self.engine_on(wanted.mesh), graph, request, interface, options)

    def _bind_op(self, op: Op, kinds: Sequence[Kind]) -> Bound[None]:
        engine = self.engine_on(kinds[0].sharding.mesh) if kinds else self.engine
        builder = Builder()
        names = tuple(f"operand_{i}" for i in range(len(kinds)))
        operands = [builder.input(kind.type, name) for kind, name in zip(kinds, names, strict=True)]
        results = builder.apply(op, *operands)
        made = {f"result_{i}": x for i, x in enumerate(results)}
        is_placed = any(kind.is_placed for kind in kinds)
        interface = Interface(
            f"op '{op.name}'", self, None, names, tuple(made), is_placed=is_placed
        )
        lying = find_common_sharding(op, kinds)
        if lying is not None and op.name in engine.kernels:
            plan = plan_in_place(choose_op(op, self.name), kinds, lying)
            check_dtypes(plan, engine.name, engine.dtypes)
            return Bound(engine, plan, interface)
        request = Request(
            {n: Layout(arrives=k.sharding) for n, k in zip(names, kinds, strict=True)}
        )
        options = self.communication.apply(PlanOptions(pads=self.uneven == "pad"))
        return bind(engine, builder.build(made), request, interface, options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self.functions:
            return eager(self, name)
        if name.startswith("_"):
            raise AttributeError(name)
        known = [*self.functions, *(n for n in dir(type(self)) if not n.startswith("_"))]
        raise AttributeError(
            f"backend '{self.name}' has no function '{name}'{nearest(name, known)}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.functions]

    def __repr__(self) -> str:
        return f"Backend('{self.name}', {self.mesh!r})"
