"""LRUCache: a mapping that forgets what has not been used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import RLock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class LRUCache(Generic[Key, Item]):
    """Keeps the items used last; threads may ask at once.

    Keys are hashed and compared by functions of Python, in the midst of which threads take turns:
    an OrderedDict alone would be left with half an entry.

    Args:
        capacity: how many.

    >>> recent = LRUCache(2)
    >>> for number in (1, 2, 3):
    ...     recent.put(number, str(number))
    >>> recent.get(1), recent.get(3)
    (None, '3')
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: OrderedDict[Key, Item] = OrderedDict()
        self._lock = RLock()

    def get(self, key: Key) -> Item | None:
        """Return an item, None when it is not there (any more)."""
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._items.move_to_end(key)
            return item

    def put(self, key: Key, item: Item) -> None:
        """Keep an item; the one not used for longest goes when there are too many."""
        with self._lock:
            self._items[key] = item
            self._items.move_to_end(key)
            if len(self._items) > self._capacity:
                self._items.popitem(last=False)

    def __len__(self) -> int:
        return len(self._items)
