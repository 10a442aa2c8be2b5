"""Batches: the rows of a data set in order or shuffled, where the sharding says, from any position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mithril as ml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick

ORDER = [[2, 1, 8, 5, 0, 7, 9, 4, 6, 3]]
"""Of 10 rows, with shuffle=1."""
ROWS = 22
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
Y = np.arange(ROWS, dtype=np.int32)
BOTH = {"x": X, "y": Y}


@pytest.fixture
def backend() -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(data=4))


def rows_of(batches: Any) -> list[list[int]]:
    """Return the numbers of the rows of each batch, which stand in `y`."""
    return [batch["y"].numpy().tolist() for batch in batches]


@quick(lambda backend: backend in ("jax", "mlx"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_of_arrays_on_every_backend(backend: str) -> None:
    here = opened(backend, data=2)
    data = ml.data.batches(BOTH, 8, backend=here, sharding=P("data"), shuffle=3)
    found = list(data)
    seen = np.concatenate([batch["y"].numpy() for batch in found])
    assert sorted(seen) == list(range(ROWS))
    assert [batch["y"].shape for batch in found] == [(8,), (8,), (6,)]
    for batch in found:
        np.testing.assert_array_equal(batch["x"].numpy(), X[batch["y"].numpy()])
        assert batch["x"].sharding.spec == P("data", None)
        assert batch["x"].is_placed


# ---------------------------------------------------------------------- what data may be


class Pair(NamedTuple):
    x: Any
    y: Any


class Samples:
    """A data set as those of PyTorch are: samples by position."""

    def __init__(self, form: str = "dict", count: int = ROWS) -> None:
        self.form, self.count = form, count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        self.read.append(i)
        if self.form == "dict":
            return {"x": X[i], "y": int(Y[i])}
        if self.form == "lists":
            return {"x": X[i].tolist(), "y": int(Y[i])}
        return Pair(X[i], Y[i]) if self.form == "named" else (X[i], Y[i])


class Columns(Samples):
    """One that gives several samples at once, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def __getitems__(self, rows: list[int]) -> list[Any]:
        self.asked.append(rows)
        return [self[row] for row in rows]


@pytest.mark.parametrize("form", ["dict", "lists", "tuple", "named"])
def test_samples_keep_their_form(form: str, backend: ml.Backend) -> None:
    batches = ml.data.batches(Samples(form), 8, backend=backend, sharding=P("data"), shuffle=1)
    for batch in batches:
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        np.testing.assert_array_equal(x.numpy(), X[y.numpy()])
        assert (x.dtype, y.dtype) == ("float32", "int32")
        assert not isinstance(batch, dict) or form in ("dict", "lists")
        assert isinstance(batch, Pair) == (form == "named")


def test_each_sample_is_read_once(backend: ml.Backend) -> None:
    data = Samples()
    list(ml.data.batches(data, 8, backend=backend, sharding=P("data"), shuffle=1))
    assert sorted(data.read) == sorted([0, *range(ROWS)]), "the first one tells the form"


def test_several_samples_are_asked_for_at_once(backend: ml.Backend) -> None:
    data = Columns()
    one = ml.NumpyBackend()
    batches = ml.data.batches(data, 8, backend=one)
    assert rows_of(batches) == [list(range(i, min(i + 8, ROWS))) for i in range(0, ROWS, 8)]
    assert data.asked == rows_of(ml.data.batches(BOTH, 8, backend=one))


def test_a_tuple_and_a_lone_array(backend: ml.Backend) -> None:
    for x, y in ml.data.batches((X, Y), 8, backend=backend, shuffle=2):
        np.testing.assert_array_equal(x.numpy(), X[y.numpy()])
    for batch in ml.data.batches(X, 11, backend=backend, sharding=P("data")):
        assert batch.shape == (11, 3)


