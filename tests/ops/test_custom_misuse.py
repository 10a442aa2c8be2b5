"""Ops that users define: defining them again, backends without a kernel, and wrong kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.engine.kernels import KERNELS, kernels_for
from mithril.engine.numpy_engine import NumpyEngine
from mithril.errors import BackendError, GraphError, OptionError, ShapeError
from mithril.ir import registry
from mithril.mesh import Mesh
from mithril.runtime import Backend
from mithril.types import DType, TensorType

from tests.graphs import run, values_for
from tests.ops.custom_ops import F32, Define, activation_model, f64, graph_of, norm_kernel
from tests.tolerances import TOLERANCE

# ------------------------------------------------------------------ defining again


def scaled(name: str, factor: float) -> Define:
    return ml.define_op(
        name, shapes=lambda x: x, rule="elementwise", kernels={"numpy": lambda x: x * factor}
    )


def test_the_same_place_may_define_an_op_again() -> None:
    x = ml.NumpyBackend().ones(2)
    twice = scaled("scaled", 2.0)
    assert twice(x).numpy().tolist() == [2.0, 2.0]
    thrice = scaled("scaled", 3.0)
    assert thrice(x).numpy().tolist() == [3.0, 3.0]
    assert twice(x).numpy().tolist() == [2.0, 2.0]  # who kept the old one keeps it


def test_another_place_may_not() -> None:
    scaled("scaled_once", 2.0)
    with pytest.raises(GraphError, match=r"^op 'scaled_once' is already defined by .*test_custom_misuse, in scaled; choose another name$"):  # fmt: skip
        ml.define_op(
            "scaled_once", shapes=lambda x: x, rule="elementwise", kernels={"numpy": np.tanh}
        )
    with pytest.raises(GraphError, match=r"^op 'exp' is already defined by mithril.ops.functions"):
        scaled("exp", 2.0)


def test_a_notebook_cell_may_run_again() -> None:
    """Cells have another file name each time, and one module."""
    cell = """
import mithril as ml
op = ml.define_op("celled", shapes=lambda x: x, rule="elementwise", attributes={"by": 1},
                  kernels={"numpy": lambda x, by: x + by})
