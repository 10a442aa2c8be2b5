"""Sub-axes: a mesh seen with some of its axes cut into factors.

`tensor=4` may be seen as `tensor.0=2, tensor.1=2`: the same devices in the same order, major part
first. A tensor of two heads is then split over `tensor.0` and replicated over `tensor.1`. Every
sharding on a mesh can be said on a finer one (`carry`), and back where nothing is lost (`coarsen`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from mithril.errors import MeshError
from mithril.mesh.axes import Axis
from mithril.mesh.cuts import find_cuts, refine
from mithril.mesh.mesh import Mesh
from mithril.mesh.sharding import Sharding
from mithril.types import Shape


@lru_cache(maxsize=256)
def coarse(mesh: Mesh) -> Mesh:
    """Return the mesh with sub-axes joined again."""
    sizes: dict[str, int] = {}
    for axis in mesh.axes:
        sizes[axis.origin] = sizes.get(axis.origin, 1) * axis.size
    return Mesh.of_axes((Axis(name, size) for name, size in sizes.items()), *mesh.numbering)


def common(meshes: Iterable[Mesh]) -> Mesh:
    """Return the coarsest mesh that is a refinement of all of them.

    Raises:
        MeshError: two of them cut an axis into parts that do not fit into one another.
    """
    distinct = list(dict.fromkeys(meshes))
    if len(distinct) == 1:
        return distinct[0]
    base = coarse(distinct[0])
    cuts: dict[str, tuple[int, ...]] = {}
    for axis in base.axes:
        edges = {edge for mesh in distinct for edge in _edges(mesh, axis.name)}
        cuts[axis.name] = _sizes_between(sorted(edges), f"axis '{axis.name}' of {base!r}")
    return refine(base, cuts)


def may_meet(one: Mesh, other: Mesh) -> bool:
    """Return whether two refinements of a mesh have a common one: their cuts fit into one another.

    >>> mesh = Mesh(a=6)
    >>> may_meet(mesh, refine(mesh, {"a": (2, 3)}))
    True
    >>> may_meet(refine(mesh, {"a": (3, 2)}), refine(mesh, {"a": (2, 3)}))
    False
    """
    cuts = ({*_edges(one, origin), *_edges(other, origin)} for origin in coarse(one).names)
    return all(b % a == 0 for edges in cuts for a, b in itertools.pairwise(sorted(edges)))


def list_finer_axes(mesh: Mesh, finer: Mesh) -> dict[str, tuple[str, ...]]:
    """Return for each axis of a mesh the axes of a finer one that it consists of, major first.

    >>> list_finer_axes(Mesh(data=2, tensor=4), refine(Mesh(data=2, tensor=4), {"tensor": (2, 2)}))
    {'data': ('data',), 'tensor': ('tensor.0', 'tensor.1')}
    """
    if mesh == finer:
        return {name: (name,) for name in mesh.names}
    return {name: _parts(mesh, name, finer) for name in mesh.names}


def carry(sharding: Sharding, mesh: Mesh) -> Sharding:
    """Return a sharding said on a finer mesh."""
    if sharding.mesh == mesh:
        return sharding
    finer = list_finer_axes(sharding.mesh, mesh)
    dims = tuple(tuple(p for name in axes for p in finer[name]) for axes in sharding.dims)
    partial = tuple((p, kind) for name, kind in sharding.partial for p in finer[name])
    return Sharding(mesh, dims, partial)


def onto(sharding: Sharding, mesh: Mesh) -> Sharding:
    """Return a sharding as it is said on other devices: those of a part of its mesh, or the whole.

    Args:
        sharding: on a mesh, or a refinement of it.
        mesh: one with the same axes, of which some may have one device only.

    >>> mesh = Mesh(data=2, pipeline=2)
    >>> onto(Sharding(mesh, (("data",),)), mesh.part({"pipeline": 1}))
    Sharding(P('data'))
    """
    sizes = {axis.name: axis.size for axis in mesh.axes}
    cuts: dict[str, list[int]] = {}
    for axis in sharding.mesh.axes:
        if axis.parent and sizes.get(axis.origin, 1) > 1:
            cuts.setdefault(axis.origin, []).append(axis.size)
    finer = refine(mesh, cuts)
    kept = {axis.name for axis in finer.axes if axis.size > 1}
    dims = tuple(tuple(axis for axis in axes if axis in kept) for axes in sharding.dims)
    return Sharding(finer, dims, tuple(pair for pair in sharding.partial if pair[0] in kept))


def follow(mesh: Mesh, before: Mesh, after: Mesh) -> Mesh:
    """Return a mesh as it is after the axes of the whole were put in another order.

    Args:
        mesh: the whole as it was, a part of it, or a refinement of either.
        before: the whole as it was.
        after: the whole in another order.

    >>> before, after = Mesh(a=2, b=2), Mesh(a=2, b=2, order=("b", "a"))
    >>> follow(before.part({"a": 1}), before, after)
    Mesh(a=1, b=2, order=('b', 'a'), devices=(1, 3))
    """
    base = after
    if mesh.devices:
        sizes, where = coarse(mesh).sizes, before.coordinates(mesh.devices[0])
        base = after.part({n: where[n] for n, size in before.sizes.items() if sizes[n] < size})
    return refine(base, find_cuts(mesh))


def follow_sharding(sharding: Sharding, before: Mesh, after: Mesh) -> Sharding:
    """Return how a tensor lies if every device has what that at its coordinates had; see `follow`.

    Args:
        sharding: on the whole as it was, a part of it, or a refinement of either.
        before: the whole as it was.
        after: the whole in another order.
    """
    return Sharding(follow(sharding.mesh, before, after), sharding.dims, sharding.partial)


def coarsen(sharding: Sharding, shape: Shape) -> Sharding:
    """Return a sharding said on the coarsest mesh that says the same for a tensor of this shape."""
    base = coarse(sharding.mesh)
    if sharding.mesh == base:
        return sharding
    cuts: dict[str, list[int]] = {}
    for axis in base.axes:
        run: list[int] = []
        parts = [part for part in sharding.mesh.axes if part.origin == axis.name]
        for before, part in zip([None, *parts], parts, strict=False):
            if before is not None and _same_role(sharding, before.name, part.name, shape):
                run[-1] *= part.size
            else:
                run.append(part.size)
        cuts[axis.name] = run
    mesh = refine(base, cuts)
    taken = {
        _parts(mesh, axis.name, sharding.mesh): axis.name for axis in mesh.axes if axis.size > 1
    }
    dims = tuple(_join(axes, taken) for axes in sharding.dims)
    kinds = dict(sharding.partial)
    partial = tuple((name, kinds[p[0]]) for p, name in taken.items() if p[0] in kinds)
    return Sharding(mesh, dims, partial)


def has_same_layout(one: Sharding, other: Sharding, shape: Shape) -> bool:
    """Return whether every device holds the same part of a tensor under both shardings."""
    if one.is_even(shape) and other.is_even(shape):
        return True  # where sizes divide, saying it on a finer mesh changes nothing
    devices = range(one.mesh.size)
    return all(one.box(device, shape) == other.box(device, shape) for device in devices)


def part(
    mesh: Mesh, shape: Sequence[int], of: str = "", place: str = ""
) -> tuple[Mesh, tuple[tuple[str, ...], ...]]:
    """Return a refinement of the mesh, and for each entry of `device_mesh` the axes it stands for.

    An entry of 1 means none, the size of its axis the axis, a divisor of it the major sub-axis of
    that size; a shorter shape means the leading axes. Another factorisation of all devices is read
    as such, over sub-axes.

    Args:
        mesh: the backend's mesh.
        shape: the entries.
        of: for the message, what is laid on that part.
        place: for the message, the user's line.

    Raises:
        MeshError: the shape is no part of this mesh.

    >>> part(Mesh(data=4, tensor=2), (1, 2))
    (Mesh(data=4, tensor=2), ((), ('tensor',)))
    >>> part(Mesh(data=4), (2, 2))
    (Mesh(data.0=2, data.1=2), (('data.0',), ('data.1',)))
    """
    pairs = list(itertools.zip_longest(shape, mesh.axes[: len(shape)]))
    if all(size == 1 or (axis is not None and axis.size % size == 0) for size, axis in pairs):
        used = [(axis, size) for size, axis in pairs if axis is not None]
        finer = refine(mesh, {axis.name: (size, axis.size // size) for axis, size in used})
        leading = {axis.name: _parts(mesh, axis.name, finer) for axis in mesh.axes}
        return finer, tuple(
            () if size == 1 or axis is None else _leading(leading[axis.name], size, finer)
            for size, axis in pairs
        )
    if math.prod(shape) == mesh.size:
        return _factorisation(mesh, shape, of, place)
    raise _misfit(mesh, shape, of, place)


def _factorisation(
    mesh: Mesh, shape: Sequence[int], of: str, place: str
) -> tuple[Mesh, tuple[tuple[str, ...], ...]]:
    wanted = set(itertools.accumulate(reversed(shape), initial=1, func=int.__mul__))
    cuts, below = {}, mesh.size
    for axis in mesh.axes:
        below //= axis.size
        inside = [edge for edge in wanted if below < edge < below * axis.size]
        for edge in inside:
            if edge % below or below * axis.size % edge:
                other = below if edge % below else below * axis.size
                raise _clash(mesh, shape, (edge, other), of, place)
        edges = sorted({1, axis.size, *(edge // below for edge in inside)})
        cuts[axis.name] = [b // a for a, b in itertools.pairwise(edges)][::-1]
    finer = refine(mesh, cuts)
    entries, names = [], list(finer.names)
    for size in shape:
        axes: list[str] = []
        while finer.product(axes) < size:
            axes.append(names.pop(0))
        entries.append(tuple(name for name in axes if finer.sizes[name] > 1))
    return finer, tuple(entries)


def _misfit(mesh: Mesh, shape: Sequence[int], of: str, place: str) -> MeshError:
    return MeshError(
        f"device_mesh={tuple(shape)}{of} does not fit the mesh {mesh.shape} of {mesh!r}; each "
        f"entry must be 1, the size of its axis or a divisor of it, or all of them another "
        f"factorisation of the {mesh.size} devices{place}"
    )


def _clash(
    mesh: Mesh, shape: Sequence[int], blocks: tuple[int, int], of: str, place: str
) -> MeshError:
    own, other = blocks
    return MeshError(
        f"device_mesh={tuple(shape)}{of} puts the {mesh.size} devices into blocks of {own}, and "
        f"{mesh!r} into blocks of {other}; neither divides the other, so that they have no common "
        f"refinement; give another factorisation, such as {mesh.shape}{place}"
    )


def _edges(mesh: Mesh, origin: str) -> list[int]:
    """Return the sizes at which an axis is cut, counted from its minor end, 1 and its size too."""
    sizes = [axis.size for axis in reversed(mesh.axes) if axis.origin == origin]
    return list(itertools.accumulate(sizes, initial=1, func=int.__mul__))


def _sizes_between(edges: Sequence[int], what: str) -> tuple[int, ...]:
    if any(b % a for a, b in itertools.pairwise(edges)):
        raise MeshError(
            f"{what} is cut at {', '.join(map(str, edges[1:-1]))}, which do not divide one "
            f"another; lay the tensors that meet on device meshes whose parts fit"
        )
    return tuple(b // a for a, b in itertools.pairwise(edges))[::-1]


def _parts(mesh: Mesh, name: str, finer: Mesh) -> tuple[str, ...]:
    """Return the axes of a finer mesh that an axis consists of, major first."""
    (own,) = (axis for axis in mesh.axes if axis.name == name)
    siblings = [axis for axis in mesh.axes if axis.origin == own.origin]
    skip = math.prod(axis.size for axis in siblings[: siblings.index(own)])
    found: list[str] = []
    done = 1
    for axis in (axis for axis in finer.axes if axis.origin == own.origin):
        if done >= skip and done < skip * own.size:
            found.append(axis.name)
        done *= axis.size
    return tuple(found)


def _leading(parts: Sequence[str], size: int, mesh: Mesh) -> tuple[str, ...]:
    taken: list[str] = []
    while mesh.product(taken) < size:
        taken.append(parts[len(taken)])
    return tuple(taken)


def _same_role(sharding: Sharding, major: str, minor: str, shape: Shape) -> bool:
    """Return whether two neighbouring sub-axes may be joined: nothing tells them apart."""
    for axes, size in zip(sharding.dims, shape, strict=True):
        if major in axes or minor in axes:
            if (major, minor) not in itertools.pairwise(axes):
                return False
            before = axes[: axes.index(major)]
            held = -(-size // sharding.mesh.product(before))
            sizes = sharding.mesh.sizes
            return _cut_alike(held, sizes[major], sizes[minor])
    return sharding.reduction_of(major) == sharding.reduction_of(minor)


def _cut_alike(size: int, major: int, minor: int) -> bool:
    """Return whether cutting twice gives the parts that cutting once gives."""
    if size % (major * minor) == 0:
        return True
    block, part = -(-size // major), -(-size // (major * minor))
    for i, j in itertools.product(range(major), range(minor)):
        end = min((i + 1) * block, size)
        twice = (min(i * block + j * part, end), min(i * block + (j + 1) * part, end))
        start = (i * minor + j) * part
        once = (min(start, size), min(start + part, size))
        if twice != once and (twice[0] < twice[1] or once[0] < once[1]):
            return False
    return True


def _join(axes: tuple[str, ...], taken: Mapping[tuple[str, ...], str]) -> tuple[str, ...]:
    firsts = {parts[0]: name for parts, name in taken.items()}
    return tuple(firsts[axis] for axis in axes if axis in firsts)