def test_a_memory_map_is_read_by_parts(tmp_path: Path, backend: ml.Backend) -> None:
    np.save(tmp_path / "x.npy", X)
    data = {"x": np.load(tmp_path / "x.npy", mmap_mode="r"), "y": Y}
    for shuffle in (None, 5):
        spec = {"x": P("data"), "y": P()}
        for batch in ml.data.batches(data, 8, backend=backend, sharding=spec, shuffle=shuffle):
            np.testing.assert_array_equal(batch["x"].numpy(), X[batch["y"].numpy()])


class File:
    """An array in a file, as h5py's: it is read at growing positions only."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.dtype, self._values = values.shape, values.dtype, values

    def __getitem__(self, rows: Any) -> np.ndarray:
        assert isinstance(rows, slice) or np.all(np.diff(rows) > 0)
        return self._values[rows]

    def __array__(self) -> np.ndarray:
        raise AssertionError("it is not read whole")


def test_files_of_arrays_are_read_at_growing_positions(backend: ml.Backend) -> None:
    mesh = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    data = {"x": File(X), "y": File(Y)}
    spec = {"x": P("data", "tensor"), "y": P("data")}
    for shuffle in (None, 5):
        for batch in ml.data.batches(data, 8, backend=mesh, sharding=spec, shuffle=shuffle):
            np.testing.assert_array_equal(batch["x"].numpy(), X[batch["y"].numpy()])


def test_arrays_of_a_framework_and_of_mithril(backend: ml.Backend) -> None:
    torch = pytest.importorskip("torch")
    data = {"x": torch.tensor(X, dtype=torch.bfloat16), "y": backend.array(Y, sharding=P("data"))}
    for batch in ml.data.batches(data, 8, backend=backend, shuffle=1):
        assert batch["x"].dtype == "bfloat16"
        expected = torch.tensor(X, dtype=torch.bfloat16).float().numpy()[batch["y"].numpy()]
        np.testing.assert_array_equal(batch["x"].astype("float32").numpy(), expected)


class Column:
    """A column of pandas: rows are read by their labels, which are not their positions."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.dtype, self.values = values.shape, values.dtype, values
        self.iloc = values

    def __getitem__(self, rows: Any) -> np.ndarray:
        raise AssertionError("these are labels")

    def to_numpy(self) -> np.ndarray:
        return self.values