"""
    for number in range(2):
        exec(compile(cell, f"<cell {number}>", "exec"), {"__name__": "__main__"})
    with pytest.raises(GraphError, match="op 'celled' is already defined by __main__"):
        exec(compile(cell, "<cell 2>", "exec"), {"__name__": "another"})


def test_an_op_that_lost_its_kernel_says_so() -> None:
    def define(**how: Any) -> Define:
        return ml.define_op("lost", shapes=lambda x: x, rule="elementwise", **how)

    old = define(kernels={"torch": np.tanh})
    define(kernels={"numpy": np.tanh})
    with pytest.raises(BackendError, match=r"^op 'lost' was defined again and has no kernel for backend 'numpy' as it was before; make the layer anew$"):  # fmt: skip
        old(ml.NumpyBackend().ones(2))


# ------------------------------------------------------------------ backends


@dataclass(frozen=True, slots=True)
class OtherEngine(NumpyEngine):
    """An engine of another name, as a plugin would bring it."""

    name = "other"


def test_an_engine_finds_the_kernels_of_its_name() -> None:
    double = ml.define_op(
        "double",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"numpy": lambda x: x * 2, "other": lambda x: x + x + 0.5},
    )
    assert set(kernels_for("other", KERNELS)) - set(kernels_for("third", KERNELS)) >= {"double"}
    assert set(kernels_for("third", KERNELS)) == set(KERNELS)
    other = Backend(OtherEngine(Mesh(a=2)))
    assert double(other.ones(2)).numpy().tolist() == [2.5, 2.5]
    assert double(ml.NumpyBackend().ones(2)).numpy().tolist() == [2.0, 2.0]


def test_a_backend_without_a_kernel_takes_the_expansion(norm: Define) -> None:
    other = Backend(OtherEngine(Mesh(a=2)))
    rng = np.random.default_rng(0)
    x, gain = rng.standard_normal((4, 8)), rng.standard_normal(8)
    found = norm(other.array(x), other.array(gain), epsilon=0.5)
    rtol, atol = TOLERANCE[found.dtype]
    np.testing.assert_allclose(found.numpy(), norm_kernel(x, gain, 0.5), rtol=rtol, atol=atol)
    graph = graph_of(norm, f64(4, 8), f64(8))
    used = run(graph, Mesh(), values_for(graph), kernels=frozenset(KERNELS)).plan.stages[0].program
    assert "my.norm" not in {node.op.name for node in used.graph.nodes}


def test_a_backend_with_neither_is_refused(softsign: Define) -> None:
    other = Backend(OtherEngine(Mesh(data=2, tensor=2)))
    model = activation_model(softsign)
    with pytest.raises(BackendError, match=r"^op 'my.softsign' at 'act' \(custom_ops.py:\d+\) has no kernel in backend 'other' and no expansion; it has kernels for 'numpy'; give define_op one for 'other', or expand=…$"):  # fmt: skip
        ml.compile(model, other, shapes={"input": (4, 6)})
    with pytest.raises(BackendError, match=r"^op 'my.softsign' has no kernel in backend 'other'"):
        softsign(other.ones(2))


# ------------------------------------------------------------------ wrong kernels


def wrong(kernel: Callable[..., Any], results: int = 1) -> Any:
    """Run an op with this kernel on float32 [2, 3]."""
    op = ml.define_op(
        "wrong",
        shapes=lambda x: [x] * results,
        rule="a b -> " + ", ".join(["a b"] * results),
        kernels={"numpy": kernel},
    )
    return op(ml.NumpyBackend().ones(2, 3))


@pytest.mark.parametrize(
    ("kernel", "results", "returned"),
    [
        (lambda x: x.sum(1), 1, "float32[2]"),
        (lambda x: x.astype(np.float64), 1, "float64[2, 3]"),
        (lambda x: (x,), 1, "float32[2, 3]"),
        (lambda x: 1.0, 1, "float"),
        (lambda x: None, 1, "NoneType"),
        (lambda x: x, 2, "float32[2, 3]"),
        (lambda x: (x, x > 0), 2, "float32[2, 3], bool[2, 3]"),
        (lambda x: [x] * 3, 2, "float32[2, 3], float32[2, 3], float32[2, 3]"),
        (lambda x: (), 2, "nothing"),
    ],
)
def test_a_kernel_that_returns_something_else_is_told(
    kernel: Callable[..., Any], results: int, returned: str
) -> None:
    promised = ", ".join(["float32[2, 3]"] * results)
    with pytest.raises(ShapeError) as error:
        wrong(kernel, results)
    assert str(error.value) == (
        f"op 'wrong': its numpy kernel returned {returned} for float32[2, 3]; shapes= promises "
        f"{promised}; make them equal"
    )


def test_a_kernel_is_checked_at_every_call() -> None:
    calls: list[int] = []

    def kernel(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x if len(calls) < 2 else x[:1]

    op = ml.define_op("fickle", shapes=lambda x: x, rule="a -> a", kernels={"numpy": kernel})
    x = ml.NumpyBackend().ones(2)
    op(x)
    with pytest.raises(ShapeError, match=r"op 'fickle': its numpy kernel returned float32\[1\]"):
        op(x)


def test_a_kernel_cannot_write_into_its_operands() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    with pytest.raises(ValueError, match="read-only") as error:
        wrong(kernel)
    assert error.value.__notes__ == [
        "in the numpy kernel of op 'wrong' for float32[2, 3], which it cannot write to"
    ]


def test_dtypes_of_frameworks_are_known_by_their_last_word() -> None:
    class Foreign:
        """An array of a framework with names such as `torch.float32`."""

        def __init__(self, shape: tuple[int, ...]) -> None:
            self.shape, self.dtype = shape, "torch.float32"

    ml.define_op("foreign", shapes=lambda x: x, rule="a -> a", kernels={"torch": lambda x: x})
    op = registry()["foreign"]()
    kernel = kernels_for("torch", {})["foreign"](op, [TensorType((2,), F32)])
    assert kernel(Foreign((2,))).shape == (2,)
    with pytest.raises(
        ShapeError, match=r"its torch kernel returned float32\[3\] for float32\[3\]"
    ):
        kernel(Foreign((3,)))


# ------------------------------------------------------------------ errors name layer and line


def test_errors_name_the_layer_and_the_line() -> None:
    op = ml.define_op("flat", shapes=lambda x: x, rule="b n -> b n", kernels={"numpy": lambda x: x})

    @ml.layer
    def Flat(input):  # noqa: N802
        return op(input)

    model = ml.Model()
    model |= Flat(name="flat_0")(input="input")
    compiled = ml.compile(model, ml.NumpyBackend())
    with pytest.raises(ShapeError, match=r"^op 'flat': rule 'b n -> b n' does not fit types float32\[2, 3, 4\], float32\[2, 3, 4\] \(in layer 'flat_0', .*test_custom_misuse.py:\d+\)$"):  # fmt: skip
        compiled.evaluate({}, {"input": np.ones((2, 3, 4), np.float32)})
    x = np.ones((2, 3), np.float32)
    compiled.evaluate({}, {"input": x})


def test_a_missing_gradient_names_the_layer_and_the_line() -> None:
    op = ml.define_op(
        "flat_end", shapes=lambda x: x, rule="elementwise", kernels={"numpy": np.sign}
    )

    @ml.layer
    def End(input):  # noqa: N802
        return op(input)

    model = ml.Model()
    model |= ml.Linear(3, name="linear")(input="input", output="hidden")
    model += End(name="end")(input="hidden", output="output")
    compiled = ml.compile(model, ml.NumpyBackend())
    params = compiled.randomize_params()
    x = np.ones((2, 3), np.float32)
    compiled.evaluate(params, {"input": x})
    with pytest.raises(GraphError, match=r"^op 'flat_end' has no gradient; give define_op a gradient=, or stop gradients before it with stop_gradient \(in layer 'end', .*test_custom_misuse.py:\d+\)$"):  # fmt: skip
        compiled.evaluate(params, {"input": x}, {"output": x})


def test_a_result_that_is_not_split_as_the_rule_says_is_told() -> None:
    op = ml.define_op(
        "fixed",
        shapes=lambda x: x.with_shape((8,)),
        rule="n -> n",
        kernels={"numpy": lambda x: x},
    )
    graph = graph_of(op, f64(8))
    with pytest.raises(ShapeError, match=r"^op 'fixed': shapes= gives float64\[8\] for a part of its operands \(float64\[4\]\), where its rule promises float64\[4\]; put the factors that may not be split into whole= \(in layer 'layer'\)$"):  # fmt: skip
        run(graph, Mesh(a=2), values_for(graph), {"x0": P("a")})


def test_options_are_checked_when_the_op_is_used(moments: Define) -> None:
    x = ml.NumpyBackend().ones(2, 3)
    with pytest.raises(
        OptionError, match="op 'moments' needs attribute 'order', a int; pass order=…"
    ):
        moments(x)


def test_an_argument_that_define_op_does_not_have() -> None:
    with pytest.raises(
        OptionError, match=r"define_op\(\) has no option 'shape'; did you mean 'shapes'"
    ):
        ml.define_op("again", shape=lambda x: x, rule="elementwise")  # type: ignore[call-arg]


# ------------------------------------------------------------------ dtypes of a framework


@dataclass(frozen=True)
class Named:
    """An array of a framework that has other names for dtypes: `dtypes.float`, as tinygrad has."""

    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> str:
        return f"dtypes.{NAMES[self.values.dtype.name]}"


NAMES = {"float32": "float", "float64": "double", "int32": "int"}


@dataclass(frozen=True, slots=True)
class NamingEngine(NumpyEngine):
    """Its engine, which says what Mithril calls them."""

    name = "naming"

    def dtype_name(self, dtype: Any) -> str:
        known = {f"dtypes.{theirs}": name for name, theirs in NAMES.items()}
        return known.get(dtype, str(dtype))


def test_an_engine_names_the_dtypes_of_its_framework() -> None:
    kernels = {"naming": lambda x: Named(x.values * 2)}
    ml.define_op("naming.twice", shapes=lambda x: x, rule="elementwise", kernels=kernels)
    op, x = registry()["naming.twice"](), Named(np.ones(2, np.float32))
    type = TensorType((2,), DType.float32)
    engine = NamingEngine(Mesh())
    run = kernels_for("naming", {}, engine.dtype_name)["naming.twice"](op, [type])
    assert run(x).values.tolist() == [2.0, 2.0]
    wider = kernels_for("naming", {}, engine.dtype_name)["naming.twice"](op, [type])
    with pytest.raises(
        ShapeError, match=r"its naming kernel returned float64\[2\] for float64\[2\]"
    ):
        wider(Named(np.ones(2)))
    unnamed = kernels_for("naming", {})["naming.twice"](op, [type])  # as it prints
    with pytest.raises(ShapeError, match=r"its naming kernel returned float\[2\] for float\[2\]"):
        unnamed(x)


def test_by_default_a_dtype_is_called_as_it_prints() -> None:
    engine = NumpyEngine(Mesh())
    for dtype, name in ((np.dtype("float32"), "float32"), ("mlx.core.bool_", "bool")):
        assert engine.dtype_name(dtype) == name
