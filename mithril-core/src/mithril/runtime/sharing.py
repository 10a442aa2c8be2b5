"""What is not copied and not pickled: handles of devices and programs, which stand for themselves.

Arrays and parameters are not pickled either, as what pickle reads may run any code; `ml.save`
writes them, whatever the mesh they lie on.
"""

from __future__ import annotations

from typing import Never, Self

from mithril.errors import CheckpointError


def refuse_pickle(what: str) -> Never:
    """Raise, for an array or a mapping of arrays.

    Raises:
        CheckpointError: always.
    """
    raise CheckpointError(
        f"cannot pickle {what}; its values lie on devices; save it by ml.save(path, tree) and read "
        f"it by ml.load(path, like=tree)"
    )


class Shared:
    """Base of what stands for opened devices or planned programs: a copy of it is the same one."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> Never:
        raise CheckpointError(
            f"cannot pickle {self!r}; it stands for opened devices; open or compile it again where "
            f"it is needed, and pass arrays on by ml.save and ml.load"
        )