class Frame:
    """A table of pandas."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = {name: Column(values) for name, values in columns.items()}
        self.iloc, self.columns = object(), list(columns)
        self.shape = (ROWS, len(columns))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def items(self) -> Any:
        return self._columns.items()


@pytest.mark.parametrize("shuffle", [None, 5])
def test_columns_of_pandas_are_read_by_position(shuffle: int | None, backend: ml.Backend) -> None:
    columns = {"x": X[:, 0], "y": Y}
    table: dict[str, Any] = {name: Column(values) for name, values in columns.items()}
    for data in (table, Frame(columns)):
        for batch in ml.data.batches(data, 8, backend=backend, shuffle=shuffle):
            np.testing.assert_array_equal(batch["x"].numpy(), X[batch["y"].numpy(), 0])
    seen = [b.numpy() for b in ml.data.batches(Column(Y), 8, backend=backend, shuffle=shuffle)]
    assert sorted(np.concatenate(seen)) == list(range(ROWS))


def test_an_iterable_data_set_of_pytorch(backend: ml.Backend) -> None:
    """It may have a length, and has `data[i]`, which raises."""
    data = pytest.importorskip("torch.utils.data")

    class Flow(data.IterableDataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return ROWS

        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter([{"x": X[i], "y": int(Y[i])} for i in range(ROWS)])

    batches = ml.data.batches(Flow(), 8, backend=backend)
    expected = [list(range(i, min(i + 8, ROWS))) for i in range(0, ROWS, 8)]
    assert (batches.steps_per_epoch, batches.steps_left) == (3, 3)
    assert rows_of(batches) == expected
    loader = ml.data.batches(data.DataLoader(Flow(), batch_size=8), backend=backend, epochs=2)
    assert (loader.steps_per_epoch, loader.steps_left) == (3, 6)
    assert rows_of(loader) == expected * 2


def test_a_data_loader_of_pytorch(backend: ml.Backend) -> None:
    data = pytest.importorskip("torch.utils.data")
    import torch

    samples = data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    loader = data.DataLoader(samples, batch_size=8, shuffle=True)
    found = list(ml.data.batches(loader, backend=backend, sharding=P("data")))
    assert [y.shape for _, y in found] == [(8,), (8,), (6,)]
    for x, y in found:
        np.testing.assert_array_equal(x.numpy(), X[y.numpy()])
    for x, y in ml.data.batches(samples, 8, backend=backend, shuffle=4):
        np.testing.assert_array_equal(x.numpy(), X[y.numpy()])


def make_ready() -> Iterator[dict[str, np.ndarray]]:
    for at in range(0, ROWS, 8):
        yield {"x": X[at : at + 8], "y": Y[at : at + 8]}


def test_iterables_of_batches_and_of_samples(backend: ml.Backend) -> None:
    expected = [list(range(i, min(i + 8, ROWS))) for i in range(0, ROWS, 8)]
    for data in (make_ready(), make_ready, list(make_ready())):
        assert rows_of(ml.data.batches(data, backend=backend, sharding=P("data"))) == expected
    samples = ({"x": X[i], "y": Y[i]} for i in range(ROWS))
    assert rows_of(ml.data.batches(samples, 8, backend=backend)) == expected
    samples = ({"x": X[i], "y": Y[i]} for i in range(ROWS))
    cut = ml.data.batches(samples, 8, backend=backend, drop_last=True)
    assert rows_of(cut) == expected[:2]


def test_ready_batches_of_a_list_are_shuffled(backend: ml.Backend) -> None:
    ready = list(make_ready())
    found = rows_of(ml.data.batches(ready * 4, backend=backend, shuffle=1, epochs=1))
    assert sorted(found) == sorted(batch["y"].tolist() for batch in ready * 4)
    assert found != [batch["y"].tolist() for batch in ready * 4]


def test_dtypes(backend: ml.Backend) -> None:
    data = {"x": X.astype(np.float64), "y": Y.astype(np.int64), "m": Y > 3, "b": Y.astype("uint8")}
    (batch,) = ml.data.batches(data, ROWS, backend=backend)
    assert [str(batch[k].dtype) for k in data] == ["float32", "int32", "bool", "uint8"]
    dtypes = {"x": "float16", "y": "int64"}
    (batch,) = ml.data.batches(data, ROWS, backend=backend, dtypes=dtypes)
    assert [str(batch[k].dtype) for k in data] == ["float16", "int64", "bool", "uint8"]
    (lone,) = ml.data.batches(X, ROWS, backend=backend, dtypes={"data": "bfloat16"})
    assert lone.dtype == "bfloat16"


def test_floats_are_converted_without_a_look_for_the_greatest(
    backend: ml.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mithril.data.placing.check_range", pytest.fail)
    values = np.array([1.0, np.inf, -np.inf, np.nan])
    for dtype in ("float32", "float16"):
        (batch,) = ml.data.batches(values, 4, backend=backend, dtypes={"data": dtype})
        np.testing.assert_array_equal(batch.numpy(), values)


def test_dtypes_of_samples_that_are_not_alike(backend: ml.Backend) -> None:
    """Numbers of a narrower kind than the first one become its kind; `dtypes=` says otherwise."""
    for first, then, said, expected in (
        (0.5, 1, {}, "float32"), (2, True, {}, "int32"), (0, 0.5, {"x": "float32"}, "float32"),
        (True, 7, {"x": "int8"}, "int8"), (1.0, 7.0, {"x": "uint8"}, "uint8"),
    ):  # fmt: skip
        for data in ([{"x": first}, {"x": then}], iter([{"x": first}, {"x": then}])):
            (batch,) = ml.data.batches(data, 2, backend=backend, dtypes=said)
            assert batch["x"].dtype == expected
            assert batch["x"].numpy().tolist() == [first, then]


@pytest.mark.parametrize(
    ("given", "expected"), [(">f8", "float32"), (">i8", "int32"), (">u2", "uint16")]
)
def test_dtypes_whatever_the_order_of_bytes(given: str, expected: str, backend: ml.Backend) -> None:
    for batch in ml.data.batches({"y": Y.astype(given)}, 8, backend=backend, shuffle=1):
        assert batch["y"].dtype == expected
        assert max(batch["y"].numpy()) < ROWS


def test_what_is_not_finite_stays_so(backend: ml.Backend) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    (batch,) = ml.data.batches(values, 4, backend=backend, dtypes={"data": "float16"})
    np.testing.assert_array_equal(batch.numpy(), values.astype(np.float16))


def test_batches_are_copies(backend: ml.Backend) -> None:
    x = X.copy()
    data = {"x": x, "y": Y}
    for batch in ml.data.batches(data, 8, backend=backend, sharding=P("data"), prefetch=0):
        before = batch["x"].numpy().copy()
        x += 1
        np.testing.assert_array_equal(batch["x"].numpy(), before)


def test_the_one_backend_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from mithril.data import placing

    one = ml.NumpyBackend()
    monkeypatch.setattr(placing, "list_backends", lambda: [one])
    (batch,) = ml.data.batches(X, ROWS)
    assert batch.backend is one
    monkeypatch.setattr(placing, "list_backends", lambda: [one, one])
    with pytest.raises(ml.OptionError, match=r"that is open, and 2 are; give backend="):
        ml.data.batches(X, ROWS)


def test_shapes_plan_a_model(backend: ml.Backend) -> None:
    model = ml.Model()
    model |= ml.Linear(2, bias=False, name="down")(input="x", output="z")
    batches = ml.data.batches({"x": X}, 8, backend=backend, sharding=P("data"))
    assert batches.shapes["x"] == ml.TensorSpec((8, 3), "float32", P("data", None))
    compiled = ml.compile(model, backend, shapes=batches.shapes)
    params = compiled.randomize_params(seed=0)
    for batch in batches:
        expected = batch["x"].numpy() @ params["down.weight"].numpy().T
        found = compiled.evaluate(params, batch)["z"].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- order and position


def test_each_epoch_has_an_order_of_its_own(backend: ml.Backend) -> None:
    batches = ml.data.batches(BOTH, ROWS, backend=backend, shuffle=7)
    epochs = [rows_of(batches)[0] for _ in range(3)]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, list(range(ROWS))]}) == 4
    at_once = ml.data.batches(BOTH, ROWS, backend=backend, shuffle=7, epochs=3)
    assert rows_of(at_once) == epochs
    other = ml.data.batches(BOTH, ROWS, backend=backend, shuffle=8)
    assert rows_of(other)[0] != epochs[0]


def test_the_order_is_that_of_every_version() -> None:
    """Runs that are gone on with later have the same order."""
    found = rows_of(ml.data.batches({"y": Y[:10]}, 10, backend=ml.NumpyBackend(), shuffle=1))
    assert found == ORDER


def test_numbers_of_steps(backend: ml.Backend) -> None:
    batches = ml.data.batches(BOTH, 8, backend=backend, epochs=2)
    assert (batches.steps_per_epoch, batches.steps_left) == (3, 6)
    for left, _ in zip((5, 4, 3, 2), batches, strict=False):
        assert batches.steps_left == left
    assert (batches.epoch, batches.steps_left) == (1, 2)
    dropping = ml.data.batches(BOTH, 8, backend=backend, drop_last=True)
    assert dropping.steps_per_epoch == len(list(dropping)) == 2
    endless = ml.data.batches(BOTH, 8, backend=backend, epochs=None)
    assert endless.steps_left is None
    assert ml.data.batches(make_ready, backend=backend).steps_left is None
    assert ml.data.batches(make_ready(), backend=backend).steps_per_epoch is None


@given(
    count=st.integers(1, 30), size=st.integers(1, 12), shuffle=st.sampled_from([None, 3]),
    epochs=st.sampled_from([1, 2, 3]), drop_last=st.booleans(), prefetch=st.sampled_from([0, 2]),
    stop=st.integers(0, 40),
)  # fmt: skip
def test_what_follows_a_state_is_what_would_have_followed(
    count: int,
    size: int,
    shuffle: int | None,
    epochs: int,
    drop_last: bool,
    prefetch: int,
    stop: int,
) -> None:
    drop_last = drop_last and size <= count
    one = ml.NumpyBackend()

    def make() -> ml.data.Batches:
        return ml.data.batches(
            {"y": np.arange(count)}, size, backend=one, shuffle=shuffle, epochs=epochs,
            drop_last=drop_last, prefetch=prefetch,
        )  # fmt: skip

    whole, first = make(), make()
    expected = [batch for _ in range(3) for batch in rows_of(whole)]
    stop = min(stop, 2 * len(expected) // 3)
    found = []
    while len(found) < stop:
        for batch in first:
            found.append(batch["y"].numpy().tolist())
            if len(found) == stop:
                break
    state = json.loads(json.dumps(first.state()))
    second = make()
    second.restore(state)
    if not second.steps_left:  # it was taken with the last batch of a loop
        assert rows_of(second) == []
    assert second.steps_left == first.steps_left
    rest = rows_of(second)
    assert found + rest == expected[: len(found) + len(rest)]
    assert rest or not expected[len(found) :]
    assert rest == rows_of(first), "a loop goes on where the last one was left"


def test_the_state_of_an_iterable_skips_what_was_taken(backend: ml.Backend) -> None:
    expected = rows_of(ml.data.batches(make_ready, backend=backend, epochs=2))
    assert len(expected) == 6
    batches = ml.data.batches(make_ready, backend=backend, epochs=2)
    for number, _ in enumerate(batches):
        if number == 3:
            break
    state = batches.state()
    assert state == {"epoch": 1, "position": 1, "seed": None, "data": "an iterable"}
    again = ml.data.batches(make_ready, backend=backend, epochs=2)
    again.restore(state)
    assert rows_of(again) == expected[4:]


@pytest.mark.parametrize("epochs", [1, 2])
def test_after_a_loop_over_an_iterable_that_is_left_in_its_last_batch(
    epochs: int, backend: ml.Backend
) -> None:
    """The next loop goes through all epochs again; one that is restored there has nothing left."""
    for data, size in ((make_ready, None), (lambda: iter([{"y": y} for y in Y]), 8)):
        batches = ml.data.batches(data, size, backend=backend, epochs=epochs)
        expected = rows_of(batches)
        for number, _ in enumerate(batches):
            if number == len(expected) - 1:
                break
        state = batches.state()
        assert rows_of(batches) == rows_of(batches) == expected
        again = ml.data.batches(data, size, backend=backend, epochs=epochs)
        again.restore(state)
        assert rows_of(again) == []
        assert rows_of(again) == expected


def test_a_state_is_saved_with_a_checkpoint(tmp_path: Path, backend: ml.Backend) -> None:
    batches = ml.data.batches(BOTH, 8, backend=backend, shuffle=3, epochs=None)
    for _, batch in zip(range(5), batches, strict=False):
        last = batch
    ml.save(tmp_path / "run", {"x": last["x"], "batches": batches.state()})
    mesh = ml.NumpyBackend(ml.Mesh(data=2))
    again = ml.data.batches(BOTH, 8, backend=mesh, sharding=P("data"), shuffle=3, epochs=None)
    again.restore(ml.load(tmp_path / "run")["batches"])
    following = next(iter(batches)), next(iter(again))
    np.testing.assert_array_equal(*(batch["y"].numpy() for batch in following))
