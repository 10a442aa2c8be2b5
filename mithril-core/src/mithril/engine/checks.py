"""Checks of what a backend gives: what its kernels return, and what its devices hold.

The first time that a lowered program runs, every kernel's result is looked at: its number, shape
and dtype are known beforehand, and a later run makes no others. What leaves an engine (`put`, what
programs return, `shard`) is looked at without a copy. With `MITHRIL_CHECK=1` kernels are looked at
in every run, operands are compared with what they were before, and `check_engine` has the engine's
own methods looked at, too, by values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import numpy as np

from mithril.engine.kernels.custom import name_dtype
from mithril.engine.raised import Place, find_raised
from mithril.errors import BackendError, FaultyBackendError, MithrilError, kind_of
from mithril.ir import Node
from mithril.mesh import Mesh, Sharding
from mithril.ops.definition import UserOp
from mithril.ops.host import FromHost, ToHost
from mithril.types import DType, TensorType

VARIABLE = "MITHRIL_CHECK"
SHOWN = 60
"""Characters of a library's own text that are shown."""
Run = Callable[..., Any]


def is_checking() -> bool:
    """Return whether `MITHRIL_CHECK=1` is set."""
    return os.environ.get(VARIABLE) == "1"


@contextmanager
def checking(is_on: bool = True) -> Iterator[None]:
    """Have everything looked at, as with `MITHRIL_CHECK=1`, of what is opened and run within.

    Args:
        is_on: False for nothing, as without the variable.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1" if is_on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def place_in_code(node: Node) -> str:
    """Return the user's layer and line of a node, as far as known."""
    scope = [f"'{node.scope}'"] if node.scope else []
    return ", ".join([*scope, *([str(node.source)] if node.source else [])])


@dataclass(frozen=True, slots=True)
class KernelChecks:
    """Whose kernels are looked at, and how its arrays name their dtypes.

    Args:
        backend: its name, for messages.
        dtype_name: from the dtype of one of its arrays to its name, such as `float32`.
    """

    backend: str = ""
    dtype_name: Callable[[Any], str] = name_dtype

    def make(self, node: Node, kernels: Mapping[str, Callable[[Any, Any], Run]]) -> Run:
        """Return the kernel of a node.

        Args:
            node: what it is for.
            kernels: factories by op name.

        Raises:
            BackendError: the table has no kernel for it, or what makes the kernel raises.
        """
        op = node.op
        if op.name not in kernels:
            raise BackendError(
                f"{self.name(node)} is not in the table that programs are lowered with, and the "
                f"backend says that it has one; lower with Engine.kernel_table"
            )
        try:
            return kernels[op.name](op, [value.type for value in node.inputs])
        except Exception as error:
            if is_named(error, node):
                raise
            raise self.explain(node, error) from error

    def guard(self, node: Node, kernel: Run) -> Run:
        """Return a kernel whose results are looked at; see `drop_guards`.

        Args:
            node: what it is called for.
            kernel: from the operands to the result, or to a tuple of results.
        """
        if isinstance(node.op, ToHost | FromHost) or node.op.overwrites:
            return kernel  # it may count who holds its operands, or returns what is no array
        return _Guarded(self, node, kernel)

    def refuse(self, node: Node, found: object) -> FaultyBackendError:
        """Return the error of a kernel that returns something else than it has to."""
        wanted = ", ".join(str(value.type) for value in node.outputs)
        return FaultyBackendError(
            f"{self.name(node)} returns {self.describe(found)} for {_types_of(node)}; the op's "
            f"result is {wanted}; return that{_say_unknown(self, found)}{_suffix(node)}"
        )

    def explain(self, node: Node, error: Exception) -> FaultyBackendError:
        """Return the error of a kernel, or of what makes one, that raises; in one line."""
        text, (at, shared) = " ".join(str(error).split()), find_raised(error)
        return FaultyBackendError(
            f"{self.name(node)} raises {type(error).__name__}: {text}{f' ({at})' if at else ''}; "
            f"its operands are {_types_of(node)}; {_say_remedy(node, shared)}{_suffix(node)}"
        )

    def name(self, node: Node) -> str:
        """Return what a message calls the kernel of a node."""
        own = f" of backend '{self.backend}'" if self.backend else ""
        return f"kernel '{node.op.name}'{own}"

    def describe(self, found: object) -> str:
        """Return what a message says of a result."""
        if isinstance(found, tuple | list):
            return f"{kind_of(found)} of {', '.join(map(self.describe, found)) or 'nothing'}"
        dtype, shape = getattr(found, "dtype", None), getattr(found, "shape", None)
        if dtype is None or shape is None:
            return kind_of(found)
        if not _is_shape(shape):
            name = self.dtype_name(dtype)
            return f"{kind_of(found)} of shape `{_show(shape)}` and dtype '{name}'"
        return f"{self.dtype_name(dtype)}[{', '.join(map(str, shape))}]"

    def fits(self, found: object, type: TensorType) -> bool:
        """Return whether an array has the shape and the dtype of a type."""
        shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
        if not isinstance(shape, Sequence) or dtype is None:
            return False
        return tuple(shape) == type.shape and self.dtype_name(dtype) == type.dtype.value


