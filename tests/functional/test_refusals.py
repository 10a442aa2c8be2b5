"""What jit, gradients and their like refuse, with the user's names, file and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

from tests.functional.backends import floats, opened

LINE = opened("numpy", x=4)
X = LINE.array(floats(4, 4))
NO_BACKEND = (
    "function 'lambda' is called without an array of a backend and knows none; pass backend"
)


def mean(x: object, k: int = 2) -> object:
    return mnp.mean(x * k)


def of_another_backend() -> object:
    other = ml.NumpyBackend(ml.Mesh(x=4)).ones(4)
    return ml.jit(lambda x: x + other)(X)


def leaked() -> object:
    kept = []
    ml.jit(lambda x: kept.append(x) or x)(X)
    return kept[0] + 1


def of_another_trace() -> object:
    kept = []
    ml.jit(lambda x: kept.append(x) or x)(X)
    return ml.jit(lambda x: x + kept[0])(X)


def pending() -> object:
    params = ml.compile(ml.Linear(dimension=3), LINE).randomize_params()
    return ml.jit(lambda p: p["weight"])(params)


def uneven() -> object:
    strict = ml.NumpyBackend(ml.Mesh(x=4), uneven="error")
    return ml.jit(lambda x: ml.constrain(x, P("x")))(strict.ones(5))


def uneven_argument() -> object:
    strict = ml.NumpyBackend(ml.Mesh(x=4), uneven="error")
    return ml.jit(lambda x: x, in_shardings=P("x"))(strict.ones(5))


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no function": (
        lambda: ml.jit(3),
        ml.GraphError,
        "jit() takes a function, not 3; write jit(fun",
    ),
    "an unknown option": (
        lambda: ml.jit(mean, in_sharding=P()),
        ml.OptionError,
        "jit() has no option 'in_sharding'; did you mean 'in_shardings'?; options: 'function'",
    ),
    "an unknown option of grad": (
        lambda: ml.grad(mean, argnum=1),
        ml.OptionError,
        "grad() has no option 'argnum'; did you mean 'argnums'?; options: 'function', 'argnums'",
    ),
    "no backend": (
        lambda: ml.jit(mean, backend="numpy"),
        ml.BackendError,
        "jit() is given backend='numpy', which is none; write backend=ml.NumpyBackend()",
    ),
    "no array to know it from": (
        lambda: ml.jit(lambda x: x)(np.ones(2)),
        ml.BackendError,
        NO_BACKEND,
    ),
    "a gradient without one": (
        lambda: ml.grad(mean)(1.0),
        ml.BackendError,
        "function 'mean' is called without an array of a backend",
    ),
    "two backends": (
        lambda: ml.jit(lambda a, b: a)(X, ml.NumpyBackend().ones(1)),
        ml.BackendError,
        "argument 'b' of function 'lambda' belongs to another backend",
    ),
    "an array of another backend around": (
        of_another_backend,
        ml.BackendError,
        "array used by function 'lambda' belongs to another backend",
    ),
    "a string": (
        lambda: ml.jit(lambda p: p)({"a": X, "kind": "mean"}),
        ml.GraphError,
        "argument 'p.kind' of function 'lambda' is a str; give an array of backend 'numpy', such as "
        "backend.array(…), or a number, or name the argument in static=… if it is a value of Python",
    ),
    "a string returned": (
        lambda: ml.jit(lambda x: {"kind": "mean"})(X),
        ml.GraphError,
        "'result.kind' of function 'lambda' is a str, which is no array; give arrays, numbers, and",
    ),
    "a parameter without size": (
        pending,
        ml.BackendError,
        "is a parameter without a size; it is made at the first evaluate() of its model",
    ),
    "an unknown name": (
        lambda: ml.jit(mean, static="kk"),
        ml.OptionError,
        "static='kk' is no argument of function 'mean'; did you mean 'k'?; arguments: 'x', 'k', by "
        "name or by position from 0",
    ),
    "an unknown position": (
        lambda: ml.jit(mean, donate=(0, 2)),
        ml.OptionError,
        "donate=2 is no argument of function 'mean'",
    ),
    "a choice of nothing": (
        lambda: ml.jit(mean, donate=0.5),
        ml.OptionError,
        "donate=0.5 chooses no arguments; give positions or names, such as donate=(0,)",
    ),
    "no flag": (
        lambda: ml.grad(mean, has_aux="no"),
        ml.OptionError,
        "has_aux='no' is neither True nor False; give one of them",
    ),
    "no direction": (
        lambda: ml.scan(lambda c, x: (c + x, c), X, X, reverse="no"),
        ml.OptionError,
        "reverse='no' is neither True nor False; give one of them",
    ),
    "a slip beside keywords": (
        lambda: ml.jit(lambda params, **named: params, donate="parms"),
        ml.OptionError,
        "donate='parms' is no argument of function 'lambda'; did you mean 'params'?",
    ),
    "given up and static": (
        lambda: ml.jit(lambda *xs: xs, donate=1, static="xs"),
        ml.OptionError,
        "donate=1 and static='xs' name the same argument; a value of Python has no memory to give",
    ),
    "a masked array": (
        lambda: ml.jit(mean, backend=X.backend)(np.ma.masked_array([1.0, 2.0], [True, False]), 2),
        ml.ShapeError,
        "values are a masked array of NumPy, whose mask would be lost; pass x.filled(value), and",
    ),
    "a static list": (
        lambda: ml.jit(mean, static="k")(X, [1]),
        ml.OptionError,
        "static argument 'k' of function 'mean' holds a value that cannot be hashed; give one that",
    ),
    "too few shardings": (
        lambda: ml.jit(mean, in_shardings=(P("x"),))(X, 2),
        ml.GraphError,
        "in_shardings=(P('x'),) does not fit function 'mean'; give one P(…) for all arguments, or a "
        "tuple with one entry for each of the 2 by position that are not static",
    ),
    "another form": (
        lambda: ml.jit(lambda p: p, in_shardings=({"w": P()},))({"v": X}),
        ml.GraphError,
        "the shardings of argument 'p' are {'w': P()}; give P(…) or None for all of it, or a tree of "
        "its form, a dict with the keys 'v'",
    ),
    "a list for another list": (
        lambda: ml.jit(lambda x: [x, x], out_shardings=[P()])(X),
        ml.GraphError,
        "the shardings of result are [P()]; give P(…) or None for all of it, or a tree of its form, "
        "a list of 2",
    ),
    "a word for a spec": (
        lambda: ml.jit(lambda x: x, out_shardings="x")(X),
        ml.GraphError,
        "or a tree of its form, one array",
    ),
    "a spec for nothing": (
        lambda: ml.jit(lambda x: None, out_shardings=[P()])(X),
        ml.GraphError,
        "or a tree of its form, None",
    ),
    "an argument's axis": (
        lambda: ml.jit(mean, in_shardings=(P("rows"), None))(X, 2),
        ml.MeshError,
        "has no axis 'rows'",
    ),
    "an argument's rank": (
        lambda: ml.jit(lambda p: p, backend=LINE, in_shardings=P(None, "x"))({"b": np.ones(3)}),
        ml.ShardingError,
        "P(None, 'x') has 2 entries for argument 'p.b' of function 'lambda' of rank 1",
    ),
    "a result's rank": (
        lambda: ml.jit(mean, out_shardings=P("x"))(X, 2),
        ml.ShardingError,
        "P('x') has 1 entries for 'result' of function 'mean' of rank 0",
    ),
    "uneven parts": (
        uneven,
        ml.ShardingError,
        "cannot split dimension 0 (5) of tensor over mesh axis",
    ),
    "an uneven argument": (
        uneven_argument,
        ml.ShardingError,
        "(5) of argument 'x' of function 'lam",
    ),
    "an array that left": (
        leaked,
        ml.GraphError,
        "a traced tensor of function 'lambda' is used after the function returned; return it from",
    ),
    "a tensor of another trace": (
        of_another_trace,
        ml.GraphError,
        "a tensor of another trace is used here; pass it in as an input of the function",
    ),
    "no function to differentiate": (
        lambda: ml.grad(3),
        ml.GraphError,
        "grad() takes a function, not 3; write grad(function)",
    ),
    "argnums twice": (
        lambda: ml.grad(mean, argnums=(0, 0)),
        ml.OptionError,
        "argnums=(0, 0) names a position twice; give each once, and use its gradient as often as you",
    ),
    "argnums by name": (
        lambda: ml.grad(mean, argnums="x"),
        ml.OptionError,
        "argnums='x' are no positions of arguments; give an integer of 0 or more, or a tuple of them",
    ),
    "argnums from the end": (
        lambda: ml.grad(mean, argnums=-1),
        ml.OptionError,
        "argnums=-1 are no",
    ),
    "argnums for nothing": (lambda: ml.grad(mean, argnums=()), ml.OptionError, "argnums=() are no"),
    "an argument that is not there": (
        lambda: ml.grad(mean, argnums=1)(X),
        ml.GraphError,
        "argument 1 of function 'mean' is to be differentiated by, and 1 arguments are given by "
        "position; pass it, or choose other argnums",
    ),
    "an integer argument": (
        lambda: ml.grad(lambda p: mnp.sum(p["n"] * 1.0))({"n": LINE.arange(3)}),
        ml.GraphError,
        "argument 'p.n' of function 'lambda' is int32[3]; only floats have gradients; choose other",
    ),
    "a gradient of an array": (
        lambda: ml.grad(lambda x: x)(X),
        ml.GraphError,
        "result of function 'lambda' is float32[4, 4]; a gradient needs a float scalar; return one",
    ),
    "a gradient of an integer": (
        lambda: ml.grad(lambda x: mnp.argmax(x.sum(0), axis=0))(X),
        ml.GraphError,
        "result of function 'lambda' is int32[]; a gradient needs a float scalar",
    ),
    "a gradient of a pair": (
        lambda: ml.grad(lambda x: (x.sum(), x))(X),
        ml.GraphError,
        "result of function 'lambda' is a tuple, not one scalar to differentiate; return the scalar,",
    ),
    "no pair": (
        lambda: ml.grad(lambda x: x.sum(), has_aux=True)(X),
        ml.GraphError,
        "function 'lambda' has has_aux=True and returns no pair; return (scalar, anything else)",
    ),
    "reshard of NumPy": (
        lambda: ml.reshard(np.ones(3), P("x")),
        ml.BackendError,
        "reshard() is given a numpy.ndarray, not an array of a backend; write backend.array(x, sharding=P('"
        "x'))",
    ),
    "constrain to a word": (
        lambda: ml.constrain(X, "x"),
        ml.ShardingError,
        "constrain() takes a partition spec, not 'x'; write P('x', None)",
    ),
    "constrain to an unknown axis": (
        lambda: ml.jit(lambda x: ml.constrain(x, P("rows")))(X),
        ml.MeshError,
        "has no axis 'rows'; axes: 'x' (constrained at 'lambda' (test_refusals.py:",
    ),
    "constrain beyond the rank": (
        lambda: ml.jit(lambda x: ml.constrain(x, P(None, None, "x")))(X),
        ml.ShardingError,
        "cannot constrain float32[4, 4] to P(None, None, 'x'); it has 3 entries; give at most one per",
    ),
    "NumPy's world": (
        lambda: mnp.sin(np.ones(3)),
        ml.BackendError,
        "mithril.numpy.sin is called without an array of a backend; pass one",
    ),
    "an array from nothing": (
        lambda: mnp.zeros((2,)),
        ml.BackendError,
        "mithril.numpy.zeros knows no backend to make an array on; pass backend=…, or call it inside",
    ),
    "like a number": (
        lambda: mnp.zeros_like(3),
        ml.BackendError,
        "mithril.numpy.full_like is given an int, no array to be like; use full(shape, …)",
    ),
    "a step of nothing": (
        ml.jit(lambda: mnp.arange(0, 3, 0), backend=LINE),
        ml.ShapeError,
        "arange has step 0 and would never end; give another step",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    use, error, text = REFUSED[case]
    with pytest.raises(error, match=re.escape(text)):
        use()


UNTRACEABLE: dict[str, tuple[Callable[[object], object], str]] = {
    "if": (lambda x: x if x.sum() > 0 else -x, "bool[] has no truth value; a Python branch cannot"),
    "while": (lambda x: [0 for _ in iter(lambda: bool(x.sum()), False)], "has no truth value"),
    "float": (lambda x: float(x.sum()), "is no Python number; its value is not known be"),
    "int": (lambda x: int(x.sum()), "is no Python number"),
    "complex": (lambda x: complex(x.sum()), "is no Python number"),
    "item": (lambda x: x.sum().item(), "is no Python number"),
    "range": (lambda x: list(range(x.sum())), "is no Python number"),
    "asarray": (
        np.asarray,
        "has no values for NumPy; use the functions of mithril.numpy, or retur",
    ),
    "numpy": (lambda x: x.numpy(), "has no values for NumPy"),
    "ufunc": (lambda x: np.sin(x) + 1, "has no values for NumPy"),
    "np.sum": (np.sum, "has no values for NumPy"),
    "np.mean": (lambda x: np.mean(x, axis=0), "has no values for NumPy"),
    "np.reshape": (lambda x: np.reshape(x, -1), "has no values for NumPy"),
    "np.concatenate": (lambda x: np.concatenate([x, x]), "has no values for NumPy"),
    "np.where": (lambda x: np.where(x > 0, x, 0.0), "has no values for NumPy"),
    "for": (lambda x: [*x], "is not iterated over; the loop would be unrolled; use unstack(x)"),
    "unpack": (lambda x: print(*x), "is not iterated over"),
    "in": (lambda x: x.sum() in (1, 2), "has no truth value"),
}


@pytest.mark.parametrize("case", UNTRACEABLE)
@pytest.mark.parametrize("wrap", [ml.jit, ml.grad, lambda f: ml.jit(ml.checkpoint(f))])
def test_what_cannot_be_traced_says_where(case: str, wrap: Callable) -> None:
    use, text = UNTRACEABLE[case]
    with pytest.raises(ml.GraphError, match=re.escape(text)) as caught:
        wrap(lambda x: use(x) or x)(X)
    place = re.search(r"\(in function '\w+', (.*):(\d+)\)$", str(caught.value))
    assert place is not None
    assert place[1] == __file__
    shown = Path(__file__).read_text("utf-8").splitlines()[int(place[2]) - 1]
    assert f'"{case}":' in shown or "wrap(lambda x: use(x) or x)" in shown


def test_functions_of_numpy_that_need_no_values_are_answered() -> None:
    @ml.jit
    def form(x: object) -> object:
        assert (np.shape(x), np.ndim(x), np.size(x), np.size(x, 1)) == ((2, 3), 2, 6, 3)
        return x

    assert form(LINE.ones(2, 3)).shape == (2, 3)


def test_shapes_that_do_not_fit_say_where() -> None:
    def product(x: object) -> object:
        return x @ mnp.ones((3, 2))

    with pytest.raises(ml.ShapeError, match=r"\(in function 'product', .*test_refusals.py:\d+\)"):
        ml.jit(product)(X)


def test_a_missing_argument_is_python_s_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        ml.jit(lambda a, b: a)(X)
    with pytest.raises(TypeError, match="unexpected keyword"):
        ml.jit(mean)(X, scale=3)


def test_an_op_mixes_kinds_only_where_a_trace_takes_arrays() -> None:
    from mithril.ir import Builder
    from mithril.types import DType, TensorType

    traced = Builder().input(TensorType((4, 4), DType.float32), "x")
    with pytest.raises(
        ml.GraphError, match="pass arrays as model inputs instead of capturing them"
    ):
        X + traced


def test_functions_without_signature() -> None:
    f = ml.jit(partial(mean, k=3))
    assert f.name == "partial"
    assert float(f(LINE.ones(2))) == 3
