"""Clipping: gradients held within bounds, one by one or by the norm of all of them."""

from __future__ import annotations

from functools import reduce
from operator import add
from string import ascii_lowercase

from mithril import ops
from mithril.errors import GraphError
from mithril.keywords import checked_keywords
from mithril.optim.checks import check_number
from mithril.optim.each import map_gradients, read_gradients
from mithril.optim.form import Form, Leaf, widen
from mithril.optim.masks import Mask
from mithril.optim.parts import mask_others
from mithril.optim.transformation import State, Transformation, Tree


@checked_keywords()
def clip(bound: float, *, mask: Mask | None = None) -> Transformation:
    """Hold each element of the gradients between `-bound` and `bound`.

    Args:
        bound: above 0.
        mask: which parameters it is about; see `masked`.

    Raises:
        OptionError: the bound is not above 0, or no finite number.

    >>> g = {"w": backend.array([-3.0, 0.5])}
    >>> clip(1.0).update(g, {}, g)[0]["w"].numpy()
    array([-1. ,  0.5], dtype=float32)
    """
    check_number("clip()", "bound", bound, is_open=True)
    return mask_others(map_gradients("clip()", lambda g, p: ops.clip(g, -bound, bound)), mask)


@checked_keywords()
def clip_by_global_norm(max_norm: float, *, mask: Mask | None = None) -> Transformation:
    """Scale gradients down so that the norm of all of them together is at most `max_norm`.

    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013.

    Args:
        max_norm: above 0.
        mask: which parameters it is about, in the norm, too; see `masked`.

    Raises:
        OptionError: the norm is not above 0, or no finite number.

    >>> g = {"w": backend.array([30.0]), "b": backend.array([40.0])}
    >>> clip_by_global_norm(5.0).update(g, {}, g)[0]["b"].numpy()
    array([4.], dtype=float32)
    """
    most = check_number("clip_by_global_norm()", "max_norm", max_norm, is_open=True)

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form = Form(params)
        given = read_gradients(form, gradients)
        if all(g is None for g in given):
            return gradients, state
        factor = most / ops.maximum(global_norm(gradients), most)  # exactly 1 below the bound
        return form.build([None if g is None else widen(g) * factor for g in given]), state

    return mask_others(Transformation(lambda params: {}, update), mask)


def global_norm(tree: Tree) -> Leaf:
    """Return the Euclidean norm of all numbers of a tree together.

    Args:
        tree: arrays of floats.

    Returns:
        A scalar, at least float32.

    Raises:
        GraphError: the tree has no arrays.

    >>> global_norm({"w": backend.array([3.0]), "b": backend.array([4.0])}).item()
    5.0
    """
    form = Form(tree, "the tree of global_norm()")
    if not form.leaves:
        raise GraphError("global_norm() is given a tree without arrays; give one that has some")
    return ops.sqrt(reduce(add, (_sum_squares(widen(x)) for x in form.leaves)))


def _sum_squares(x: Leaf) -> Leaf:
    """Return the sum of all squares, as one product: no square is put into memory."""
    letters = ascii_lowercase[: x.ndim]
    return ops.einsum(f"{letters},{letters}->", x, x)


@checked_keywords()
def clip_by_block_rms(threshold: float, *, mask: Mask | None = None) -> Transformation:
    """Scale the update of each parameter so that its root mean square is at most `threshold`.

    Shazeer and Stern, "Adafactor", 2018, section 6.

    Args:
        threshold: above 0.
        mask: which parameters it is about; see `masked`.

    Raises:
        OptionError: the threshold is not above 0, or no finite number.

    >>> g = {"w": backend.array([6.0, 8.0, 0.0, 0.0])}
    >>> clip_by_block_rms(2.5).update(g, {}, g)[0]["w"].numpy()
    array([3., 4., 0., 0.], dtype=float32)
    """
    name = "clip_by_block_rms()"
    most = check_number(name, "threshold", threshold, is_open=True)

    def hold(update: Leaf, _: Leaf) -> Leaf:
        return update / ops.maximum(root_mean_square(update) / most, 1.0)

    return mask_others(map_gradients(name, hold), mask)


def root_mean_square(x: Leaf) -> Leaf:
    """Return the root of the mean of squares, a scalar."""
    return ops.sqrt(ops.mean(ops.square(x)))
