"""einsum: NumPy's equations for any number of operands, as contractions of two at a time.

An operand that names a dimension twice gives its diagonal; what only one operand names, and the
result does not, is summed over first. What is left is contracted from left to right, each time a
product of two (`Einsum`), which is its own sharding rule and has its own gradient.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from string import ascii_letters
from typing import Any

from mithril.errors import ShapeError, kind_of
from mithril.ir.operand import Operand, apply_one
from mithril.ops.choice import keep_where
from mithril.ops.index import iota
from mithril.ops.linalg import Einsum
from mithril.ops.reduce import sum
from mithril.ops.shape import reshape, transpose
from mithril.types import Shape, promote

ELLIPSIS = "..."


def einsum(equation: str, *operands: Any) -> Any:
    """Return the sum over products of operands that the equation names, as `numpy.einsum` does.

    Args:
        equation: a letter for each dimension, `"bsd,hd->bsh"`, of one size wherever it stands;
            `...` stands for all others, which alone are broadcast, where NumPy broadcasts letters,
            too. Without `->` the result has `...` and the letters that occur once, in alphabetical
            order.
        operands: one for each term. Several are floats, promoted to one dtype, and are contracted
            from left to right; one may hold anything.

    Returns:
        That dtype; the sizes that the letters behind `->` stand for.

    Raises:
        ShapeError: the equation does not fit the operands, or several do not hold floats.

    >>> x, y = backend.array([[1.0, 2.0], [3.0, 4.0]]), backend.array([1.0, 10.0])
    >>> einsum("ij,j->i", x, y).numpy(), einsum("...j,j", x, y).numpy()
    (array([21., 43.], dtype=float32), array([21., 43.], dtype=float32))
    >>> einsum("i,ij,j->", y, x, y).numpy().item(), einsum("ii", x).numpy().item()
    (451.0, 5.0)
    """
    shapes = tuple(_shape_of(equation, x) for x in operands)
    read = read_equation(equation, shapes)
    dtype = reduce(promote, (x.dtype for x in operands))
    terms, found = list(read.terms), []
    for position, x in enumerate(operands):
        x = x if x.dtype is dtype else x.astype(dtype)
        x = reshape(x, read.shapes[position]) if read.shapes[position] != shapes[position] else x
        others = "".join((*terms[:position], *terms[position + 1 :], read.result))
        x, terms[position] = _sum_alone(x, terms[position], others)
        found.append(x)
    made, term = found[0], terms[0]
    for position, x in enumerate(found[1:], 1):
        wanted = read.result + "".join(terms[position + 1 :])
        is_last = position == len(found) - 1
        kept = (c for c in dict.fromkeys(term + terms[position]) if c in wanted)
        target = read.result if is_last else "".join(kept)
        made, term = apply_one(Einsum(f"{term},{terms[position]}->{target}"), made, x), target
    if term != read.result:
        made = transpose(made, tuple(term.index(letter) for letter in read.result))
    return made if made.dtype is dtype else made.astype(dtype)


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation in letters alone.

    Args:
        terms: of each operand.
        shapes: of each operand, without dimensions of size 1 that others are broadcast against.
        result: letters of the result.
    """

    terms: tuple[str, ...]
    shapes: tuple[Shape, ...]
    result: str


