"""batches: rows of a data set as arrays on a mesh, a batch at a time, from wherever one was.

A batch is the same on every mesh and in every process; each process reads the rows of its own
devices. What comes next depends on a position alone, which can be saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from mithril.data.agreement import Agreement
from mithril.data.items import Item, check_alike, read_item
from mithril.data.order import Position, permute, read_count, read_shuffle
from mithril.data.placing import HostBatch, Placing, Specs, find_backend, read_dtypes
from mithril.data.prefetch import read_ahead
from mithril.data.samples import BatchTable, ReadyRows, StackedRows
from mithril.data.sources import Rows, Stream, Table, open_source
from mithril.errors import OptionError, ShapeError, kind_of
from mithril.keywords import checked_keywords
from mithril.runtime.backend import Backend
from mithril.types import to_python

Walk = Iterator[tuple[Rows, Position]]
"""Batches before they are read, each with the position after it."""
STATE = ("epoch", "position", "seed", "data")


class Batches:
    """Batches of a data set; `for batch in batches` goes on where the last loop was left.

    Made by `ml.data.batches`. A loop goes to the end of the epoch, or of as many epochs as were
    asked for; the next one begins the next epoch, in another order.
    """

    def __init__(
        self,
        source: Table | BatchTable | Stream,
        size: int | None,
        placing: Placing,
        seed: int | None,
        epochs: int | None,
        drop_last: bool,
        prefetch: int,
    ) -> None:
        self._source, self._placing = source, placing
        self._size, self._seed, self._epochs = size, seed, epochs
        self._drop_last, self._prefetch = drop_last, prefetch
        self._position = Position(0, 0)
        self._has_last = False  # a loop has its last batch, and was not asked for another
        self._is_restored = False  # and no batch was given since
        self._loop: object = None
        self._order: tuple[int, np.ndarray] | None = None
        if not isinstance(source, Stream | BatchTable):
            self._check_size(source)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next batch belongs to, from 0.

        With the last batch of a loop that is the one the next loop begins with; `state()` stays
        in the loop, behind its last batch, and has the number before.
        """
        return self._position.epoch

    @property
    def steps_per_epoch(self) -> int | None:
        """How many batches a whole epoch has; None for an iterable that has no length."""
        return None if self._source.count is None else self._count_steps(0)

    @property
    def steps_left(self) -> int | None:
        """How many batches the next loop gives; None if nobody knows, or it has no end."""
        each, end = self.steps_per_epoch, self._find_end()
        if each is None or end is None:
            return None
        return self._count_steps(self._position.taken) + (end - self.epoch - 1) * each

    @property
    def is_endless(self) -> bool:
        """Whether a loop never ends by itself."""
        return self._epochs is None

    @property
    def shapes(self) -> Any:
        """What a full batch will be, in its form: `ml.compile(…, shapes=batches.shapes)`.

        Raises:
            OptionError: data that are ready batches say it only when they are read.
        """
        if self._size is None or isinstance(self._source, Stream | BatchTable):
            raise OptionError(
                "shapes of batches are known before they are read for arrays and data sets with "
                "size=; take those of a batch"
            )
        return self._placing.describe(self._source.take(np.arange(self._size)))

    def state(self) -> dict[str, int | str | None]:
        """Return where the next batch begins, as plain data to save.

        Inside a loop that is behind the batch that the loop has, however far was read ahead; with
        the last one nothing is left of that loop, wherever it is gone on with.
        """
        epoch, taken = self._position
        if self._has_last and not isinstance(self._source, Stream):
            epoch, taken = epoch - 1, self._source.count
        return {
            "epoch": epoch,
            "position": taken,
            "seed": self._seed,
            "data": self._describe(),
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Go to where a state was taken; the next loop gives what came after it.

        Args:
            state: what `state()` returned, on any mesh and backend.

        Raises:
            OptionError: it is no such state, or one of other data or another order.
        """
        position = _read_state(state)
        if state["data"] != self._describe():
            raise OptionError(
                f"state is of other data: {state['data']}; these are {self._describe()}; give the "
                f"same data"
            )
        if state["seed"] != self._seed:
            raise OptionError(
                f"state was taken with shuffle={state['seed']}, these batches have "
                f"shuffle={self._seed}; give the same"
            )
        self._position, self._loop, self._has_last = position, None, False
        self._is_restored = True

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop = object()
        end, agreement = self._find_end(), self._make_agreement()
        read = read_ahead(self._read(self._position, end), self._prefetch)
        for batch, after in read if agreement is None else agreement.check_each(read):
            if self._loop is not loop:
                raise OptionError(
                    "batches were restored, or another loop over them was begun, while this one "
                    "ran; leave a loop first, or make batches for each"
                )
            self._position, self._has_last = after, after == (end, 0)
            self._is_restored = False
            yield self._placing.place(batch)
        if end is not None and self._loop is loop:
            epoch, taken = self._position  # iterables show only now that this one has ended
            self._position = Position(epoch + 1, 0) if taken else self._position
            self._has_last = self._is_restored = False

    def __repr__(self) -> str:
        size = "ready batches" if self._size is None else f"batches of {self._size}"
        return f"<{size}; {self._describe()}; epoch {self.epoch}, {self._position.taken} taken>"

    def _describe(self) -> str:
        """Return what tells data apart, without reading them."""
        if isinstance(self._source, Stream):
            return "an iterable"
        if isinstance(self._source, BatchTable):
            return f"{self._source.count} ready batches"
        fields = ", ".join(map(str, self._source.form.fields))
        return f"{self._source.count} samples of {fields}"

    def _check_size(self, table: Table) -> None:
        assert self._size is not None, "a table has a size"
        if not self.steps_per_epoch:
            raise OptionError(
                f"data set has {table.count} samples, too few for a batch of {self._size} with "
                f"drop_last=True; give a smaller size"
            )
        # What does not fit is told before anything runs: the batches, and the last one of an epoch.
        rest = table.count % self._size
        sizes = [min(self._size, table.count)]
        for count in [*sizes, *([] if self._drop_last or not rest else [rest])]:
            self._placing.describe(table.take(np.arange(count)))

    def _make_agreement(self) -> Agreement | None:
        """Return what sees that processes give batches alike, None where one gives all of them."""
        backend = self._placing.backend
        if not self._placing.per_process or backend.engine.process_count == 1:
            return None
        return Agreement(backend, self._source.count)

    def _find_end(self) -> int | None:
        """Return the epoch before which the next loop ends."""
        if self._epochs is None:
            return None
        return (self._position.epoch // self._epochs + 1) * self._epochs

    def _count_steps(self, taken: int) -> int:
        """Return how many batches an epoch has after some samples."""
        count, size = self._source.count, self._size or 1
        assert count is not None, "whoever asks knows how many there are"
        left = count - taken
        return max(0, left // size if self._drop_last else -(-left // size))

    def _read(self, start: Position, end: int | None) -> Iterator[tuple[HostBatch, Position]]:
        """Yield batches on the host: what a thread goes through."""
        is_stream = isinstance(self._source, Stream)
        for rows, after in (self._walk_stream if is_stream else self._walk_table)(start, end):
            yield self._placing.read(rows), after

    def _walk_table(self, start: Position, end: int | None) -> Walk:
        assert not isinstance(self._source, Stream)
        epoch, taken = start
        while end is None or epoch < end:
            order, size = self._find_order(epoch), self._size or 1
            for left in range(self._count_steps(taken), 0, -1):
                rows = order[taken : taken + size]
                taken += len(rows)
                after = Position(epoch, taken) if left > 1 else Position(epoch + 1, 0)
                yield self._source.take(rows), after
            epoch, taken = epoch + 1, 0

    def _find_order(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            assert not isinstance(self._source, Stream)
            self._order = epoch, permute(self._source.count, self._seed, epoch)
        return self._order[1]

    def _walk_stream(self, start: Position, end: int | None) -> Walk:
        assert isinstance(self._source, Stream)
        epoch, taken = start
        while end is None or epoch < end:
            items = self._source.open(taken)
            before = taken
            for rows, count in self._gather(items):
                taken += count
                yield rows, Position(epoch, taken)
            if taken == before and epoch + 1 == end and not self._is_restored:
                end += self._epochs or 0  # the loop before was left when it had the last batch
            if taken == before == 0:
                raise ShapeError(
                    f"data set is empty: {kind_of(self._source.data)} gave no batch in epoch "
                    f"{epoch}; give at least one"
                )
            epoch, taken = epoch + 1, 0

    def _gather(self, items: Iterator[Any]) -> Iterator[tuple[Rows, int]]:
        """Yield batches of an iterable, each with the number of items in it."""
        if self._size is None:
            for item in items:
                yield ReadyRows(read_item(item)), 1
            return
        form: Item | None = None
        while given := list(islice(items, self._size)):
            if len(given) < self._size and self._drop_last:
                return
            form = form or read_item(given[0])
            samples = [read_item(sample, form.structure) for sample in given]
            for sample in samples:
                check_alike(sample, "a sample", form, self._placing.dtypes)
            yield StackedRows(samples, form), len(samples)


def _read_state(state: Mapping[str, object]) -> Position:
    """Return the position that a state holds.

    Raises:
        OptionError: it is no state.
    """
    if not isinstance(state, Mapping) or set(state) != set(STATE):
        raise OptionError(
            f"state is {kind_of(state)} and not what batches.state() returned, a dict of "
            f"{', '.join(STATE)}; give that"
        )
    numbers = [to_python(state[key]) for key in STATE[:2]]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise OptionError(
            f"state has epoch {state['epoch']!r} and position {state['position']!r}; both count "
            f"from 0"
        )
    return Position(*numbers)


@checked_keywords()
def batches(
    data: Any,
    size: int | None = None,
    *,
    backend: Backend | None = None,
    sharding: Specs = None,
    shuffle: int | None = None,
    epochs: int | None = 1,
    drop_last: bool = False,
    prefetch: int = 2,
    dtypes: Mapping[str, object] | None = None,
    per_process: bool = False,
) -> Batches:
    """Return batches of data as arrays on the devices of a backend.

    Args:
        data: a dict or tuple of arrays of equal first dimension (NumPy's, memory maps, those of a
            framework, files of h5py or zarr); a data set with `len(data)` and `data[i]`, whose
            samples are arrays, numbers, or dicts and tuples of them (PyTorch, Hugging Face); an
            iterable (PyTorch's DataLoader, Grain, a generator) or a function that returns one.
        size: how many samples make a batch; None where `data` gives ready batches.
        backend: where the batches go; by default the one that is open.
        sharding: how they lie: a PartitionSpec for all fields, or a tree of them in the form of a
            batch. Without one a plan takes the arrays to where it wants them, and every process
            reads all rows.
        shuffle: a seed: each epoch has an order of its own, the same in every process.
        epochs: how many a loop goes through; None for no end.
        drop_last: whether rows at the end of an epoch that do not fill a batch are left out.
        prefetch: how many batches a thread may read ahead; 0 for none.
        dtypes: element types by field; by default float64 becomes the float dtype of the backend,
            int64 becomes int32, and others stay.
        per_process: whether, in a job of several processes, each gives ready batches with the rows
            of its own devices only, as PyTorch's DistributedSampler and Grain's sharding make them.

    Raises:
        ShapeError: data are empty, or do not fit together.
        OptionError: an option has a value that is none of its own.
        ShardingError: a batch would be cut into uneven parts, and the backend has
            `uneven="error"`.

    >>> import numpy as np, mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(data=2))
    >>> data = {"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}
    >>> for batch in batches(data, 4, backend=backend, sharding=ml.P("data")):
    ...     print(batch["y"].numpy(), batch["x"].sharding)
    [0 1 2 3] Sharding(P('data', None))
    [4 5] Sharding(P('data', None))
    """
    seed = read_shuffle(shuffle)
    if size is not None:
        size = read_count(size, "size", 1, "samples")
    if epochs is not None:
        epochs = read_count(epochs, "epochs", 1, "epochs")
    ahead = read_count(prefetch, "prefetch", 0, "batches to read ahead")
    for option, value in (("drop_last", drop_last), ("per_process", per_process)):
        if not isinstance(value, bool):
            raise OptionError(f"{option}={value!r} is neither True nor False; give one of them")
    _check_ready(size, drop_last, per_process, sharding)
    placing = Placing(find_backend(backend), sharding, read_dtypes(dtypes), per_process)
    source = open_source(data, size is not None, placing.dtypes)
    if isinstance(source, Stream) and seed is not None:
        raise OptionError(
            f"shuffle={seed} needs data with positions, and {kind_of(data)} gives its items in its "
            f"own order; shuffle there"
        )
    return Batches(source, size, placing, seed, epochs, drop_last, ahead)


def _check_ready(size: int | None, drop_last: bool, per_process: bool, sharding: Specs) -> None:
    """Raise where an option does not go with ready batches, or needs them.

    Raises:
        OptionError: it is so.
    """
    if size is None and drop_last:
        raise OptionError(
            "drop_last=True leaves out what does not fill a batch, and size=None takes ready "
            "batches as they are; let the loader that makes them drop it"
        )
    if per_process and (size is not None or sharding is None):
        raise OptionError(
            "per_process=True takes ready batches of the rows that sharding= gives to this "
            "process; leave size= out and give sharding="
        )


__all__ = ["Batches", "batches"]
