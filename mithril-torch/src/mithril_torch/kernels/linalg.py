"""Products of matrices, written as one call on two or three dimensions.

The libraries below PyTorch accumulate products of 16-bit floats in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mithril.spi import Shape, Types
from mithril.spi.ops import Einsum

from mithril_torch.kernels.expression import Direct
from mithril_torch.kernels.table import kernel
from mithril_torch.program.fusing import AddInto, EinsumAdd, EinsumInto, OneDnnProduct


@kernel(Einsum)
def einsum(op: Einsum, types: Types) -> str:
    """The product of two operands."""
    left, right, result = op.terms
    if left and set(left) == set(right) and not result and types[0].dtype.itemsize >= 4:
        # MKL adds up the product of a row and a column one by one, and slowly.
        sizes = dict(zip(left, types[0].shape, strict=True))
        first, second = (arrange(f"{{{i}}}", t, [left], sizes) for i, t in enumerate((left, right)))
        return f"torch.dot({first}, {second})"
    return _product(op, types).format_call("mm", "")


@kernel(EinsumAdd)
def einsum_add(op: EinsumAdd, types: Types) -> str:
    """The product of two operands, plus a third one."""
    return _product(Einsum(op.equation), types).format_call("addmm", "{2}, ")


@kernel(EinsumInto)
def einsum_into(op: EinsumInto, types: Types) -> str:
    """The product of two operands, added to a third one where that lies."""
    return _product(Einsum(op.equation), types).format_add("{2}")


@kernel(OneDnnProduct)
def onednn_product(op: OneDnnProduct, types: Types) -> str:
    """One of these by oneDNN."""
    product = _product(Einsum(op.product.equation), types)
    if isinstance(op.product, EinsumInto):
        return f"{{2}}.add_({product.format_multiply('')})"
    if isinstance(op.product, EinsumAdd) and types[2].rank > 1:  # oneDNN adds vectors alone
        return f"torch.add({{2}}, {product.format_multiply('')})"
    return product.format_multiply(", {2}" if isinstance(op.product, EinsumAdd) else "")


@kernel(AddInto)
def add_into(op: AddInto, types: Types) -> str:
    """An operand with another one added where it lies."""
    return "{0}.add_({1})"


@dataclass(frozen=True)
class _Product:
    """An einsum as a product of [batch, rows, contracted] and [batch, contracted, columns].

    Args:
        left: the text of one factor.
        right: the text of the other.
        turned: the text of the other as [batch, columns, contracted].
        read: how many numbers the factors have.
        made: the shape of the product.
        shape: the same with a dimension for each letter.
        order: of these dimensions in the result.
        is_batched: whether there are letters in both operands and the result.
    """

    left: str
    right: str
    turned: str
    read: tuple[int, int]
    made: Shape
    shape: Shape
    order: tuple[int, ...]
    is_batched: bool

    def format_call(self, function: str, first: str) -> str:
        """Return the expression; where it makes the result as it lies, it can write it anywhere."""
        function = f"torch.{'b' if self.is_batched else ''}{function}"
        call = f"{function}({first}{self.left}, {self.right}"
        is_flat = self.made == self.shape
        whole = f"{call})" if is_flat else f"{call}).view({list(self.shape)})"
        if self.order != tuple(sorted(self.order)):
            return f"{whole}.permute({list(self.order)})"
        target = "{out}" if is_flat else f"{{out}}.view({list(self.made)})"
        return Direct(whole, f"{call}, out={target})")

    def format_multiply(self, added: str) -> str:
        """Return the expression for two matrices with a row for each row and column of the product.

        The first is copied where it does not lie in order. Where both do not, and the second is
        so much smaller that its copy and that of the product are, the transpose is computed.
        """
        copied = [x.endswith(".t()") for x in (self.left, self.turned)]
        costs = [copied[0] * self.read[0], copied[1] * self.read[1] + math.prod(self.made)]
        in_order = self.order == tuple(sorted(self.order))
        if costs[0] <= costs[1] or added:
            call, lies = f"multiply({self.left}, {self.turned}{added})", ""
        else:
            call, lies = f"multiply({self.turned}, {self.left}).t()", ".contiguous()"
        if self.made != self.shape:
            lies = f".reshape({list(self.shape)})"
        if not in_order:
            return f"{call}{lies}.permute({list(self.order)})"
        target = "{out}" if self.made == self.shape else f"{{out}}.view({list(self.made)})"
        return Direct(f"{call}{lies}", f"{target}.copy_({call})")

    def format_add(self, target: str) -> str:
        """Return the expression that adds the product to an operand, in its memory."""
        if self.order != tuple(sorted(self.order)) or self.made != self.shape:
            return f"{target}.add_({self.format_call('mm', '')})"
        return f"{target}.{'baddbmm' if self.is_batched else 'addmm'}_({self.left}, {self.right})"


def _product(op: Einsum, types: Types) -> _Product:
    left, right, result = op.terms
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))
    batch = "".join(c for c in result if c in left and c in right)
    rows = "".join(c for c in left if c not in right)
    contracted = "".join(c for c in left if c in right and c not in result)
    columns = "".join(c for c in right if c not in left)
    outer = [batch] if batch else []
    made = batch + rows + columns
    return _Product(
        arrange("{0}", left, [*outer, rows, contracted], sizes),
        arrange("{1}", right, [*outer, contracted, columns], sizes),
        arrange("{1}", right, [*outer, columns, contracted], sizes),
        (_size(left, sizes), _size(right, sizes)),
        tuple(_size(group, sizes) for group in (*outer, rows, columns)),
        tuple(sizes[c] for c in made),
        tuple(made.index(c) for c in result),
        bool(batch),
    )


def arrange(text: str, term: str, groups: Sequence[str], sizes: dict[str, int]) -> str:
    """Return an operand with one dimension for each group of letters, copied only if it must be.

    >>> arrange("x", "abc", ["c", "ab"], {"a": 2, "b": 3, "c": 4})
    'x.reshape([6, 4]).t()'
    >>> arrange("x", "abc", ["b", "ac"], {"a": 2, "b": 3, "c": 4})
    'x.permute([1, 0, 2]).reshape([3, 8])'
    """
    shape = [_size(group, sizes) for group in groups]
    letters = [c for group in groups for c in group]
    if all(group in term for group in groups):  # letters of a group are neighbours: joined first
        lying = sorted(groups, key=lambda group: term.index(group) if group else len(term))
        joined = [_size(group, sizes) for group in lying]
        if joined != [sizes[c] for c in term]:
            text += f".reshape({joined})"
        return text + _format_transpose([lying.index(group) for group in groups])
    text += _format_transpose([term.index(c) for c in letters])
    return text if [sizes[c] for c in letters] == shape else f"{text}.reshape({shape})"


def _format_transpose(order: list[int]) -> str:
    if order == sorted(order):
        return ""
    return ".t()" if len(order) == 2 else f".permute({order})"


def _size(letters: str, sizes: dict[str, int]) -> int:
    return math.prod(sizes[c] for c in letters)
