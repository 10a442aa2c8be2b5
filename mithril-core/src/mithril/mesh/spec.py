"""PartitionSpec: which mesh axes split which tensor dimension, in the notation of JAX."""

from __future__ import annotations

from mithril.errors import ShardingError

Entry = str | tuple[str, ...] | None


class PartitionSpec:
    """One entry per tensor dimension: a mesh axis, several axes (major first), or None.

    Dimensions beyond the last entry are not split.

    Raises:
        ShardingError: an entry is something else, or an axis is used for two dimensions.

    >>> P("data", None)
    P('data', None)
    >>> P(("data", "tensor")).axes(0)
    ('data', 'tensor')
    """

    __slots__ = ("cuts", "entries", "mesh")

    def __init__(self, *entries: Entry | list[str]) -> None:
        self.entries: tuple[Entry, ...] = tuple(_check_entry(entry) for entry in entries)
        # How axes are cut whose sub-axes are named, where a sharding says it.
        self.cuts: tuple[tuple[str, tuple[int, ...]], ...] = ()
        self.mesh: object = None  # of the sharding that it was read from, if there was one
        used = [axis for dimension in range(len(self)) for axis in self.axes(dimension)]
        for axis in used:
            if used.count(axis) > 1:
                raise ShardingError(
                    f"{self!r} uses mesh axis '{axis}' {used.count(axis)} times; an axis splits at "
                    f"most one dimension of a tensor"
                )

    def axes(self, dimension: int) -> tuple[str, ...]:
        """Return the mesh axes that split a dimension, major first."""
        entry = self.entries[dimension] if dimension < len(self.entries) else None
        if entry is None:
            return ()
        return (entry,) if isinstance(entry, str) else entry

    def stack(self) -> PartitionSpec:
        """Return the spec of a stack of such tensors, along a first dimension that is not split.

        >>> P("data").stack()
        P(None, 'data')
        """
        made = PartitionSpec(None, *self.entries)
        made.cuts, made.mesh = self.cuts, self.mesh
        return made

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionSpec) or self._dense() != other._dense():
            return False
        return not self.cuts or not other.cuts or self.cuts == other.cuts

    def __hash__(self) -> int:
        return hash(self._dense())

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self.entries))})"

    def _dense(self) -> tuple[tuple[str, ...], ...]:
        dense = [self.axes(dimension) for dimension in range(len(self))]
        while dense and not dense[-1]:
            dense.pop()
        return tuple(dense)


P = PartitionSpec


def _check_entry(entry: object) -> Entry:
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, tuple | list) and all(isinstance(axis, str) for axis in entry):
        return tuple(entry) or None
    raise ShardingError(
        f"partition spec entry {entry!r} is not an axis; give an axis name, a tuple, or None"
    )
