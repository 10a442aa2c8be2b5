"""In which order samples come: positions in it, and the permutation of each epoch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mithril.errors import OptionError
from mithril.runtime.sampling import Key
from mithril.types import to_python


class Position(NamedTuple):
    """Where the next batch begins.

    Args:
        epoch: from 0.
        taken: how many samples of it have been given; of ready batches, how many batches.
    """

    epoch: int
    taken: int


def permute(count: int, seed: int | None, epoch: int) -> np.ndarray:
    """Return the positions of all samples in the order of an epoch.

    They are sorted by random words that depend on the seed and the epoch alone (NumPy's Philox,
    whose words no version of NumPy changes), so every process has the same order.

    Args:
        count: how many samples there are.
        seed: None for the order they have.
        epoch: from 0.

    >>> permute(5, None, 0).tolist(), sorted(permute(5, 1, 0).tolist())
    ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    """
    if seed is None:
        return np.arange(count)
    words = Key(seed, f"epoch {epoch}").words((count,), (slice(0, count),))
    return np.argsort(words, kind="stable")


def read_shuffle(given: object) -> int | None:
    """Return the seed that `shuffle=` gives.

    Raises:
        OptionError: it is none.
    """
    seed = to_python(given)
    if seed is None:
        return None
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise OptionError(
            f"shuffle={given!r} is no seed; give an integer in [0, 2**32), or None for the order "
            f"of the data"
        )
    return seed


def read_count(given: object, option: str, least: int, what: str) -> int:
    """Return a number that an option gives.

    Args:
        given: the number.
        option: the option's name.
        least: the smallest it may be.
        what: what it counts, for messages.

    Raises:
        OptionError: it is no such number.
    """
    number = to_python(given)
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise OptionError(f"{option}={given!r} is no number of {what}; give {least} or more")
    return number
