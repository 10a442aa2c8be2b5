"""Graphs that are not well formed are refused: by verify, and while ops and tensors are put together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mithril import ops
from mithril.errors import GraphError, ShapeError
from mithril.ir import Builder, Graph, Node, Op, Operand, Source, Tensor, Value, register, registry
from mithril.ir.verify import verify
from mithril.types import DType, TensorType

from tests.graphs import block

F32 = TensorType((2,), DType.float32)
F64 = TensorType((2,), DType.float64)
X, Y, Z = Value(F32, "x"), Value(F32, "y"), Value(F32)
HEAD = {"scope": "head", "source": Source("/home/me/model.py", 7)}


def exp(x: Value, y: Value, **stamp: object) -> Node:
    return Node(ops.Exp(), (x,), (y,), **stamp)  # type: ignore[arg-type]


BAD: dict[str, tuple[Graph, str]] = {
    "input names repeat": (
        Graph((X, Value(F64, "x")), (), {}),
        "graph inputs ['x', 'x'] need distinct, non-empty names",
    ),
    "an input without name": (
        Graph((X, Z), (), {}),
        "graph inputs ['x', ''] need distinct, non-empty names",
    ),
    "an operand made later": (
        Graph((X,), (exp(Y, Z, **HEAD), exp(X, Y)), {"z": Z}),
        "op 'exp' at 'head' (model.py:7) uses Value(y: float32[2]) before it is made",
    ),
    "an operand made never": (
        Graph((X,), (exp(Z, Y),), {"y": Y}),
        "op 'exp' at op 'exp' uses Value(?: float32[2]) before it is made",
    ),
    "an operand that is the result": (
        Graph((), (exp(Y, Y),), {"y": Y}),
        "op 'exp' at op 'exp' uses Value(y: float32[2]) before it is made",
    ),
    "a result of another type": (
        Graph((X,), (exp(X, Value(F64), **HEAD),), {}),
        "op 'exp' at 'head' (model.py:7) makes float32[2], the graph says float64[2]",
    ),
    "a result too many": (
        Graph((X,), (Node(ops.Exp(), (X,), (Y, Z)),), {}),
        "op 'exp' at op 'exp' makes float32[2], the graph says float32[2], float32[2]",
    ),
    "no result": (
        Graph((X,), (Node(ops.Exp(), (X,), (), scope="head"),), {}),
        "op 'exp' at 'head' makes float32[2], the graph says nothing",
    ),
    "a value made twice": (
        Graph((X,), (exp(X, Y), exp(X, Y, scope="head")), {"y": Y}),
        "Value(y: float32[2]) is defined a second time by op 'exp' at 'head'",
    ),
    "an input made again": (
        Graph((X,), (exp(X, X, scope="head"),), {"x": X}),
        "Value(x: float32[2]) is defined a second time by op 'exp' at 'head'",
    ),
    "an output that is nowhere": (
        Graph((X,), (exp(X, Y),), {"y": Y, "z": Z}),
        "output 'z' of the graph is never defined",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_graph_that_is_not_well_formed_is_refused(case: str) -> None:
    graph, message = BAD[case]
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert str(caught.value) == message


def test_operands_that_do_not_fit_the_op_are_refused_by_the_op() -> None:
    node = Node(ops.Add(), (X, Value(F64, "wide")), (Y,))
    with pytest.raises(ShapeError, match="op 'add' meets dtypes float32, float64; cast one side"):
        verify(Graph((X, node.inputs[1]), (node,), {}))


GOOD: dict[str, Callable[[], Graph]] = {
    "empty": lambda: Graph((), (), {}),
    "an input as output": lambda: Graph((X,), (), {"x": X, "again": X}),
    "the same operand twice": lambda: Graph((X,), (Node(ops.Add(), (X, X), (Y,)),), {"y": Y}),
    "the block": block,
}


@pytest.mark.parametrize("case", GOOD)
def test_a_well_formed_graph_is_returned_itself(case: str) -> None:
    graph = GOOD[case]()
    assert verify(graph) is graph


# -------------------------------------------------------------------- while a graph is built


def tensor(*shape: int) -> Tensor:
    return Builder().input(TensorType(shape, DType.float32), "x")


class Foreign(Operand):
    """An operand of another kind, such as an array."""


class Nameless(Op):
    pass


class Second(Op):
    name = "exp"


def branch(x: Tensor) -> object:
    return 1 if x > 0 else 2


def beside(x: Tensor) -> object:
    return x + tensor(2)


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a transposed vector": (
        lambda: tensor(2).T,
        ShapeError,
        "cannot transpose float32[2]; .T needs at least two dimensions",
    ),
    "the length of a scalar": (
        lambda: len(tensor()),
        ShapeError,
        "float32[] has no length; it is a scalar",
    ),
    "a branch on a tensor": (
        lambda: branch(tensor()),
        GraphError,
        "traced tensor bool[] has no truth value; a Python branch cannot depend on it; use "
        "where(condition, x, y)",
    ),
    "a tensor of another trace": (
        lambda: beside(tensor(2)),
        GraphError,
        "a tensor of another trace is used here; pass it in as an input of the layer",
    ),
    "no tensor": (
        lambda: ops.concatenate([tensor(2), [1.0, 2.0]]),  # type: ignore[list-item]
        GraphError,
        "op 'concatenate' takes tensors, not list; pass an array of a backend, such as "
        "backend.array(…)",
    ),
    "two kinds of operands": (
        lambda: ops.concatenate([tensor(2), Foreign()]),
        GraphError,
        "op 'concatenate' mixes a Tensor and a Foreign; pass arrays as model inputs instead of "
        "capturing them",
    ),
    "an op without name": (
        lambda: register(Nameless),
        GraphError,
        "op class Nameless has no name; set the class attribute `name`",
    ),
    "an op whose name is taken": (
        lambda: register(Second),
        GraphError,
        "op 'exp' is already defined by mithril.ops.functions; choose another name",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_while_building_is_answered(case: str) -> None:
    make, error, message = MISTAKES[case]
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message


def test_a_refused_op_is_not_registered() -> None:
    with pytest.raises(GraphError):
        register(Second)
    assert registry()["exp"] is ops.Exp


def test_a_shape_error_names_layer_and_line() -> None:
    x = tensor(2)
    with x.builder.at(**HEAD), pytest.raises(ShapeError) as caught:  # type: ignore[arg-type]
        x.builder.apply(ops.Einsum("ab,b->a"), x, x)
    assert str(caught.value).endswith(" (in layer 'head', /home/me/model.py:7)")
