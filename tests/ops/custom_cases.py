"""Every error of ops that users define, by its text: rows of `test_errors`."""

# A text stands on one line, so that it can be searched for.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
from mithril import ops
from mithril.engine.kernels import kernels_for
from mithril.errors import BackendError, GraphError, MithrilError, OptionError, ShapeError
from mithril.ir import Builder, Op, registry
from mithril.types import DType, TensorType


def f(*shape: int) -> TensorType:
    return TensorType(shape, DType.float32)


def defines(name: Any = "odd", **how: Any) -> Callable[[], Any]:
    """Return the call that defines an op."""
    how = {"shapes": lambda x: x, "rule": "elementwise", "kernels": {"numpy": np.tanh}, **how}
    return lambda: ml.define_op(name, **how)


def op_of(**how: Any) -> Op:
    defines(**how)()
    return registry()["odd"]()


def infers(*types: TensorType, **how: Any) -> Callable[[], Any]:
    """Return the call that applies a defined op to operands of these types."""
    return lambda: op_of(**how).infer(types)


def calls(*operands: Any, given: dict[str, Any] | None = None, **how: Any) -> Callable[[], Any]:
    """Return the call that calls the function of a defined op."""
    return lambda: defines(**how)()(*operands, **(given or {}))


def differentiates(gradient: Any, *types: TensorType) -> Callable[[], Any]:
    """Return the call that asks an op of two operands for its gradient."""

    def call() -> Any:
        op = op_of(shapes=lambda x, y: x, kernels={"numpy": np.add}, gradient=gradient)
        builder = Builder()
        inputs = [builder.input(t, f"x{i}") for i, t in enumerate(types)]
        outputs = builder.apply(op, *inputs)
        return op.gradient(inputs, outputs, outputs)

    return call


def expands(expand: Callable[..., Any]) -> Callable[[], Any]:
    """Return the call that expands an op of one operand float32[2]."""
    return lambda: op_of(expand=expand).expand([Builder().input(f(2), "x")])


def lowers(backend: str) -> Any:
    """Lower an op for a backend that its second definition knows and its first one does not."""
    old = op_of()
    defines(kernels={backend: np.tanh})()
    return kernels_for(backend, {})["odd"](old, [f(2)])


def runs(kernel: Callable[..., Any]) -> Callable[[], Any]:
    """Return the call that runs a kernel on float32[2]."""

    def call() -> Any:
        op = op_of(kernels={"numpy": kernel})
        return kernels_for("numpy", {})["odd"](op, [f(2)])(np.ones(2, np.float32))

    return call


TWO = (f(2), TensorType((2,), DType.int32))
WHOLE = {"rule": lambda x: "a b -> a b", "whole": ["c"]}  # told when it is called

