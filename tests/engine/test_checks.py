"""What a backend gives is looked at: kernels, handles, parts, and what an engine says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.engine import Engine
from mithril.engine.checks import VARIABLE, KernelChecks, check_handle, is_checking
from mithril.engine.declared import check_declared
from mithril.engine.kernels import Kernel
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.numpy_engine import NUMPY_KERNELS, NumpyEngine
from mithril.engine.protocol import Executable, Produce
from mithril.errors import BackendError, FaultyBackendError
from mithril.mesh import Mesh, Sharding
from mithril.plan import Program
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType

from tests.engine.programs import f32, graph_of, program_of

MESH = Mesh(data=2, tensor=2)
IN_ACT = r" \(in 'act', test_checks.py:\d+\)$"


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


@pytest.fixture(autouse=True)
def not_checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@dataclass(frozen=True, slots=True)
class Faulty(NumpyEngine):
    """The NumPy engine with other kernels."""

    table: Mapping[str, Kernel] = field(default_factory=lambda: NUMPY_KERNELS)
    name = "faulty"

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        return self.table


def with_kernel(op: str, run: Callable[..., Any]) -> Faulty:
    return Faulty(MESH, table={**NUMPY_KERNELS, op: lambda op, types: run})


def evaluate(engine: Engine) -> ml.CompiledModel:
    """Compute outputs and gradients of two layers with an activation, on four devices."""
    backend = ml.Backend(engine)
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="input", output="h")
    model += ml.Relu(name="act")(input="h", output="a")
    model += ml.Linear(4, name="down")(input="a", output="output")
    model.shard({"up.weight": P("tensor", None)})
    compiled = ml.compile(
        model, backend, shapes={"input": ml.TensorSpec((4, 6), sharding=P("data"))}
    )
    x = backend.randn(4, 6, sharding=P("data"))
    given = {"output": np.ones((4, 4), np.float32)}
    compiled.evaluate(compiled.randomize_params(seed=0), {"input": x}, given)
    return compiled


def burn(*operands: Any) -> Any:
    raise ZeroDivisionError("chip on fire")


RETURNS = {
    "float64": (lambda x: x.astype(np.float64), r"float64\[2, 4\]"),
    "transposed": (lambda x: x.T, r"float32\[4, 2\]"),
    "None": (lambda x: None, "None"),
    "a tuple": (lambda x: (x, x), r"a tuple of float32\[2, 4\], float32\[2, 4\]"),
    "a number": (lambda x: 1.0, "a float"),
    "a list": (lambda x: x.tolist(), "a list of a list of "),
}


@pytest.mark.parametrize("case", RETURNS)
def test_a_kernel_that_returns_something_else_is_named(case: str) -> None:
    run, found = RETURNS[case]
    text = rf"^kernel 'relu' of backend 'faulty' returns {found}"
    with pytest.raises(BackendError, match=text) as error:
        evaluate(with_kernel("relu", run))
    assert error.match(
        r"for float32\[2, 4\]; the op's result is float32\[2, 4\]; return that" + IN_ACT
    )


def test_a_kernel_that_raises_is_named() -> None:
    text = r"^kernel 'relu' of backend 'faulty' raises ZeroDivisionError: chip on fire \(test_checks.py:\d+\); its operands are float32\[2, 4\]; mend the kernel, register your own in its place, or leave it out"  # fmt: skip
    with pytest.raises(BackendError, match=text + IN_ACT) as error:
        evaluate(with_kernel("relu", burn))
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    factory = Faulty(MESH, table={**NUMPY_KERNELS, "relu": burn})
    with pytest.raises(BackendError, match=text + IN_ACT):
        evaluate(factory)


def test_a_kernel_that_raises_later_is_named_too() -> None:
    calls: list[int] = []

    def fickle(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("tired")
        return np.maximum(x, 0)

    backend = ml.Backend(with_kernel("relu", fickle))
    backend.relu(backend.ones(3))
    with pytest.raises(BackendError, match="'relu' of backend 'faulty' raises ValueError: tired"):
        backend.relu(backend.ones(3))


def test_kernels_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def shrink(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x[: 7 - len(calls)]

    program = program_of(Mesh(), graph_of(ops.tanh, x=f32(6)))
    table = {**NUMPY_KERNELS, "tanh": lambda op, types: shrink}
    for is_always in (False, True):
        monkeypatch.setenv(VARIABLE, str(int(is_always)))
        calls.clear()
        executable = LockstepExecutable(program, table, np)
        given = [[np.ones(6, np.float32)]]
        assert executable(given)[0][0].shape == (6,)
        if not is_always:
            assert executable(given)[0][0].shape == (5,)
            continue
        with pytest.raises(
            BackendError, match=r"^kernel 'tanh' returns float32\[5\] for float32\[6\]"
        ):
            executable(given)


def test_a_table_and_the_names_of_kernels_are_one() -> None:
    class Hasty(Faulty):
        """Lowers with a table of its own."""

        __slots__ = ()

        def lower(self, program: Program, donate: Any = ()) -> Executable:
            table = {name: k for name, k in NUMPY_KERNELS.items() if name != "tanh"}
            return LockstepExecutable(program, table, np, checks=self.kernel_checks)

    backend = ml.Backend(Hasty(MESH))
    with pytest.raises(
        BackendError, match=r"^kernel 'tanh' of backend 'faulty' is not in the table"
    ):
        backend.tanh(backend.ones(3))
    assert Faulty(MESH).kernels >= set(NUMPY_KERNELS)


# ------------------------------------------------------------------ what leaves an engine


class Puts(Faulty):
    """Puts something else."""

    __slots__ = ()

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Any:
        return PUT(super().put(type, sharding, produce))


def PUT(shards: Any) -> Any:  # noqa: N802
    return shards


WRONG_PUTS = {
    "too few": (
        lambda x: x[:2],
        "the parts of 2 devices of 4 for float32\\[3\\]; return one for each",
    ),
    "float64": (
        lambda x: [part.astype(np.float64) for part in x],
        r"float64\[3\] for a device that holds float32\[3\] of float32\[3\]",
    ),
    "None": (lambda x: None, "None; return a handle"),
}


@pytest.mark.parametrize("case", WRONG_PUTS)
def test_what_put_returns_is_looked_at(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, found = WRONG_PUTS[case]
    monkeypatch.setattr(f"{__name__}.PUT", function)
    with pytest.raises(BackendError, match=f"^put of backend 'faulty' returns {found}"):
        ml.Backend(Puts(MESH)).ones(3)


@pytest.mark.usefixtures("checking")
def test_values_that_put_changes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PUT", lambda x: [part * 2 for part in x])
    text = r"^put of backend 'faulty' gives device 0 other values of float32\[3\] than produce"
    with pytest.raises(BackendError, match=text):
        ml.Backend(Puts(MESH)).ones(3)


class Shards(Faulty):
    """Reads something else."""

    __slots__ = ()

    def shard(self, shards: Any, sharding: Sharding, device: int) -> Any:
        return PUT(super().shard(shards, sharding, device))


def test_what_shard_returns_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    for function, found in (
        (lambda x: x[None], r"float32\[1, 3\]"),
        (lambda x: x.astype(np.float64), r"float64\[3\]"),
        (lambda x: None, "None"),
        (lambda x: x.tolist(), "a list of a float"),
    ):
        monkeypatch.setattr(f"{__name__}.PUT", function)
        x = ml.Backend(Shards(MESH)).ones(3)
        text = (
            rf"^array float32\[3\] of backend 'faulty' is read as {found}.*, and its devices hold"
        )
        with pytest.raises(BackendError, match=text):
            x.numpy()


@pytest.mark.usefixtures("checking")
def test_shard_returns_what_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PUT", np.copy)
    with pytest.raises(BackendError, match="returns an array that can be written to, which may be"):
        ml.Backend(Shards(MESH)).ones(3).numpy()
    monkeypatch.setattr(f"{__name__}.PUT", lambda x: None)
    with pytest.raises(
        BackendError, match=r"^shard of backend 'faulty' returns None; return a Num"
    ):
        ml.Backend(Shards(MESH)).ones(3).numpy()


class Programs(Faulty):
    """Its programs return something else."""

    __slots__ = ()

    def lower(self, program: Program, donate: Any = ()) -> Executable:
        run = super().lower(program, donate)
        return lambda inputs, observe=None: PUT(run(inputs, observe))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: None, "returns None for 1 outputs; return a handle for each"),
        (lambda x: [*x, *x], "returns 2 handles for 1 outputs"),
        (lambda x: [None], "as output 'result_0', of backend 'faulty' returns None"),
        (lambda x: [[y[:2] for y in x[0]]], r"returns float32\[2\] for a device that holds"),
    ],
)
def test_what_programs_return_is_looked_at(
    function: Callable[..., Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.PUT", function)
    backend = ml.Backend(Programs(MESH))
    with pytest.raises(BackendError, match=found):
        backend.tanh(backend.ones(3))


# ------------------------------------------------------------------ aliasing


def write(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0, out=x)


def test_a_kernel_that_writes_into_its_operand_is_found(checking: None) -> None:
    text = "^kernel 'relu' of backend 'faulty' writes into its operand 0, which others read; return"
    with pytest.raises(BackendError, match=text):
        evaluate(with_kernel("relu", write))


def test_a_kernel_that_writes_into_its_last_result_is_found(checking: None) -> None:
    memory = np.zeros((2, 4), np.float32)
    text = "'relu' of backend 'faulty' writes into a result that it returned before"
    with pytest.raises(BackendError, match=text):
        evaluate(with_kernel("relu", lambda x: np.maximum(x, 0, out=memory)))


class Writes(Faulty):
    """Its programs write into their inputs."""

    __slots__ = ()

    def lower(self, program: Program, donate: Any = ()) -> Executable:
        run = super().lower(program, donate)

        def execute(inputs: Sequence[Any], observe: Any = None) -> list[Any]:
            made = run(inputs, observe)
            inputs[0][0][...] = 7
            return made

        return execute


def test_a_program_that_writes_into_its_inputs_is_found(checking: None) -> None:
    backend = ml.Backend(Writes(MESH))
    text = r"^program of backend 'faulty' writes into its input 'operand_0', float32\[3\], which is not"
    with pytest.raises(BackendError, match=text):
        backend.tanh(backend.ones(3))


class Moves(Faulty):
    """Its transfers bring something else, or change what they take."""

    __slots__ = ()

    def lower_transfer(self, transfer: Transfer) -> Callable[[Any], Any]:
        carry_out = super().lower_transfer(transfer)
        return lambda shards: PUT((shards, carry_out(shards)))


def staged(engine: Engine) -> None:
    model = ml.Model()
    model |= ml.Linear(4, device_id=0)(input="input", output="h")
    model += ml.Linear(4, device_id=1)(input="h", output="output")
    compiled = ml.compile(model, ml.Backend(engine), shapes={"input": (2, 4)})
    compiled.evaluate(compiled.randomize_params(), {"input": np.ones((2, 4), np.float32)})


def change(both: Any) -> Any:
    both[0][0][...] = 7
    return [x.copy() for x in both[1]]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda both: [x + 1 for x in both[1]], "brings device 1 other values of float32"),
        (
            lambda both: [x[:1] for x in both[1]],
            r"^transfer of backend 'faulty' returns float32\[1, 4\]",
        ),
        (change, "changes the value that it takes, "),
    ],
)
def test_transfers_are_looked_at(
    function: Callable[..., Any], found: str, checking: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.PUT", function)
    with pytest.raises(BackendError, match=found):
        staged(Moves(Mesh(pipeline=2)))


def test_what_is_right_passes(checking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_checking()
    evaluate(Faulty(MESH))
    monkeypatch.setattr(f"{__name__}.PUT", lambda both: both[1])
    staged(Moves(Mesh(pipeline=2)))
    backend = ml.NumpyBackend(Mesh(data=2))
    assert type(backend.engine).__name__ == "NumpyEngine"
    assert isinstance(backend.engine, NumpyEngine)


# ------------------------------------------------------------------ what an engine says of itself


def declared(**said: Any) -> Engine:
    """Return an engine that says other things of itself."""
    own = {name: property(lambda self, x=x: x) for name, x in said.items()}
    kind = type("Says", (Faulty,), {"__slots__": (), **own})
    made = object.__new__(kind)
    object.__setattr__(made, "mesh", MESH) if "mesh" not in said else None
    object.__setattr__(made, "table", NUMPY_KERNELS)
    assert isinstance(made, Engine)
    return made


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"name": "numpy"}, "is named 'numpy', by which kernels of users are found; give the class"),
        ({"mesh": Mesh(data=4)}, r"has Mesh\(data=4\), opened on Mesh\(data=2, tensor=2\); keep"),
        ({"devices": ("one",)}, "names 1 devices of Mesh.*; give a label for each of the 4"),
        ({"dtypes": {"float31"}}, "has a str 'float31' among its dtypes, which is no DType; known: .*; did you mean 'float32'"),
        ({"dtypes": frozenset({DType.int32, DType.float16})}, r"has no dtype float32, which parameters have unless told otherwise; it has 'float16', 'int32'; does the namespace have `float32`\?"),
        ({"dtypes": frozenset()}, r"has no dtype float32, .*; it has none; does the namespace"),
        ({"capabilities": {"all_reduced"}}, "offers collective 'all_reduced', which does not exist; did you mean 'all_reduce'"),
        ({"kernels": frozenset({"tanh"}), "own_kernels": {}}, "has kernels that are not those of its table: they differ by 'tanh'; leave"),
    ],
)  # fmt: skip
def test_what_an_engine_says_of_itself_is_looked_at(said: dict[str, Any], found: str) -> None:
    check_declared(declared(), "faulty", MESH)
    with pytest.raises(BackendError, match=f"^engine of backend 'faulty' {found}"):
        check_declared(declared(**said), "faulty", MESH)


def test_a_backend_takes_an_engine() -> None:
    with pytest.raises(BackendError, match=r"^Backend is given an int, which is no engine; derive"):
        ml.Backend(42)  # type: ignore[arg-type]


# ------------------------------------------------------------------ dtypes


@dataclass(frozen=True, slots=True)
class FewTypes(Faulty):
    """Without most dtypes."""

    @property
    def dtypes(self) -> frozenset[DType]:
        return frozenset({DType.float32, DType.int32})


def of_layer(layer: ml.Layer) -> ml.Model:
    model = ml.Model()
    model |= layer(input="input", output="output")
    return model


def test_plans_keep_to_the_dtypes_of_an_engine() -> None:
    backend = ml.Backend(FewTypes(MESH))
    text = r"^op '\w+' at 'dropout_0' \(test_checks.py:\d+\) makes \w+\[.*\], and backend 'faulty' has no dtype \w+; it has 'float32', 'int32'; use another dtype or layer there, or"  # fmt: skip
    with pytest.raises(BackendError, match=text):
        ml.compile(of_layer(ml.Dropout(0.5)), backend, shapes={"input": (4, 4)})
    given = {"input": ml.TensorSpec((4, 4), dtype="float64")}
    text = r"^op 'relu' at 'relu_0' \(test_checks.py:\d+\) makes float64\[4, 4\], and backend"
    with pytest.raises(BackendError, match=text):
        ml.compile(of_layer(ml.Relu()), backend, shapes=given)
    ids = {"input": ml.TensorSpec((3,), dtype="int64")}
    text = r"^plan takes 'input' as int64\[3\], and backend 'faulty' has no dtype int64; it has"
    with pytest.raises(BackendError, match=text):
        ml.compile(of_layer(ml.Embedding(5, 4)), backend, shapes=ids)
    for function in (
        lambda: backend.ones(3) > backend.zeros(3),
        lambda: backend.ones(3).astype("float64"),
    ):
        with pytest.raises(BackendError, match="has no dtype"):
            function()
    assert backend.ones(3).astype("int32").numpy().tolist() == [1, 1, 1]


def test_names_of_dtypes() -> None:
    checks = KernelChecks()
    assert checks.describe(SimpleNamespace(dtype="torch.float32", shape=(2,))) == "float32[2]"
    assert checks.describe(()) == "a tuple of nothing"


def test_a_dtype_of_an_unknown_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "dtype_name", lambda self, dtype: str(dtype).rstrip("0123456789"))
    text = r"^put of backend 'faulty' returns float\[3\] for a device that holds float32\[3\]"
    backend = ml.Backend(Faulty(MESH))
    with pytest.raises(BackendError, match=text):
        backend.ones(3)
    given = graph_of(ops.tanh, x=f32(6)).nodes[0]
    refused = KernelChecks("faulty", lambda dtype: "float").refuse(given, np.ones(6, np.float32))
    assert str(refused) == (
        "kernel 'tanh' of backend 'faulty' returns float[6] for float32[6]; the op's result is "
        "float32[6]; return that ('float' is no dtype of Mithril; Engine.dtype_name says what it "
        "is called)"
    )


def test_a_process_may_hold_nothing_of_a_stage_that_others_run() -> None:
    stages = Mesh(pipeline=2, data=2)
    type = TensorType((4, 3), DType.float32)

    def check(device: int, processes: int, stage: int) -> None:
        part = stages.part({"pipeline": stage})
        owner: Any = SimpleNamespace(
            name="faulty", mesh=stages, local_devices=(device,), process_count=processes
        )
        check_handle(owner, "put", None, type, Sharding.of(part, P("data"), 2))

    check(device=3, processes=4, stage=0)
    for device, processes, stage in ((3, 4, 1), (0, 4, 0), (3, 1, 0)):
        with pytest.raises(FaultyBackendError, match="put of backend 'faulty' returns None"):
            check(device, processes, stage)