def _say_unknown(checks: KernelChecks, found: object) -> str:
    """Return a hint if a result has a shape or a dtype that Mithril cannot read."""
    results = found if isinstance(found, tuple | list) else (found,)
    arrays = [x for x in results if hasattr(x, "dtype")]
    hints = [
        f"shape is `{_show(x.shape)}`, not a tuple of ints; wrap the library's arrays in a "
        f"class that has one, see docs/plugins/libraries.md"
        for x in arrays
        if not _is_shape(getattr(x, "shape", ()))
    ][:1]
    names = {checks.dtype_name(x.dtype) for x in arrays} - {dtype.value for dtype in DType}
    hints += [
        f"'{name}' is no dtype of Mithril; Engine.dtype_name says what it is called"
        for name in sorted(names)[:1]
    ]
    return f" ({'; '.join(hints)})" if hints else ""


def _is_shape(shape: Any) -> bool:
    """Return whether something is a shape as Mithril reads it: a tuple of ints, or a list."""
    return isinstance(shape, Sequence) and all(isinstance(n, int | np.integer) for n in shape)


def _show(shape: object) -> str:
    """Return how a shape prints, in one line of no great length."""
    text = " ".join(repr(shape).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def drop_guards(names: dict[str, Any]) -> None:
    """Have kernels that were looked at once called as they are.

    Args:
        names: the variables of a program, of which some are guarded kernels.
    """
    names |= {name: x.kernel for name, x in names.items() if isinstance(x, _Guarded)}


class _Guarded:
    """A kernel whose results are looked at; its operands, too, with `MITHRIL_CHECK=1`."""

    __slots__ = ("checks", "is_strict", "kernel", "made", "node", "unreadable")

    def __init__(self, checks: KernelChecks, node: Node, kernel: Run) -> None:
        self.checks, self.node, self.kernel = checks, node, kernel
        self.is_strict = is_checking()
        self.made: list[ref[Any]] = []
        self.unreadable: set[type] = set()  # asking a tracer of JAX takes milliseconds

    def __call__(self, *operands: Any) -> Any:
        if not self.is_strict:
            return self._look_at(self.kernel(*operands))
        before = list(self._copy(operands))
        found = self._look_at(self.kernel(*operands))
        for what, x, copy in before:
            if copy is not None and not _is_same(copy, _to_host(x)):
                raise FaultyBackendError(
                    f"{self.checks.name(self.node)} writes into {what}, which others read; return "
                    f"a new array{_suffix(self.node)}"
                )
        del before
        self.made = [r for r in self.made if r() is not None]
        self.made += _refer_to(found if isinstance(found, tuple | list) else (found,))
        return found

    def _look_at(self, found: Any) -> Any:
        values = self.node.outputs
        results = (found,) if len(values) == 1 else found
        if not isinstance(results, tuple | list) or len(results) != len(values):
            raise self.checks.refuse(self.node, found)
        for value, result in zip(values, results, strict=True):
            if not self.checks.fits(result, value.type):
                raise self.checks.refuse(self.node, found)
        return found

    def _copy(self, operands: Sequence[Any]) -> Iterator[tuple[str, Any, np.ndarray | None]]:
        """Yield what the kernel must not write to, with copies: operands, and earlier results."""
        for position, x in enumerate(operands[: len(self.node.inputs)]):
            yield f"its operand {position}", x, self._read(x)
        for made in self.made:
            x = made()
            if x is not None:
                yield "a result that it returned before", x, self._read(x)

    def _read(self, x: Any) -> np.ndarray | None:
        """Return a copy of an array, None where NumPy cannot make one of its type."""
        if type(x) in self.unreadable:
            return None
        found = _to_host(x)
        if found is None:
            self.unreadable.add(type(x))
        return found


def _refer_to(results: Sequence[Any]) -> Iterator[ref[Any]]:
    for result in results:
        try:
            yield ref(result)
        except TypeError:  # arrays of some frameworks cannot be referred to weakly
            continue


def _to_host(x: Any) -> np.ndarray | None:
    """Return a copy of an array, None where NumPy cannot make one, as of one being traced.

    Of what has a length and elements alone NumPy makes an array of objects, which says nothing of
    values: each time they are others.
    """
    # What is traced has no device; asked for its values, JAX searches the program for an answer.
    reads = (np.array, np.from_dlpack) if hasattr(x, "__dlpack_device__") else (np.array,)
    for read in reads:
        try:
            found = np.array(read(x), copy=True)
        except Exception:  # each framework has errors of its own
            continue
        if not found.dtype.hasobject:
            return found
    return None


def _is_same(before: np.ndarray, after: np.ndarray | None) -> bool:
    if after is None:
        return True
    return before.shape == after.shape and before.tobytes() == after.tobytes()


def _types_of(node: Node) -> str:
    return ", ".join(str(value.type) for value in node.inputs) or "no operands"


def _say_remedy(node: Node, shared: Place | None) -> str:
    """Return what to do about a kernel that raises, in a line of a shared one if it did."""
    from mithril.engine.standard.table import function_of

    if shared is not None:
        return (
            f"the kernel is shared, and asks the library for `{shared.asks}` ({shared.at}); have "
            f"the namespace or its arrays give that, register your own kernel, or leave it out"
        )
    function = function_of(node.op.name)
    hint = f" (the shared one is the namespace's `{function}` itself)" if function else ""
    return f"mend the kernel{hint}, register your own in its place, or leave it out"


def _suffix(node: Node) -> str:
    place = place_in_code(node)
    return f" (in {place})" if place else ""


def is_named(error: Exception, node: Node) -> bool:
    """Return whether an error has its own text: a user's kernel says where it stands."""
    return isinstance(error, MithrilError | MemoryError) or isinstance(node.op, UserOp)


# ------------------------------------------------------------------ what devices hold


class _Owner(Protocol):
    """Whose handle it is: an engine, which stands above this module."""

    name: str

    @property
    def mesh(self) -> Mesh: ...

    @property
    def local_devices(self) -> tuple[int, ...]: ...

    @property
    def process_count(self) -> int: ...

    @property
    def kernel_checks(self) -> KernelChecks: ...


def check_handle(
    engine: _Owner, what: str, shards: Any, type: TensorType, sharding: Sharding
) -> None:
    """Raise if a handle that is a list of arrays has others than its devices must hold.

    Other handles are the engine's own affair; `check_part` looks at what is read of them. A process
    without a device of the array's mesh, such as one of another stage of a pipeline, may hold None.

    Args:
        engine: whose handle it is.
        what: what made the handle, for the message.
        shards: the handle.
        type: global shape and dtype.
        sharding: how the array lies.

    Raises:
        FaultyBackendError: it has.
    """
    if shards is None:
        here = {engine.mesh.in_whole(device) for device in engine.local_devices}
        if engine.process_count > 1 and here.isdisjoint(sharding.mesh.flat):
            return
        raise FaultyBackendError(f"{what} of backend '{engine.name}' returns None; return a handle")
    if not isinstance(shards, list):
        return
    size = sharding.mesh.size
    if engine.process_count == 1 and len(shards) != size:
        raise FaultyBackendError(
            f"{what} of backend '{engine.name}' returns the parts of {len(shards)} devices of "
            f"{size} for {type}; return one for each"
        )
    local, checks = TensorType(sharding.local_shape(type.shape), type.dtype), engine.kernel_checks
    for part in shards:
        if hasattr(part, "dtype") and not checks.fits(part, local):
            raise FaultyBackendError(
                f"{what} of backend '{engine.name}' returns {checks.describe(part)} for a device "
                f"that holds {local} of {type}; return what it holds{_say_unknown(checks, part)}"
            )


def check_executable(backend: str, what: str, made: Any) -> Any:
    """Return what an engine lowered something to, if it can be called.

    Args:
        backend: the backend's name.
        what: the method that returned it, for the message.
        made: what it returned.

    Raises:
        FaultyBackendError: it cannot.
    """
    if not callable(made):
        raise FaultyBackendError(
            f"{what} of backend '{backend}' returns {kind_of(made)}; return a function that runs "
            f"what it was given"
        )
    return made


def check_part(backend: str, part: Any, type: TensorType, sharding: Sharding) -> np.ndarray:
    """Return what `shard` gave if it is what a device holds.

    Args:
        backend: the backend's name.
        part: what `shard` returned.
        type: global shape and dtype.
        sharding: how the array lies.

    Raises:
        FaultyBackendError: it is something else.
    """
    local = sharding.local_shape(type.shape)
    if isinstance(part, np.ndarray) and part.dtype == type.dtype.numpy:
        if part.shape == local:
            return part
        if not part.size and 0 in local:  # a framework may not split what has no elements
            return part.reshape(local)
    found = KernelChecks().describe(part)
    raise FaultyBackendError(
        f"array {type} of backend '{backend}' is read as {found}, and its devices hold "
        f"{TensorType(local, type.dtype)}; a kernel, put or shard of the backend returns another "
        f"type; MITHRIL_CHECK=1 says which"
    )