CASES: list[tuple[Callable[[], Any], type[MithrilError], str]] = [
    # definitions
    (defines("two words"), OptionError, "op name 'two words' is not one; give letters, digits and _"),
    (defines(3), OptionError, "op name 3 is not one; give letters, digits and _"),
    (defines("exp"), GraphError, "op 'exp' is already defined by mithril.ops.functions; choose another name"),
    (defines(shapes=f(2)), OptionError, "op 'odd' has shapes=TensorType(shape=(2,), dtype=<DType.float32: 'float32'>); give a function"),
    (defines(kernels={"numpy": "tanh"}), OptionError, "op 'odd' has kernel of 'numpy'='tanh'; give a function"),
    (defines(shapes=lambda: f(2)), OptionError, "op 'odd' has no operands; let shapes= take one argument for each"),
    (defines(rule=None), OptionError, "op 'odd' has rule None; give 'elementwise', or one such as 'b n, n -> b'"),
    (defines(kernels=[]), OptionError, "op 'odd' has neither a kernel nor an expansion; pass kernels={'numpy': …} or expand=…"),
    (defines(kernels=["numpy"]), OptionError, "op 'odd' has kernels=['numpy']; give a mapping, such as {'numpy': function}"),
    (defines(kernels={}), OptionError, "op 'odd' has neither a kernel nor an expansion; pass kernels={'numpy': …} or expand=…"),
    (defines(rule="a b"), OptionError, "op 'odd' has rule 'a b'; give 'elementwise', or one such as 'b n, n -> b'"),
    (infers(f(2), rule=lambda x: None), OptionError, "op 'odd' has rule None; give 'elementwise', or one such as 'b n, n -> b'"),
    (defines(attributes={"class": 1}), OptionError, "op 'odd' has attribute 'class'; give it a Python name"),
    (defines(attributes={"gradient": 1}), OptionError, "op 'odd' cannot have an attribute 'gradient'; choose another name"),
    (defines(attributes={"slope": 1j}), OptionError, "attribute 'slope' of op 'odd' is a complex; give a value or a type among bool, int, float, str, tuple, DType"),
    (defines(attributes={"slope": 1.0}, kernels={"numpy": lambda x: x}), OptionError, "op 'odd' has attribute 'slope', which its kernel of 'numpy' does not take; add it as an argument there"),
    (defines(attributes={"slope": 1.0}, kernels={}, expand=lambda x: x), OptionError, "op 'odd' has attribute 'slope', which its expand= does not take; add it as an argument there"),
    (defines(rule="a b -> a", reductions={"b": "mean"}), OptionError, "op 'odd' reduces 'b' by 'mean'; known: 'sum', 'max', 'min'; for others, put the factor into whole="),
    (defines(whole=["n"]), OptionError, "op 'odd' is elementwise and names factor 'n'; write the rule with names"),
    (defines(rule="n -> n", whole=["q"]), OptionError, "op 'odd' names factor 'q', which its rule 'n -> n' lacks; factors: 'n'"),
    (defines(rule="n -> n", expandable=["n"]), OptionError, "op 'odd' has expandable= and no expand=; give the expansion that can be split"),
    (defines(linear=[(0, 1)]), OptionError, "op 'odd' has no operand 1, which linear= names; its operands are numbered from 0 to 0"),
    (defines(indices=["x"]), OptionError, "op 'odd' has no operand 'x', which indices= names; its operands are numbered from 0 to 0"),
    # calls
    (calls(f(2), given={"slop": 1.0}, attributes={"slope": 1.0}, kernels={"numpy": lambda x, slope: x}), OptionError, "op 'odd' has no attribute 'slop'; did you mean 'slope'?; attributes: 'slope'"),
    (calls(f(2), attributes={"slope": float}, kernels={"numpy": lambda x, slope: x}), OptionError, "op 'odd' needs attribute 'slope', a float; pass slope=…"),
    (calls(f(2), given={"slope": "1"}, attributes={"slope": float}, kernels={"numpy": lambda x, slope: x}), OptionError, "attribute slope='1' of op 'odd' is a str; give a float"),
    (calls(f(2), given={"count": True}, attributes={"count": 1}, kernels={"numpy": lambda x, count: x}), OptionError, "attribute count=True of op 'odd' is a bool; give a int"),
    (calls(f(2), given={"pair": [1j]}, attributes={"pair": tuple}, kernels={"numpy": lambda x, pair: x}), OptionError, "attribute pair=[1j] of op 'odd' is a list; give a tuple of numbers and strings"),
    (calls(1, 2), ShapeError, "op 'odd' takes 1 operands, as shapes= does, not 2"),
    (calls(shapes=lambda *x: x[0]), ShapeError, "op 'odd' takes at least 1 operands, as shapes= does, not 0"),
    (calls(1, 2, 3, shapes=lambda x, y=None: x), ShapeError, "op 'odd' takes 1 to 2 operands, as shapes= does, not 3"),
    (calls(1), GraphError, "op 'odd' takes tensors, not int; pass an array of a backend, such as backend.array(…)"),
    # shapes and rules
    (infers(f(2), shapes=lambda x: x.shape), ShapeError, "op 'odd': shapes= returned (2,); return the type of the result, or a list of types when there are several"),
    (infers(f(2), shapes=lambda x: []), ShapeError, "op 'odd': shapes= returned []; return the type of the result, or a list of types when there are several"),
    (infers(f(2), shapes=lambda x: f(3)), ShapeError, "op 'odd' is elementwise, and shapes= gives float32[3] for operands float32[2]; give results of shape (2,), or write a rule"),
    (infers(f(2), f(3), shapes=lambda x, y: x), ShapeError, "op 'odd' cannot broadcast shapes (2,) and (3,); sizes must be equal or 1, aligned at the right"),
    (infers(f(2, 3), rule="n -> n"), ShapeError, "op 'odd': rule 'n -> n' does not fit types float32[2, 3], float32[2, 3]"),
    (infers(f(), rule="... n -> ... n"), ShapeError, "op 'odd': rule '... n -> ... n' does not fit types float32[], float32[]"),
    (infers(f(2), shapes=lambda x: f(3), rule="n -> n"), ShapeError, "op 'odd': rule 'n -> n' does not fit types float32[2], float32[3]: dimension (n) has size 3"),
    (infers(f(2), rule="n, n -> n"), ShapeError, "op 'odd': rule 'n, n -> n' has 2 operands and 1 results, the op 1 and 1; separate them by commas"),
    (infers(f(2, 3), shapes=lambda x: f(2, 4), rule="... n -> ... n"), ShapeError, "op 'odd': rule '... n -> ... n' does not fit types float32[2, 3], float32[2, 4]: dimension (n) has size 4"),
    (infers(f(2, 2), rule="n n -> n n"), ShapeError, "op 'odd': rule 'n n -> n n' names 'n' twice in one tensor; give each dimension its own name"),
    (infers(f(2, 2), **WHOLE), ShapeError, "op 'odd': rule 'a b -> a b' has no factor 'c'; factors: 'a', 'b'"),
    # costs, expansions, gradients
    (lambda: op_of(flops=lambda x: 0.5).cost([f(2)], [f(2)]), OptionError, "op 'odd': flops= returned 0.5; return the number of operations, an integer"),
    (expands(lambda x: x.sum()), ShapeError, "op 'odd': expand= returned float32[], shapes= promises float32[2]; make them equal"),
    (expands(lambda x: [x, x]), ShapeError, "op 'odd': expand= returned float32[2], float32[2], shapes= promises float32[2]; make them equal"),
    (expands(lambda x: None), ShapeError, "op 'odd': expand= returned NoneType, shapes= promises float32[2]; make them equal"),
    (differentiates(None, *TWO), GraphError, "op 'odd' has no gradient; give define_op a gradient=, or stop gradients before it with stop_gradient"),
    (differentiates(lambda i, o, c: c, *TWO), GraphError, "op 'odd': gradient= returned float32[2] for 2 operands; return a list with one gradient for each, None where none flows"),
    (differentiates(lambda i, o, c: c[0], *TWO), GraphError, "op 'odd': gradient= returned float32[2] for 2 operands; return a list with one gradient for each, None where none flows"),
    (differentiates(lambda i, o, c: [c[0], c[0]], *TWO), GraphError, "op 'odd': gradient= returned a gradient of operand 1, which is int32[2]; return None for it"),
    (differentiates(lambda i, o, c: [ops.sum(c[0]), None], *TWO), GraphError, "op 'odd': gradient= returned float32[] for operand 0, which is float32[2]; make the types equal"),
    (differentiates(lambda i, o, c: [1.0, None], *TWO), GraphError, "op 'odd': gradient= returned float for operand 0, which is float32[2]; make the types equal"),
    # kernels
    (lambda: lowers("torch"), BackendError, "op 'odd' was defined again and has no kernel for backend 'torch' as it was before; make the layer anew"),
    (runs(lambda x: x[:1]), ShapeError, "op 'odd': its numpy kernel returned float32[1] for float32[2]; shapes= promises float32[2]; make them equal"),
]  # fmt: skip
