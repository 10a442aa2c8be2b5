"""The shared kernels on `array-api-strict` with its strictest flags, against the kernels of NumPy."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_strict as strict
import mithril as ml
import numpy as np
import pytest
from array_api_compat import numpy as compat
from mithril import ops
from mithril.engine import standard
from mithril.engine.standard import (
    EXTENSIONS,
    SHARED_KERNELS,
    ArrayNamespace,
    bind_namespace,
    dtype_in,
)
from mithril.engine.standard.needs import functions_in
from mithril.errors import BackendError
from mithril.ir import Op, registry
from mithril.spi import (
    Engine,
    Executable,
    Kernel,
    LockstepExecutable,
    Mesh,
    Produce,
    Program,
    Sharding,
    Transfer,
    host_shards,
    move_shards,
)
from mithril.testing.cases import CASES, Case
from mithril.testing.evaluate import apply, assert_close, coarsest
from mithril.types import DType, TensorType, as_dtype

from tests.profiles import scaled

STRICTEST: dict[str, Any] = {
    "api_version": "2023.12", "boolean_indexing": False, "data_dependent_shapes": False,
    "enabled_extensions": (),
}  # fmt: skip
ON_HOST = {"to_host", "from_host"}
"""Ops of engines that keep values in the host arena; by default an engine has none."""
BY_EXECUTORS = {"all_gather", "all_reduce", "all_to_all", "axis_index", "permute", "reduce_scatter"}
"""What the executors of the core carry out themselves."""
OF_SHARDS = {"keep_first", "take_shard"}
"""Ops that only programs of several devices have."""
PRIMITIVE = {
    name
    for name, op in registry().items()
    if op.expand is Op.expand and op.has_kernel and op.__module__.startswith("mithril.ops.")
}
CHOSEN = [case for case in CASES if case.op.name in SHARED_KERNELS]
ARRAY = type(strict.zeros(()))


@pytest.fixture(autouse=True)
def _only_the_standard() -> Iterator[None]:
    with strict.ArrayAPIStrictFlags(**STRICTEST), np.errstate(all="ignore"):
        yield


def run_shared(op: Op, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run an op's shared kernel; its results are arrays of the namespace with the right types."""
    types = [TensorType(x.shape, as_dtype(x.dtype)) for x in arrays]
    given = [strict.asarray(np.asarray(x)) for x in arrays]
    found = bind_namespace(strict)[op.name](op, types)(*given)
    results = found if isinstance(found, tuple) else (found,)
    for result, type in zip(results, op.infer(types), strict=True):
        assert isinstance(result, ARRAY)
        assert (result.shape, result.dtype) == (type.shape, dtype_in(strict, type.dtype))
    return [np.asarray(result._array) for result in results]


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_each_runs_on_the_strictest_namespace(case: Case) -> None:
    if case.op.name in EXTENSIONS:
        assert case.op.name not in bind_namespace(strict)
        strict.set_array_api_strict_flags(enabled_extensions=(EXTENSIONS[case.op.name],))
    expected = apply(case.op, *case.arrays)
    for found, wanted in zip(run_shared(case.op, *case.arrays), expected, strict=True):
        assert_close(found, wanted, coarsest(*case.arrays, wanted))


def test_every_primitive_op_has_a_shared_kernel_and_a_case() -> None:
    names = set(SHARED_KERNELS)
    assert names >= PRIMITIVE - BY_EXECUTORS - ON_HOST
    assert names - OF_SHARDS <= {case.op.name for case in CASES}
    assert set(EXTENSIONS) <= names


