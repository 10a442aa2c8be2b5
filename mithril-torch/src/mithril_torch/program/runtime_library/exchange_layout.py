"""What processes exchange as rows, one for each of them, that lie behind one another in memory.

Several operands of a collective travel in one buffer, one after another in each row, but between
processes of one host, which read each operand where it lies. A group that counts its members
otherwise than PyTorch has rows in PyTorch's order.
"""

from __future__ import annotations

from typing import Any

import torch

from mithril_torch.program.runtime_library.groups import Group

NATIVE_DTYPES = (
    torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8,
)  # fmt: skip
"""What processes exchange as it is; other types travel as bytes."""


def flatten_operands(operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the elements of all operands in a row; those of one contiguous tensor as they lie."""
    if len(operands) == 1:
        return flatten_row(operands[0].contiguous())
    return torch.cat([x.reshape(-1) for x in operands])


def split_operands(
    group: Group, operands: tuple[torch.Tensor, ...], dimension: int
) -> torch.Tensor:
    """Return a row for each process with its parts of the operands, one after another."""
    if len(operands) == 1:
        return split_parts(group, operands[0], dimension).flatten(1)
    if is_cut_in_rows(group, dimension, operands):
        return torch.cat([x.view(group.size, -1) for x in operands], 1)
    sizes = [x.numel() // group.size for x in operands]
    rows = operands[0].new_empty((group.size, sum(sizes)))
    for x, row in zip(operands, rows.split(sizes, 1), strict=True):
        parts = view_parts(group, x, dimension)
        row.unflatten(1, parts.shape[1:]).copy_(parts)
    return rows


def is_cut_in_rows(group: Group, dimension: int, operands: tuple[torch.Tensor, ...] = ()) -> bool:
    """Whether the parts of tensors lie behind one another in memory, in PyTorch's order.

    Then one call brings those of several operands into rows, or out of them, which costs less than
    a copy of each.
    """
    in_order = dimension == 0 and group.places is None
    return in_order and all(x.is_contiguous() for x in operands)


def split_parts(group: Group, x: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return x cut into a part for each process, which lie behind one another in memory."""
    return view_parts(group, x, dimension).contiguous()


def view_parts(group: Group, x: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return x cut into a part for each process, as they lie."""
    parts: torch.Tensor = x.unflatten(dimension, (group.size, x.shape[dimension] // group.size))
    parts = parts.movedim(dimension, 0)
    if group.places is not None:
        parts = parts[sorted(range(group.size), key=group.places.__getitem__)]
    return parts


def part_shape(group: Group, x: torch.Tensor, dimension: int) -> torch.Size:
    """Return the shape of a process's part of x along a dimension."""
    shape = list(x.shape)
    shape[dimension] //= group.size
    return torch.Size(shape)


def join_operands(
    group: Group, parts: torch.Tensor, shapes: list[torch.Size], dimension: int
) -> Any:
    """Return operands of some shapes, of which each row has one part, joined along a dimension."""
    sizes = [shape.numel() for shape in shapes]
    if len(shapes) > 1 and is_cut_in_rows(group, dimension):
        copies = [parts.new_empty((group.size, size)) for size in sizes]
        torch.split_with_sizes_copy(parts, sizes, 1, out=copies)
        return tuple(
            copy.view(group.size * shape[0], *shape[1:])
            for copy, shape in zip(copies, shapes, strict=True)
        )
    cuts = parts.split(sizes, 1)
    made = tuple(
        join_parts(group, cut.unflatten(1, shape), dimension).contiguous()
        for cut, shape in zip(cuts, shapes, strict=True)
    )
    return made if len(made) > 1 else made[0]


def join_parts(group: Group, parts: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return parts that lie behind one another in memory joined along a dimension."""
    if group.places is not None:
        parts = parts[group.places]
    shape = list(parts.shape[1:])
    shape[dimension] *= group.size
    return parts.movedim(0, dimension).reshape(shape)


def split_row(row: torch.Tensor, shapes: list[torch.Size]) -> Any:
    """Return the tensors of some shapes that lie in a row one after another."""
    parts = row.split([shape.numel() for shape in shapes])
    made = tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))
    return made if len(made) > 1 else made[0]


def flatten_elements(x: torch.Tensor) -> torch.Tensor:
    """Return the elements in a row, as bytes where processes cannot exchange their type."""
    row = flatten_row(x)
    return row if row.dtype in NATIVE_DTYPES else row.view(torch.uint8)


def flatten_row(x: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor in a row.

    To PyTorch a tensor of one element is contiguous whatever its stride, which a view keeps; as
    numbers of another size it can be seen with stride 1 only.
    """
    return torch.as_strided(x, (x.numel(),), (1,))
