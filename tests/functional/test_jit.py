"""jit: what goes in, how it lies, what comes out, and how often it is planned."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

from tests.functional.backends import close, every_backend, floats, opened


@pytest.fixture
def line() -> ml.Backend:
    return opened("numpy", x=8)


@every_backend
def test_matrix_product_split_by_rows(name: str) -> None:
    backend = opened(name, x=8)
    a, b = floats(32, 16), floats(16, 24, seed=1)
    product = ml.jit(
        lambda a, b: a @ b, backend=backend, in_shardings=(P("x"), P()), out_shardings=P("x")
    )
    result = product(a, b)
    assert result.sharding.spec == P("x")
    close(result, a @ b)
    assert not product.plan(a, b).collectives()


@every_backend
def test_classes_that_do_not_divide(name: str) -> None:
    """Ten classes over eight devices."""
    backend = opened(name, x=8)
    w, x = floats(16, 10), floats(4, 16, seed=1)
    layer = ml.jit(
        lambda p, x: x @ p["w"] + p["b"],
        backend=backend,
        in_shardings=({"w": P(None, "x"), "b": P("x")}, P()),
        out_shardings=P(None, "x"),
    )
    result = layer({"w": w, "b": np.ones(10, np.float32)}, x)
    close(result, x @ w + 1)
    assert [s.data.shape[1] for s in result.addressable_shards] == [2] * 5 + [0] * 3


def test_it_is_planned_once_per_kind_of_arguments(line: ml.Backend) -> None:
    calls = []

    @ml.jit(backend=line)
    def double(x: object) -> object:
        calls.append(x)
        return x * 2

    for size, made in ((4, 1), (4, 1), (5, 2), (4, 2)):
        close(double(floats(size)), 2 * floats(size))
        assert double.recompiles == len(calls) == made
    double(line.array(floats(4), sharding=P("x")))
    assert double.recompiles == 3
    double(floats(4).astype(np.float16))
    assert double.recompiles == 4
    double(line.array(floats(4), sharding=P("x")))
    assert double.recompiles == 4


def test_as_a_bare_decorator_and_the_function_s_name(line: ml.Backend) -> None:
    @ml.jit
    def twice(x: object) -> object:
        """Twice x."""
        return x + x

    assert (twice.__name__, twice.__doc__, repr(twice)) == ("twice", "Twice x.", "jit(twice)")
    close(twice(line.ones(3)), [2, 2, 2])


def test_static_arguments_by_name_and_position(line: ml.Backend) -> None:
    def power(x: object, n: int, mode: str = "sum") -> object:
        for _ in range(n - 1):
            x = x * x
        return x.sum() if mode == "sum" else x

    for static in (("n", "mode"), (1, 2), [1, "mode"]):
        f = ml.jit(power, static=static)
        x = line.array([1.0, 2.0])
        assert float(f(x, 2)) == 5
        close(f(x, 3, mode="all"), [1, 16])
        close(f(x, 3, "all"), [1, 16])
        assert f.recompiles == 2
        f(x, n=2)
        assert f.recompiles == 2


def test_equal_statics_of_different_types_are_different(line: ml.Backend) -> None:
    f = ml.jit(lambda x, n: x + (10 if n is True else 20), static="n")
    x = line.zeros(1)
    assert [float(f(x, n)) for n in (True, 1, 1.0, True)] == [10, 20, 20, 10]
    assert f.recompiles == 3


class Pair(NamedTuple):
    left: object
    right: object


def test_trees_in_and_out(line: ml.Backend) -> None:
    @ml.jit(backend=line)
    def f(tree: dict) -> object:
        a, (b, none) = tree["a"], tree["rest"]
        assert none is None
        return OrderedDict(x=Pair(a + 1, [b, 2 * b]), y=None, n=(3, 0.5, True))

    found = f({"a": np.float32(1), "rest": (floats(3), None)})
    assert isinstance(found, OrderedDict)
    assert isinstance(found["x"], Pair)
    assert found["y"] is None
    assert float(found["x"].left) == 2
    close(found["x"].right[1], 2 * floats(3))
    assert [str(n.dtype) for n in found["n"]] == ["int32", "float32", "bool"]


def test_parameters_of_a_model_stay_what_they_are(line: ml.Backend) -> None:
    compiled = ml.compile(ml.Linear(dimension=3), line, shapes={"input": (2, 4)})
    params = compiled.randomize_params()
    compiled.evaluate(params, {"input": floats(2, 4)})
    halved = ml.jit(lambda p: type(p)({k: v * 0.5 for k, v in p.items()}))(params)
    assert type(halved) is type(params)
    close(halved["weight"], params["weight"].numpy() / 2)


def test_other_dicts_come_back_as_dicts(line: ml.Backend) -> None:
    from collections import defaultdict

    tree = defaultdict(list, a=line.ones(2))
    assert type(ml.jit(lambda t: {k: v + 1 for k, v in t.items()})(tree)) is dict


def test_arrays_that_lie_otherwise_are_moved_by_the_plan(line: ml.Backend) -> None:
    rows = line.array(floats(256, 128), sharding=P("x"))
    total = ml.jit(lambda x: x.sum(axis=0), in_shardings=P(None, "x"), out_shardings=P("x"))
    close(total(rows), floats(256, 128).sum(0))
    assert [row.kind for row in total.plan(rows).collectives()] == ["all_to_all"]
    columns = line.array(floats(256, 128), sharding=P(None, "x"))
    assert not total.plan(columns).collectives()
    assert "all_to_all over x" in total.explain(rows)
    assert "test_jit.py" in total.explain(rows)


def test_a_plan_needs_no_arrays(line: ml.Backend) -> None:
    f = ml.jit(lambda p: (p["w"] ** 2).sum(), backend=line)
    plan = f.plan({"w": ml.TensorSpec((1024, 8), sharding=P("x"))})
    assert [row.kind for row in plan.collectives()] == ["all_reduce"]
    assert "P('x', None)" in f.explain(
        {"w": ml.TensorSpec((1024, 8), sharding=P("x"))}, tensor="p.w"
    )
    assert f.recompiles == 1


def test_results_that_are_arguments_and_one_value_twice(line: ml.Backend) -> None:
    x = line.array(floats(8, 16), sharding=P("x"))
    same, again = ml.jit(lambda x: (x, x), out_shardings=(None, P(None, "x")))(x)
    assert (same.sharding.spec, again.sharding.spec) == (P("x"), P(None, "x"))
    close(again, floats(8, 16))
    assert ml.jit(lambda x: None)(x) is None
    assert ml.jit(lambda: mnp.ones((2, 3)), backend=line)().shape == (2, 3)
    assert ml.jit(lambda x: x[:0])(x).shape == (0, 16)


def test_what_a_function_closes_over_is_taken_along(line: ml.Backend) -> None:
    weight, bias = line.array(floats(4, 8), sharding=P(None, "x")), floats(8, seed=2)
    x = line.array(floats(3, 4, seed=1))
    f = ml.jit(lambda x: (x @ weight + bias) * weight[0] + np.float32(1))
    expected = (floats(3, 4, seed=1) @ floats(4, 8) + bias) * floats(4, 8)[0] + 1
    for _ in range(2):
        close(f(x), expected)
    assert f.recompiles == 1
    assert len(f.plan(x).stages[0].program.inputs) == 4  # weight[0] is computed at once


def test_arrays_from_around_are_those_of_the_first_call(line: ml.Backend) -> None:
    around = np.ones(2, np.float32)
    f = ml.jit(lambda x: x + around)
    x = line.zeros(2)
    f(x)
    around[:] = 5
    close(f(x), [1, 1])


def test_numpy_on_either_side_and_as_an_index(line: ml.Backend) -> None:
    host = floats(2, 3)
    rows = np.asarray([1, 0, 1])
    x = line.array(host)
    f = ml.jit(lambda x: host - x[rows][:2] * host[:, :1] + (x + host))
    close(f(x), host - host[rows][:2] * host[:, :1] + 2 * host)
    close(ml.jit(lambda x: x[:, rows])(x), host[:, rows])


def test_one_function_inside_another_brings_its_shardings(line: ml.Backend) -> None:
    inner = ml.jit(lambda x, k: x * k, in_shardings=(P("x"), None), out_shardings=P(None, "x"))
    outer = ml.jit(lambda x: inner(x, 3.0) + 1)
    x = line.array(floats(256, 256))
    close(outer(x), floats(256, 256) * 3 + 1)
    assert outer(x).sharding.spec == P(None, "x")
    assert [row.kind for row in outer.plan(x).collectives()] == ["all_to_all"]
    assert inner.recompiles == 0
    scopes = {node.scope for node in outer.plan(x).stages[0].program.graph.nodes}
    assert "lambda" in scopes


def test_functions_of_one_name_inside_each_other_are_told_apart(line: ml.Backend) -> None:
    def made() -> object:
        @ml.jit
        def f(x: object) -> object:
            return mnp.exp(x)

        return f

    inner = made()

    @ml.jit
    def f(x: object) -> object:
        return inner(x) * 2

    nodes = f.plan(line.ones(4)).stages[0].program.graph.nodes
    assert {node.op.name: node.scope for node in nodes} == {
        "exp": "f.f",
        "constant": "f",
        "multiply": "f",
    }


def test_what_wraps_a_function_is_not_named_beside_it(line: ml.Backend) -> None:
    def loss(x: object) -> object:
        return mnp.exp(x).sum()

    for wrapped in (ml.value_and_grad(loss), ml.checkpoint(loss)):
        nodes = ml.jit(wrapped).plan(line.ones(4)).stages[0].program.graph.nodes
        assert {node.scope for node in nodes} == {"loss"}


def test_statics_inside_tuples_are_told_apart_by_type(line: ml.Backend) -> None:
    """Equal numbers of different types make different plans, however deep they are."""
    f = ml.jit(lambda x, by: x * by[0][0], static="by")
    x = line.array([1, 2])
    assert f(x, ((2,),)).dtype == "int32"
    assert f(x, ((2.0,),)).dtype == "float32"
    assert f(x, ((True,),)).dtype == "int32"
    assert f(x, ((2,),)).dtype == "int32"
    assert f.recompiles == 3


def test_on_one_device_shardings_say_nothing() -> None:
    backend = ml.NumpyBackend()
    f = ml.jit(lambda x: x * 2, backend=backend, in_shardings=P("x"), out_shardings=P("x"))
    close(f(np.ones(2, np.float32)), [2, 2])
    with pytest.raises(ml.MeshError, match="'x'"):
        ml.compile(ml.Relu(), backend, out_shardings=P("x"))


def test_methods_and_keywords(line: ml.Backend) -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @ml.jit(static="self")
        def __call__(self, x: object, *, shift: object) -> object:
            return x * self.by + shift

    x = line.ones(2)
    assert [float(Scale(k)(x, shift=1.0)[0]) for k in (2, 3)] == [3, 4]
    many = ml.jit(lambda first, *rest, **named: first + sum(rest) + named["last"])
    assert float(many(x, x, 2, last=x)[0]) == 5


def test_gradients_are_told_apart_by_their_place(line: ml.Backend) -> None:
    """The same trees in other argument places make another plan."""
    f = ml.jit(lambda a, b=None: a["x"] if b is None else a["x"] - b["x"])
    one, two = {"x": line.ones(1)}, {"x": line.full((1,), 2.0)}
    assert [float(f(one)), float(f(two, one)), float(f(one, b=two))] == [1, 1, -1]


def test_shardings_say_nothing_on_one_device() -> None:
    backend = opened("numpy", x=1)
    f = ml.jit(lambda x: ml.constrain(x, P("rows")), in_shardings=P("rows"), out_shardings=P("a"))
    close(f(backend.ones(3)), [1, 1, 1])
    g = ml.jit(lambda x: x, backend=backend, in_shardings=P("rows"))
    close(g(np.ones(3, np.float32)), [1, 1, 1])


def test_the_backend_s_float_is_that_of_numbers() -> None:
    backend = ml.NumpyBackend(dtype="bfloat16")
    x = backend.ones(2)
    assert str(ml.jit(lambda x, lr: x * lr)(x, 0.5).dtype) == "bfloat16"


def test_statics_in_any_number(line: ml.Backend) -> None:
    def apply(x: object, *steps: str, **numbers: int) -> object:
        for step in steps:
            x = x * 2 if step == "double" else x
        return x + numbers.get("n", 0)

    x = line.ones(2)
    for static in (("steps", "numbers"), (1, 2, "n"), ("steps", "n")):
        f = ml.jit(apply, static=static)
        close(f(x, "double", "double", n=3), np.full(2, 7.0))
        close(f(x, "double", "keep", n=3), np.full(2, 5.0))
        assert f.recompiles == 2


def test_one_sharding_is_of_arguments_by_name_too(line: ml.Backend) -> None:
    f = ml.jit(lambda x, *, w: x + w, in_shardings=P("x"))
    plan = f.plan(line.ones(8), w=line.ones(8))
    assert [port.sharding.spec for port in plan.inputs] == [P("x"), P("x")]


def test_results_whose_names_read_alike(line: ml.Backend) -> None:
    made = ml.jit(lambda x: {1: x, "1": x * 2, "a.b": x * 3, "a": {"b": x * 4}})(line.ones(2))
    found = [made[1], made["1"], made["a.b"], made["a"]["b"]]
    assert [x.numpy().tolist() for x in found] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]