@lru_cache(maxsize=1024)
def read_equation(equation: str, shapes: tuple[Shape, ...]) -> Equation:
    """Return an equation in letters alone, for operands of some shapes.

    Args:
        equation: as `einsum` takes it.
        shapes: of the operands.

    Returns:
        The equation with a letter for each dimension that `...` stands for.

    Raises:
        ShapeError: it is none, or does not fit them.
    """
    text = equation.replace(" ", "")
    head, arrow, tail = text.partition("->")
    terms = head.split(",")
    for term in (*terms, tail):
        if not re.fullmatch(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*", term):
            raise ShapeError(
                f"einsum '{equation}' has the term '{term}'; write a letter for each dimension and "
                f"... for all others, such as '...ab,bc->...ac'"
            )
    if len(terms) != len(shapes):
        raise ShapeError(
            f"einsum '{equation}' has {len(terms)} terms in front of -> and operands are "
            f"{len(shapes)}; write a term for each"
        )
    others = [_count_others(equation, *pair) for pair in zip(terms, shapes, strict=True)]
    free = [letter for letter in ascii_letters if letter not in text]
    dots = "".join(free[: max(others)])
    spelt = [
        term.replace(ELLIPSIS, dots[len(dots) - count :])
        for term, count in zip(terms, others, strict=True)
    ]
    if not arrow:
        once = sorted(letter for letter in set(head) - set(".,") if head.count(letter) == 1)
        tail = ELLIPSIS * (ELLIPSIS in head) + "".join(once)
    _check_result(equation, spelt, tail, dots)
    sizes = _find_sizes(equation, spelt, shapes, dots)
    return _leave_out_ones(Equation(tuple(spelt), shapes, tail.replace(ELLIPSIS, dots)), sizes)


def _shape_of(equation: object, x: object) -> Shape:
    if not isinstance(equation, str):
        raise ShapeError(
            f"einsum's equation is {equation!r}; give a text, such as 'ab,bc->ac', and operands"
        )
    if not isinstance(x, Operand):
        raise ShapeError(
            f"einsum '{equation}' takes tensors, not {kind_of(x)}; put an array on a backend, and "
            f"multiply by a number"
        )
    return x.shape


def _count_others(equation: str, term: str, shape: Shape) -> int:
    """Return how many dimensions an ellipsis stands for."""
    count = len(shape) - len(term.replace(ELLIPSIS, ""))
    if count < 0 or (count and ELLIPSIS not in term):
        raise ShapeError(
            f"einsum '{equation}' has the term '{term}' for an operand of shape {shape}, which has "
            f"{len(shape)} dimensions; write a letter for each, or ... for those without one"
        )
    return count


def _check_result(equation: str, terms: Sequence[str], result: str, dots: str) -> None:
    if dots and ELLIPSIS not in result:
        raise ShapeError(
            f"einsum '{equation}' has no ... behind -> for the {len(dots)} dimensions that it "
            f"stands for; write it there, or sum over them first"
        )
    letters = result.replace(ELLIPSIS, "")
    for letter in letters:
        if letters.count(letter) > 1 or not any(letter in term for term in terms):
            why = "twice" if letters.count(letter) > 1 else "which no operand has"
            raise ShapeError(
                f"einsum '{equation}' has '{letter}' behind -> {why}; name each dimension of the "
                f"result once, after one of an operand"
            )


def _find_sizes(
    equation: str, terms: Sequence[str], shapes: Sequence[Shape], dots: str
) -> dict[str, int]:
    """Return the size of each letter; those of an ellipsis may be 1 in some of the operands."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            known = sizes.setdefault(letter, size)
            if known == size:
                continue
            if letter in dots and 1 in (known, size):
                sizes[letter] = size if known == 1 else known
                continue
            what = "a dimension of ..." if letter in dots else f"'{letter}'"
            raise ShapeError(
                f"einsum '{equation}' cannot contract {' with '.join(map(str, shapes))}; {what} is "
                f"{known} and {size}; make the sizes equal"
            )
    return sizes


def _leave_out_ones(read: Equation, sizes: dict[str, int]) -> Equation:
    """Return an equation in which no operand names a dimension that it is broadcast along."""
    terms, shapes = [], []
    for term, shape in zip(read.terms, read.shapes, strict=True):
        kept = [i for i, letter in enumerate(term) if sizes[letter] == shape[i]]
        terms.append("".join(term[i] for i in kept))
        shapes.append(tuple(shape[i] for i in kept))
    return Equation(tuple(terms), tuple(shapes), read.result)


def _sum_alone(x: Any, term: str, others: str) -> tuple[Any, str]:
    """Return an operand that names no letter twice, and none that nobody else does."""
    letters = list(term)
    while len(set(letters)) < len(letters):
        later = next(i for i, letter in enumerate(letters) if letter in letters[:i])
        x = _take_diagonal(x, letters.index(letters[later]), later)
        del letters[later]
    alone = [i for i, letter in enumerate(letters) if letter not in others]
    if alone:
        x = sum(x, alone)
    return x, "".join(letter for i, letter in enumerate(letters) if i not in alone)


def _take_diagonal(x: Any, first: int, second: int) -> Any:
    """Return a tensor without its second dimension, which goes along with the first."""
    places = tuple(size if i in (first, second) else 1 for i, size in enumerate(x.shape))
    on_diagonal = iota(x, places, first) == iota(x, places, second)
    return sum(keep_where(on_diagonal, x), second)


__all__ = ["einsum"]