def used_functions() -> set[str]:
    """Return what the shared kernels ask of a namespace, by its name `xp` and by the tables."""
    found: set[str] = set()
    for path in Path(standard.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found |= {node.attr} if node.value.id == "xp" else set()
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "same_name":
                (table,) = node.args
                assert isinstance(table, ast.Dict)
                found |= {
                    str(value.value) for value in table.values if isinstance(value, ast.Constant)
                }
    return found


def test_the_namespace_lists_what_is_used_and_no_more() -> None:
    listed = set(ArrayNamespace.__annotations__)
    read = {name for factory in SHARED_KERNELS.values() for name in functions_in(factory)}
    assert used_functions() <= read
    assert listed == read - set(EXTENSIONS.values())
    assert all(hasattr(strict, name) and hasattr(np, name) for name in listed)


class Recording:
    """A namespace that notes which of its functions are taken, or that lacks some."""

    def __init__(self, *lacking: str) -> None:
        self.lacking, self.taken = lacking, set[str]()

    def __getattr__(self, name: str) -> Any:
        if name in self.lacking:
            raise AttributeError(name)
        if name not in {dtype.value for dtype in DType}:
            self.taken.add(name)
        return getattr(compat, name)


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_what_each_takes_of_a_namespace_is_read_from_its_code(case: Case) -> None:
    xp = Recording()
    factory = SHARED_KERNELS[case.op.name]
    factory(case.op, [TensorType(x.shape, as_dtype(x.dtype)) for x in case.arrays], xp)(
        *case.arrays
    )
    assert xp.taken <= functions_in(factory)


def test_a_kernel_whose_functions_are_missing_is_not_bound() -> None:
    whole = set(bind_namespace(compat))
    assert whole == set(SHARED_KERNELS)

    def lost(*names: str, **functions: Any) -> set[str]:
        xp = Recording(*names)
        vars(xp).update(functions)
        return whole - set(bind_namespace(xp))  # type: ignore[arg-type]

    assert lost() == set()
    assert lost("atan") == {"arctan"}
    assert lost("argmin") == {"argmin"}
    assert lost("trunc") == {"trunc"}
    assert lost("argsort") == {"argsort", "sort", "top_k"}
    assert lost("linalg") == set(EXTENSIONS)
    some = SimpleNamespace(**{name: getattr(np.linalg, name) for name in ("inv", "solve", "qr")})
    assert lost(linalg=some) == {"cholesky", "det", "eigh", "svd"}


def test_parts_of_shards() -> None:
    x = np.arange(24.0).reshape(2, 6, 2)
    for index in range(3):
        at = np.asarray(index, np.int32)
        (found,) = run_shared(ops.TakeShard(1, 3), x, at)
        assert_close(found, x[:, 2 * index : 2 * index + 2])
        (found,) = run_shared(ops.KeepFirst(), x, at)
        assert_close(found, x * (index == 0))


@dataclass(frozen=True, slots=True)
class StrictEngine(Engine):
    """All that an engine on the standard has to have."""

    mesh: Mesh
    name = "strict"

    @property
    def platform(self) -> str:
        return "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"cpu {index}" for index in self.mesh.flat)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        return bind_namespace(strict)

    @property
    def dtypes(self) -> frozenset[DType]:
        return frozenset(dtype for dtype in DType if hasattr(strict, dtype.value))

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[Any]:
        return [strict.asarray(part) for part in host_shards(type, sharding, produce)]

    def shard(self, shards: list[Any], sharding: Sharding, device: int) -> np.ndarray:
        host = np.array(shards[device]._array)
        host.flags.writeable = False
        return host

    def part(self, mesh: Mesh) -> StrictEngine:
        return replace(self, mesh=mesh)

    def lower_transfer(self, transfer: Transfer) -> Any:
        return lambda shards: move_shards(shards, transfer, strict)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        return LockstepExecutable(program, self.kernel_table, strict, checks=self.kernel_checks)


def make_step(backend: ml.Backend) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return outputs and gradients of a small model with normalisation, Dropout and attention."""
    model = ml.Model()
    model |= ml.Embedding(vocab_size=12, embedding_dim=8)(input="ids", output="x")
    model += ml.LayerNorm()
    model += ml.MultiHeadAttention(num_heads=2, causal=True)
    model += ml.Dropout(0.25)
    model += ml.Linear(dimension=4, name="out")(output="y")
    model.shard({"out.weight": ml.P("model", None)})
    compiled = ml.compile(
        model, backend, shapes={"ids": ml.TensorSpec((4, 6), "int32", sharding=ml.P("data"))}
    )
    ids = np.arange(24, dtype=np.int32).reshape(4, 6) % 12
    outputs, gradients = compiled.evaluate(
        compiled.randomize_params(seed=1),
        {"ids": ids},
        {"y": np.ones((4, 6, 4), np.float32)},
        seed=3,
    )
    return outputs["y"].numpy(), {name: x.numpy() for name, x in gradients.items()}


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)])
def test_an_engine_on_the_standard_runs_plans(
    sizes: tuple[int, int],
) -> None:
    mesh = Mesh(data=sizes[0], model=sizes[1])
    expected = make_step(ml.NumpyBackend(mesh))
    found = make_step(ml.Backend(StrictEngine(mesh)))
    assert_close(found[0], expected[0], DType.float32)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert_close(found[1][name], gradient, DType.float32)


def test_a_users_kernel_runs_on_it() -> None:
    shift = ml.define_op(
        "strictly.shift", shapes=lambda x: x, rule="elementwise", attributes={"by": 1.0},
        kernels={"strict": lambda x, by: x + by},
    )  # fmt: skip
    backend = ml.Backend(StrictEngine(Mesh(data=2)))
    assert shift(backend.ones(3), by=2.0).numpy().tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_sorting_keeps_equal_elements_and_puts_nan_last(dtype: str, descending: bool) -> None:
    x = np.asarray([3, 1, 1, 0, 3, 2], dtype)
    if dtype == "float32":
        x[[0, 3]] = np.nan
    for op in (ops.Sort(0, descending), ops.Argsort(0, descending), ops.TopK(0, 4)):
        for found, wanted in zip(run_shared(op, x), apply(op, x), strict=True):
            assert_close(found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_is_right_everywhere(dtype: str) -> None:
    x = np.concatenate([np.linspace(-9, 9, scaled(2001)), [0.0, 1e-30, np.inf, -np.inf, np.nan]])
    (found,) = run_shared(ops.Erf(), x.astype(dtype))
    exact = np.asarray([math.erf(value) for value in x.astype(dtype)])
    assert_close(found.astype(np.float64), exact, DType(dtype))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    last = len(shape) - 1
    empty = (
        ops.Pad((1,) * len(shape), (2,) * len(shape), (1,) * len(shape)), ops.Cumsum(last, False),
        ops.Sum((last,), False), ops.Sort(last, True), ops.Flip((last,)),
    )  # fmt: skip
    for op in empty:
        for found, wanted in zip(run_shared(op, x), apply(op, x), strict=True):
            assert_close(found, wanted)


def test_a_dtype_that_a_namespace_lacks_is_named() -> None:
    small = SimpleNamespace(__name__="tiny", float32="f", int32="i")
    text = "array namespace 'tiny' has no dtype 'float64'; it has 'int32', 'float32'; leave the others out"
    with pytest.raises(BackendError, match=text):
        dtype_in(small, DType.float64)
