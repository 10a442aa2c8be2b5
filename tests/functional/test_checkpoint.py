"""checkpoint: the same numbers, computed again in the backward part of the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P, ops
from mithril.ir import Graph, Phase
from mithril.ir.repeat import Repeat
from mithril.ir.verify import verify
from mithril.types import DType

from tests.functional.backends import close, every_backend, floats, opened


def block(h: object, w: object) -> object:
    return mnp.tanh(h @ w)


def of_phase(graph: Graph, op: str, phase: Phase) -> int:
    return sum(node.op.name == op and node.phase == phase for node in graph.nodes)


def chain(wrap: Callable, n: int = 3) -> Callable:
    def f(h: object, w: object) -> object:
        for _ in range(n):
            h = wrap(block)(h, w)
        return h.sum()

    return f


@pytest.mark.slow
@every_backend
def test_numbers_are_equal_and_forward_nodes_appear_again(name: str) -> None:
    backend = opened(name, x=2, y=2)
    h = backend.array(floats(4, 6), sharding=P("x"))
    w = backend.array(floats(6, 6, seed=1) / 2, sharding=P(None, "y"))
    kept, again = (
        ml.jit(ml.value_and_grad(chain(w), (0, 1))) for w in (lambda f: f, ml.checkpoint)
    )
    found, expected = again(h, w), kept(h, w)
    close(found[0], expected[0].numpy())
    for one, other in zip(found[1], expected[1], strict=True):
        close(one, other.numpy())
        assert one.sharding == other.sharding
    graph, plain = (f.plan(h, w).stages[0].program.graph for f in (again, kept))
    assert of_phase(plain, "tanh", Phase.backward) == of_phase(plain, "after", Phase.backward) == 0
    assert of_phase(graph, "tanh", Phase.forward) == of_phase(graph, "tanh", Phase.backward) == 3
    assert of_phase(graph, "after", Phase.backward) == 6
    _recomputed_behind_after(graph)


def _recomputed_behind_after(graph: Graph) -> None:
    """What a backward tanh is made of comes from an `after`, not from the forward part."""
    producers = graph.producers()
    for node in graph.nodes:
        if node.op.name == "tanh" and node.phase == Phase.backward:
            seen, work = set(), [node]
            while work:
                current = work.pop()
                seen.add(current.op.name)
                if current.op.name != "after":
                    assert current.phase == Phase.backward
                    work += [producers[v] for v in current.inputs if v in producers]
            assert "after" in seen


def test_it_keeps_less() -> None:
    """Forward values inside a checkpoint are used by no backward node."""
    backend = opened("numpy", x=1)
    h, w = backend.array(floats(4, 6)), backend.array(floats(6, 6))

    def kept(wrap: Callable) -> int:
        graph = ml.jit(ml.grad(chain(wrap))).plan(h, w).stages[0].program.graph
        forward = {v for n in graph.nodes if n.phase == Phase.forward for v in n.outputs}
        used = {v for n in graph.nodes if n.phase == Phase.backward for v in n.inputs}
        return sum(v.type.nbytes for v in forward & used if v.type.rank)

    whole = ml.checkpoint(chain(lambda f: f))
    assert kept(lambda f: f) == 3 * 4 * 6 * 4
    assert kept(ml.checkpoint) == 2 * 4 * 6 * 4
    graph = ml.jit(ml.grad(whole)).plan(h, w).stages[0].program.graph
    assert of_phase(graph, "tanh", Phase.backward) == 3


def test_on_arrays_it_is_the_function_itself() -> None:
    x = opened("numpy", x=1).ones(2)
    calls = []
    assert ml.checkpoint(lambda x, k: calls.append(k) or x)(x, "k") is x
    assert calls == ["k"]


def test_trees_and_values_of_python_go_through() -> None:
    backend = opened("numpy", x=1)

    @ml.checkpoint
    def f(tree: dict, kind: str, n: int = 2) -> tuple:
        assert kind == "power"
        return {"y": tree["x"] ** n, "n": n}, None

    g = ml.grad(lambda x: f({"x": x}, "power", n=3)[0]["y"].sum())
    close(g(backend.array([1.0, 2.0])), [3, 12])
    forward = ml.jit(lambda x: f({"x": x}, "power")[0])
    found = forward(backend.array([3.0]))
    close(found["y"], [9])
    assert int(found["n"]) == 2
    graph = forward.plan(backend.array([3.0])).stages[0].program.graph
    assert "checkpoint" not in {node.op.name for node in graph.nodes}


@pytest.mark.parametrize("mesh", [{"x": 1}, {"x": 2, "y": 2}])
def test_in_loops_nested_and_differentiated_twice(mesh: dict[str, int]) -> None:
    backend = opened("numpy", **mesh)
    h = backend.array(floats(4, 6), sharding=P("x"))
    w = backend.array(floats(6, 6, seed=1) / 2)

    def looped(wrap: Callable) -> Callable:
        return lambda h, w: ops.repeat(wrap(lambda h: block(h, w)), h, count=3).sum()

    def nested(h: object, w: object) -> object:
        inner = ml.checkpoint(block)
        return ml.checkpoint(lambda h: inner(inner(inner(h, w), w), w))(h).sum()

    def twice(f: Callable) -> Callable:
        return ml.grad(lambda h, w: (ml.grad(f, 1)(h, w) ** 2).sum(), 1)

    plain = chain(lambda f: f)
    for f in (looped(ml.checkpoint), nested, chain(ml.checkpoint)):
        close(ml.grad(f, 1)(h, w), ml.grad(plain, 1)(h, w).numpy())
        close(twice(f)(h, w), twice(plain)(h, w).numpy())
    graph = ml.jit(ml.grad(looped(ml.checkpoint), 1)).plan(h, w).stages[0].program.graph
    backward = [n.op.body for n in graph.nodes if isinstance(n.op, Repeat)][-1]
    assert {"after", "tanh"} <= {n.op.name for n in backward.nodes}


@ml.layer(parameters=["weight"])
def again(x):
    weight = ml.parameter("weight", (x.shape[-1], x.shape[-1]), ml.Uniform(0.5))
    return ml.checkpoint(block)(x, weight)


@ml.layer(parameters=["weight"])
def plainly(x):
    weight = ml.parameter("weight", (x.shape[-1], x.shape[-1]), ml.Uniform(0.5))
    return block(x, weight)


@pytest.mark.parametrize("precision", [None, ml.Precision(compute_dtype="bfloat16")])
def test_in_a_layer_of_a_model(precision: ml.Precision | None) -> None:
    backend = opened("numpy", x=2)
    x, found, weights = floats(4, 6), [], []
    for kind in (again, plainly):
        compiled = ml.compile(kind(), backend, precision=precision)
        params = compiled.randomize_params(3)
        compiled.evaluate(params, {"x": x})
        weights.append(params["weight"].numpy())
        found.append(compiled.evaluate(params, {"x": x}, {"output": x})[1]["weight"].numpy())
        graph = compiled.plan.stages[0].program.graph
        expected = 1 if kind is again else 0
        assert of_phase(graph, "tanh", Phase.backward) == expected
        dtypes = {v.type.dtype for n in graph.nodes if n.op.name == "einsum" for v in n.inputs}
        assert dtypes == ({"float32"} if precision is None else {"bfloat16"})
    close(weights[0], weights[1])
    close(found[0], found[1])


def test_a_graph_with_a_checkpoint_prints_verifies_and_travels() -> None:
    from mithril.ir import Builder
    from mithril.ir.serialize import graph_from_json, graph_to_json
    from mithril.types import DType, TensorType

    builder = Builder()
    x = builder.input(TensorType((2,), DType.float32), "x")
    graph = verify(builder.build({"y": ml.checkpoint(lambda x: mnp.exp(x) * 2)(x)}))
    text = str(graph)
    assert "checkpoint(x)" in text
    assert "exp(argument.0)" in text
    assert str(graph_from_json(graph_to_json(graph))) == text


def test_a_checkpoint_takes_what_its_body_takes() -> None:
    from mithril.ir import Checkpoint
    from mithril.types import DType, TensorType

    type = TensorType((2,), DType.float32)
    op = Checkpoint(Graph((), (), {}))
    with pytest.raises(ml.ShapeError, match=r"checkpoint takes nothing; its operands are float32"):
        op.infer([type])
    with pytest.raises(ml.GraphError, match=r"checkpoint\(\) takes a function, not 3"):
        ml.checkpoint(3)


def test_masks_of_a_dropout_inside_are_drawn_again() -> None:
    """Nothing of their size is kept, in a loop neither, and the numbers are the same."""

    @ml.layer
    def Block(input: Any, *, again: bool) -> Any:  # noqa: N802
        def run(h: Any) -> Any:
            return ml.Dropout(0.5, name="drop")(ml.Linear(4, name="line")(h))

        return (ml.checkpoint(run) if again else run)(input)

    found = {}
    for again in (False, True):
        model = ml.Model()
        model |= ml.Repeat(Block(again=again), 3, name="blocks")(input="x", output="y")
        compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": (8, 4)})
        kept = [
            value
            for node in compiled.plan.stages[0].program.graph.nodes
            if node.phase == Phase.forward and node.op.bodies
            for value in node.outputs
        ]
        assert (DType.bool_ in {value.type.dtype for value in kept}) is not again
        given = {"x": floats(8, 4)}, {"y": np.ones((8, 4), np.float32)}
        outputs, slopes = compiled.evaluate(compiled.randomize_params(0), *given, seed=3)
        found[again] = {**outputs, **slopes}
    for name, value in found[False].items():
        np.testing.assert_array_equal(found[True][name].numpy(), value.numpy())
