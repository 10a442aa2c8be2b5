"""What is no data, no size, no position: refused with what is wrong and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from mithril import P

X, Y = np.zeros((6, 3), np.float32), np.arange(6)
ONE = ml.NumpyBackend()
FOUR = ml.NumpyBackend(ml.Mesh(data=4))
EVEN = ml.NumpyBackend(ml.Mesh(data=4), uneven="error")


class Samples:
    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i]


class Several(Samples):
    """A data set whose `__getitems__` gives something else than a sample for each position."""

    def __init__(self, given: Any) -> None:
        super().__init__(X[0], X[1])
        self.given = given

    def __getitems__(self, rows: list[int]) -> Any:
        return self.given


class Short(Samples):
    """A data set that ends before its length says so."""

    def __getitem__(self, i: int) -> Any:
        return self.samples[i] if i == 0 else next(iter(()))


def make(data: Any = X, size: Any = 2, **options: Any) -> ml.data.Batches:
    return ml.data.batches(data, size, **{"backend": ONE, **options})


def run(data: Any, size: Any = 2, **options: Any) -> None:
    list(make(data, size, **options))


CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: make(size=0), ml.OptionError, "size=0 is no number of samples; give 1 or more"),
    (lambda: make(size=-2), ml.OptionError, "size=-2 is no number of samples; give 1 or more"),
    (lambda: make(size=2.5), ml.OptionError, "size=2.5 is no number of samples; give 1 or more"),
    (lambda: make(size=True), ml.OptionError, "size=True is no number of samples; give 1 or more"),
    (lambda: make(epochs=0), ml.OptionError, "epochs=0 is no number of epochs; give 1 or more"),
    (
        lambda: make(prefetch=-1), ml.OptionError,
        "prefetch=-1 is no number of batches to read ahead; give 0 or more",
    ),
    (
        lambda: make(shuffle=True), ml.OptionError,
        "shuffle=True is no seed; give an integer in [0, 2**32), or None for the order of the data",
    ),
    (
        lambda: make(shuffle=2**32), ml.OptionError,
        "shuffle=4294967296 is no seed; give an integer in [0, 2**32)",
    ),
    (
        lambda: make(drop_last="yes"), ml.OptionError,
        "drop_last='yes' is neither True nor False; give one of them",
    ),
    (
        lambda: make(shufle=1), ml.OptionError,
        "batches() has no option 'shufle'; did you mean 'shuffle'?",
    ),
    (lambda: make(backend="jax"), ml.OptionError, "backend='jax' is no backend; open one, such as"),
    (
        lambda: make(dtypes="int32"), ml.OptionError,
        "dtypes='int32' is no mapping; give a dtype by field",
    ),
    (
        lambda: make({"x": X, "y": Y}, dtypes={"z": "int32"}), ml.OptionError,
        "dtypes= names the field 'z', which the data do not have; fields: 'x', 'y'",
    ),
    (
        lambda: make({"x": X, "y": Y[:4]}), ml.ShapeError,
        "arrays of the data have first dimensions that differ: 'x' 6, 'y' 4; give one row of each "
        "to a sample",
    ),
    (
        lambda: make({"x": X[:0]}), ml.ShapeError,
        "data set is empty: 'x' has first dimension 0; give at least a row",
    ),
    (
        lambda: make(Samples()), ml.ShapeError,
        "data set is empty: a Samples of length 0; give at least a sample",
    ),
    (
        lambda: make({}), ml.ShapeError,
        "data have no arrays; give a dict or tuple with at least one",
    ),
    (
        lambda: run(lambda: iter(()), None), ml.ShapeError,
        "data set is empty: a function gave no batch in epoch 0; give at least one",
    ),
    (
        lambda: make({"x": 3.0}), ml.ShapeError,
        "field 'x' of the data is a float, no array; give arrays, or one data set whose samples "
        "have these fields",
    ),
    (
        lambda: make({"x": np.ma.ones((4, 2))}), ml.ShapeError,
        "field 'x' of the data is a masked array of NumPy, whose mask would be lost",
    ),
    (
        lambda: make({"x": np.float32(3)}), ml.ShapeError,
        "field 'x' of the data has no dimensions; its first one counts samples",
    ),
    (
        lambda: make({"x": [[1, 2], [3]]}), ml.ShapeError,
        "field 'x' of the data cannot be made an array; values do not form an array",
    ),
    (
        lambda: make(Samples({"text": "a cat"})), ml.ShapeError,
        "field 'text' of the data cannot be made an array; values are of type <U5, which is no "
        "dtype of Mithril",
    ),
    (
        lambda: make(3), ml.OptionError,
        "data are an int; give a dict or tuple of arrays, a data set with len(data) and data[i], "
        "or an iterable of batches",
    ),
    (lambda: make("runs/x.npy"), ml.OptionError, "data are a str; give a dict or tuple of arrays"),
    (
        lambda: make({"x": X}, None), ml.OptionError,
        "size=None takes what gives ready batches, and data are arrays; give size=, the number of "
        "samples of a batch",
    ),
    (
        lambda: make(size=8, drop_last=True), ml.OptionError,
        "data set has 6 samples, too few for a batch of 8 with drop_last=True; give a smaller size",
    ),
    (
        lambda: make([X, X], None, drop_last=True), ml.OptionError,
        "drop_last=True leaves out what does not fill a batch, and size=None takes ready batches "
        "as they are",
    ),
    (
        lambda: make(iter([X]), None, shuffle=3), ml.OptionError,
        "shuffle=3 needs data with positions, and a list_iterator gives its items in its own order",
    ),
    (
        lambda: make(per_process=True, sharding=P()), ml.OptionError,
        "per_process=True takes ready batches of the rows that sharding= gives to this process",
    ),
    (
        lambda: run([X[:2]], None, per_process=True, sharding=P("data"), backend=FOUR),
        ml.ShapeError,
        "field 'data' of a batch has 2 rows in this process, whose devices hold 4 of 4 parts; give "
        "a multiple of that",
    ),
    (
        lambda: make({"x": X}, 6, backend=EVEN, sharding=P("data")), ml.ShardingError,
        "cannot split dimension 0 (6) of field 'x' of a batch over mesh axis 'data' (4); 6 is not a "
        "multiple of 4; use a size of 4 or 8",
    ),
    (
        lambda: make({"x": X}, 4, backend=EVEN, sharding=P("data")), ml.ShardingError,
        "cannot split dimension 0 (2) of field 'x' of a batch over mesh axis 'data' (4)",
    ),
    (
        lambda: make({"y": Y}, 4, backend=FOUR, sharding=P("data", None)), ml.ShardingError,
        "P('data', None) has 2 entries for field 'y' of a batch of rank 1; give at most one",
    ),
    (
        lambda: make({"y": Y}, 4, backend=FOUR, sharding={"x": P("data")}), ml.GraphError,
        "the shardings of a batch are {'x': P('data')}; give P(…) or None for all of it, or a tree "
        "of its form, a dict with the keys 'y'",
    ),
    (
        lambda: run({"y": np.array([1, 2**40])}), ml.ShapeError,
        "values of field 'y' of the data reach from 1 to 1099511627776, int32 from -2147483648 to "
        "2147483647; give a wider dtype in dtypes={'y': …}",
    ),
    (
        lambda: run({"y": np.array([1e300, 1.0])}), ml.ShapeError,
        "values of field 'y' of the data reach from 1.0 to 1e+300, float32 from -3.4028234663852886"
        "e+38 to 3.4028234663852886e+38; give a wider dtype in dtypes={'y': …}",
    ),
    (
        lambda: run({"y": Y * 1e5}, dtypes={"y": "float16"}), ml.ShapeError,
        "values of field 'y' of the data reach from 0.0 to 100000.0, float16 from -65504.0 to",
    ),
    (
        lambda: run({"y": np.full(4, 1e30, ml_dtypes.bfloat16)}, dtypes={"y": "float16"}),
        ml.ShapeError, "values of field 'y' of the data reach from 1.00",
    ),
    (
        lambda: run({"y": np.full(4, 3.4e38, np.float32)}, dtypes={"y": "bfloat16"}),
        ml.ShapeError, "values of field 'y' of the data reach from 3.39",
    ),
    (
        lambda: run({"y": np.array([1.0, np.nan])}, dtypes={"y": "int32"}), ml.ShapeError,
        "values of field 'y' of the data are not finite in places, as no int32 is; give a float "
        "dtype in dtypes={'y': …}, or replace them",
    ),
    (
        lambda: run({"y": np.array([1.0, 1.7])}, dtypes={"y": "int32"}), ml.ShapeError,
        "field 'y' of the data has values that are not whole, such as 1.7, and becomes int32; round "
        "them, or give dtypes={'y': …} a float dtype",
    ),
    (
        lambda: run({"y": np.array([0.0, 0.5])}, dtypes={"y": "bool"}), ml.ShapeError,
        "field 'y' of the data has values that are not whole, such as 0.5, and becomes bool",
    ),
    (
        lambda: make({"x": np.array(["a", "b"])}), ml.ShapeError,
        "field 'x' of the data is of type <U1, which is no dtype of Mithril; give numbers",
    ),
    (
        lambda: make({"x": np.zeros(3, [("a", int)])}), ml.ShapeError,
        "field 'x' of the data is of type [('a', '<i8')], which is no dtype of Mithril",
    ),
    (
        lambda: make({"x": np.ones(3, ml_dtypes.float8_e4m3fn)}), ml.ShapeError,
        "field 'x' of the data has elements of another kind; dtype 'float8_e4m3fn' is not supported",
    ),
    (
        lambda: make({"x": [X, X]}), ml.ShapeError,
        "field 'x' of the data is a list of arrays; give one array whose first dimension counts "
        "samples, such as np.stack(…), or a tuple where each is a field",
    ),
    (
        lambda: run(Samples({"x": 0}, {"x": 0.5})), ml.ShapeError,
        "sample 1 of the data set has 'x' of float64, the first one of int64, which does not hold "
        "it; make all of them alike, or say what they become in dtypes={'x': …}",
    ),
    (
        lambda: run(iter([True, 7])), ml.ShapeError,
        "a sample of the data set has 'data' of int64, the first one of bool, which does not hold",
    ),
    (
        lambda: run(Several([])), ml.ShapeError,
        "data set returns a list with 0 samples from __getitems__ of 2 positions; return a list "
        "with a sample for each",
    ),
    (
        lambda: run(Several({"x": X[:1]}), 1), ml.ShapeError,
        "data set returns a dict with 0 samples from __getitems__ of 1 positions",
    ),
    (
        lambda: run(Short(X[0], X[1])), ml.ShapeError,
        "data set raises StopIteration when it is asked for 1; let its length say how many samples "
        "it has",
    ),
    (
        lambda: run(Short(X, X), None), ml.ShapeError,
        "data set raises StopIteration when it is asked for 1; let its length say how many samples",
    ),
    (
        lambda: run(Samples({"x": X[0]}, {"z": X[0]})), ml.ShapeError,
        "sample 1 of the data set has the fields 'z', the first one 'x'; give all of them the same "
        "form",
    ),
    (
        lambda: run(Samples({"x": X[0]}, {"x": X[0, :2]})), ml.ShapeError,
        "sample 1 of the data set has 'x' of shape (2,), the first one of shape (3,); pad samples "
        "to one shape, or give ready batches",
    ),
    (
        lambda: run(iter([{"x": 1.0}]), None), ml.ShapeError,
        "field 'x' of a batch is a single number; its first dimension counts samples",
    ),
    (
        lambda: run([{"x": ONE.ones(2)}], None), ml.ShapeError,
        "field 'x' of an item is an array of backend 'numpy' already; give values of the host, or "
        "loop over the data themselves",
    ),
    (
        lambda: make(iter([X]), None).shapes, ml.OptionError,
        "shapes of batches are known before they are read for arrays and data sets with size=",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[case[2][:40] for case in CASES])
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_an_iterator_is_gone_through_once() -> None:
    def make_ready() -> Iterator[np.ndarray]:
        yield X
        yield X

    batches = make(make_ready(), None)
    next(iter(batches))
    text = "data are a generator, which can be gone through once, and it was begun before; give a"
    with pytest.raises(ml.OptionError, match=text):
        list(batches)


STATE = make({"x": X}, 2, shuffle=1).state()
STATES: list[tuple[Any, str]] = [
    (None, "state is None and not what batches.state() returned, a dict of epoch, position, seed"),
    ({"epoch": 0}, "state is a dict and not what batches.state() returned"),
    ({**STATE, "epoch": -1}, "state has epoch -1 and position 0; both count from 0"),
    ({**STATE, "position": "x"}, "state has epoch 0 and position 'x'; both count from 0"),
    (
        make({"x": X[:5]}, 2, shuffle=1).state(),
        "state is of other data: 5 samples of x: float32[3]; these are 6 samples of x: float32[3]; "
        "give the same data",
    ),
    (
        make([X], None).state(),
        "state is of other data: 1 ready batches; these are 6 samples",
    ),
    (
        make({"x": X}, 2).state(),
        "state was taken with shuffle=None, these batches have shuffle=1; give the same",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("state", "text"), STATES, ids=range(len(STATES)))
def test_states_of_something_else_are_refused(state: Any, text: str) -> None:
    batches = make({"x": X}, 2, shuffle=1)
    next(iter(batches))
    before = batches.state()
    with pytest.raises(ml.OptionError, match=re.escape(text)):
        batches.restore(state)
    assert batches.state() == before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loop_that_another_took_the_place_of_ends(prefetch: int) -> None:
    batches = make({"x": X}, 2, prefetch=prefetch)
    text = "batches were restored, or another loop over them was begun, while this one ran"
    with pytest.raises(ml.OptionError, match=text):
        for _ in batches:
            batches.restore({**batches.state(), "position": 0})
    with pytest.raises(ml.OptionError, match=text):
        for _ in batches:
            for _ in batches:
                pass
