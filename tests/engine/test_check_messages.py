"""What is said of kernels that raise, and of arrays that NumPy cannot read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import ops
from mithril.engine.checks import VARIABLE, KernelChecks
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.standard import bind_namespace
from mithril.errors import FaultyBackendError
from mithril.mesh import Mesh

from tests.engine.programs import apply_op, f32, graph_of, program_of


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


class Lacks:
    """A namespace that gives other arrays, or none, where it is asked for some function."""

    def __init__(self, **functions: Any) -> None:
        self.functions = functions

    def __getattr__(self, name: str) -> Any:
        return self.functions[name] if name in self.functions else getattr(np, name)


def burn_once(x: Any) -> Any:
    raise ZeroDivisionError("chip on fire")


SHARED = {
    "a function of the namespace that raises": (
        ops.Sigmoid(), {"exp": burn_once},
        r"raises ZeroDivisionError: chip on fire \(test_check_messages.py:\d+\); its operands are "
        r"float32\[3\]; the kernel is shared, and asks the library for `xp.exp\(-xp.abs\(x\)\)` "
        r"\(elementwise.py:\d+\); have the namespace or its arrays give that, register your own",
    ),
    "what arrays lack": (
        ops.Sigmoid(), {"exp": lambda x: "abc"},
        r"raises \w+: .*; the kernel is shared, and asks the library for `one \+ small`",
    ),
    "a function itself": (
        ops.Tanh(), {"tanh": burn_once},
        r"chip on fire \(test_check_messages.py:\d+\); its operands are float32\[3\]; mend the kernel "
        r"\(the shared one is the namespace's `tanh` itself\), register your own in its place",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED)
def test_a_shared_kernel_that_raises_says_what_it_asks_for(case: str) -> None:
    op, functions, text = SHARED[case]
    graph = graph_of(lambda x: apply_op(op, x), x=f32(3))
    kernels = bind_namespace(Lacks(**functions))  # type: ignore[arg-type]
    executable = LockstepExecutable(program_of(Mesh(), graph), kernels, np)
    with pytest.raises(FaultyBackendError, match=text):
        executable([[np.ones(3, np.float32)]])


class Rows:
    """An array of a library that NumPy does not know: it has a length and elements alone."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Rows:
        return Rows(self.values[index])


class Exported(Rows):
    """The same, which can be exported without a copy."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def on_rows(kind: type[Rows], run: Callable[[Rows], Rows]) -> Callable[[], Any]:
    """Return what calls a kernel on arrays that NumPy does not know, looked at by values."""
    graph = graph_of(ops.tanh, x=f32(2, 3))
    kernel = KernelChecks("rows").guard(graph.nodes[0], run)
    return lambda: kernel(kind(np.ones((2, 3), np.float32)))


def test_arrays_that_numpy_does_not_know_are_not_said_to_be_written_to(checking: None) -> None:
    assert np.array(Rows(np.ones((2, 3)))).dtype == object
    for kind in (Rows, Exported):
        on_rows(kind, lambda x, kind=kind: kind(np.tanh(x.values)))()  # type: ignore[misc]


def test_arrays_that_can_be_exported_are_looked_at(checking: None) -> None:
    def write(x: Rows) -> Rows:
        x.values[:] = 0
        return Exported(x.values.copy())

    with pytest.raises(FaultyBackendError, match="writes into its operand 0"):
        on_rows(Exported, write)()


# ------------------------------------------------------------------ what a library's arrays are

FOREIGN: dict[str, tuple[Callable[[np.ndarray], tuple[object, object]], str]] = {
    "a shape that is no tuple": (
        lambda part: (SimpleNamespace(dims=part.shape), part.dtype),
        r"a SimpleNamespace of shape `namespace\(dims=\(3,\)\)` and dtype 'float32' for a device that "
        r"holds float32\[3\] of float32\[3\]; return what it holds \(shape is `namespace\(dims=\(3,"
        r"\)\)`, not a tuple of ints; wrap the library's arrays in a class that has one",
    ),
    "a shape of floats": (
        lambda part: ((np.nan,), part.dtype),
        r"a SimpleNamespace of shape `\(nan,\)` and dtype 'float32' for a device",
    ),
    "a dtype by another name": (
        lambda part: (part.shape, "<dtype: 'float32'>"),
        r"<dtype: 'float32'>\[3\] for .*; return what it holds \('<dtype: 'float32'>' is no dtype of "
        r"Mithril; Engine.dtype_name says",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_arrays_that_mithril_cannot_read_are_described(case: str) -> None:
    describe, text = FOREIGN[case]

    class Foreign(NumpyEngine):
        """Its library has shapes and dtypes of its own."""

        __slots__ = ()

        def put(self, *given: Any) -> Any:
            pairs = map(describe, super().put(*given))
            return [SimpleNamespace(shape=shape, dtype=dtype) for shape, dtype in pairs]

    with pytest.raises(FaultyBackendError, match=f"^put of backend 'numpy' returns {text}"):
        ml.Backend(Foreign(Mesh())).ones(3)


@pytest.mark.usefixtures("checking")
def test_a_scalar_of_numpy_is_no_array() -> None:
    class Scalars(NumpyEngine):
        """It reads what has no dimensions as a number."""

        __slots__ = ()

        def shard(self, *given: Any) -> Any:
            return super().shard(*given)[()]

    text = r"^shard .* returns .*; return a NumPy array, np.asarray\(x\) of a scalar$"
    with pytest.raises(FaultyBackendError, match=text):
        ml.Backend(Scalars(Mesh())).array(1.0).numpy()
