"""The axes of a mesh as users write them: read, or refused with what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mithril.errors import MeshError, listing, nearest
from mithril.types import to_python


@dataclass(frozen=True, slots=True)
class Axis:
    """One named direction of a mesh and its number of devices.

    Args:
        name: `tensor`, say; of a sub-axis `tensor.0`.
        size: number of devices.
        parent: for a sub-axis, the axis it is a part of.
    """

    name: str
    size: int
    parent: str = ""

    @property
    def origin(self) -> str:
        """The axis as the user named it."""
        return self.parent or self.name


def as_shape(shape: object, what: str) -> tuple[int, ...]:
    """Return a mesh shape as a tuple; an integer means a 1-tuple.

    Raises:
        MeshError: it is not made of positive integers.
    """
    shape = to_python(shape)
    sizes = (shape,) if isinstance(shape, int) else shape
    if isinstance(sizes, Sequence) and not isinstance(sizes, str) and all(map(_is_size, sizes)):
        return tuple(sizes)
    raise MeshError(f"{what} is {shape!r}; give positive integers, such as {what}=(4, 2)")


def explain_names(given: object) -> MeshError:
    """Return the error for a mesh whose axes were given without names."""
    is_shape = isinstance(given, tuple) and len(given) in (2, 3) and all(map(_is_size, given))
    shape = tuple(given) if is_shape else (4, 2)  # type: ignore[arg-type]
    named = zip(("data", "tensor", "pipeline"), shape, strict=False)
    return MeshError(
        f"mesh takes named axes, not {given!r}; write "
        f"Mesh({', '.join(f'{name}={size}' for name, size in named)}), or Mesh.from_shape({shape}) "
        f"for default names"
    )


def read_order(order: object, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the order of axes that a user means; empty for that of the mesh.

    Raises:
        MeshError: it does not name each axis once.
    """
    is_sequence = isinstance(order, Sequence) and not isinstance(order, str)
    found = tuple(order) if isinstance(order, Sequence) else ()
    if not is_sequence or not all(isinstance(name, str) for name in found):
        raise MeshError(
            f"mesh order is {order!r}; give all axis names, the slowest first, such as "
            f"order={names[::-1]}; an axis of that name is given as Mesh({{'order': 2}})"
        )
    for name in found:
        if name not in names:
            raise MeshError(
                f"mesh order names '{name}', which is no axis; axes: {listing(names)}"
                f"{nearest(name, names)}"
            )
        if found.count(name) > 1:
            raise MeshError(f"mesh order names axis '{name}' twice; name each axis once")
    missing = [name for name in names if name not in found]
    if missing:
        raise MeshError(
            f"mesh order {found} lacks axis '{missing[0]}'; name each axis once: {listing(names)}"
        )
    return () if found == names else found


def make_axis(name: str, size: int) -> Axis:
    """Return the axis of a name and a number of devices.

    Raises:
        MeshError: the name is no identifier, or the number is no positive integer.
    """
    size = to_python(size)
    if not isinstance(name, str) or not name:
        raise MeshError(f"mesh axis name {name!r} is not a name; give a non-empty string")
    if not name.isidentifier():  # it stands in generated programs, and in Mesh(data=2)
        raise MeshError(
            f"mesh axis name {name!r} is no identifier; use letters, digits and underscores, "
            f"such as '{_near_identifier(name)}'"
        )
    if not _is_size(size):
        raise MeshError(f"mesh axis '{name}' has size {size!r}; give a positive integer")
    return Axis(name, size)


def _near_identifier(name: str) -> str:
    """Return an identifier that looks like a name.

    >>> _near_identifier("tensor-parallel"), _near_identifier("2d")
    ('tensor_parallel', 'axis_2d')
    """
    kept = "".join(char if f"_{char}".isidentifier() else "_" for char in name)
    return kept if kept[0].isidentifier() else f"axis_{kept}"


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
