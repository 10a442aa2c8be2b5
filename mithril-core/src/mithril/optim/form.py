"""Form: parameters as a list with names, and other trees brought into the order of that list.

Gradients and the tensors of a state are found by the names of their parameters, whatever the kinds
of the containers. What has no gradient, because it is frozen or masked, is None or not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from mithril import ops
from mithril.errors import GraphError, ShapeError, kind_of, listing, near_names, nearest
from mithril.ir import Operand, Tensor
from mithril.ir.running import trace_around
from mithril.trees import flatten, names, rebuild
from mithril.types import DType, as_dtype, promote

Leaf = Any
"""An array of a backend, a traced tensor, or an array of NumPy."""


class Form:
    """The names, leaves and structure of parameters.

    Args:
        params: a tree of arrays.
        of: what they are, for messages.

    Raises:
        GraphError: a leaf is no array.
    """

    def __init__(self, params: object, of: str = "parameters") -> None:
        self.leaves: list[Leaf] = []
        self.structure = flatten(params, self.leaves)
        self.names = tuple(names(self.structure, ""))
        for name, leaf in zip(self.names, self.leaves, strict=True):
            _check_array(leaf, name, of)

    def read(self, tree: object, what: str) -> list[Leaf | None]:
        """Return for each parameter what another tree has under its name, None for nothing.

        Args:
            tree: of arrays with the shapes of the parameters.
            what: names the tree, for messages.

        Raises:
            GraphError: the tree has something under another name.
            ShapeError: something has another shape than the parameter.
        """
        found = self.find(tree, what)
        for name, leaf, parameter in zip(self.names, found, self.leaves, strict=True):
            if leaf is not None and tuple(leaf.shape) != tuple(parameter.shape):
                raise ShapeError(
                    f"{what} have {list(leaf.shape)} for '{name}', whose parameter has "
                    f"{list(parameter.shape)}; give those of these parameters"
                )
        return found

    def find(self, tree: object, what: str) -> list[Leaf | None]:
        """Return the same, but take any shape.

        Raises:
            GraphError: the tree has something under another name, or that is no array.
        """
        leaves: list[Leaf] = []
        structure = flatten(tree, leaves)
        known = dict(zip(names(structure, ""), leaves, strict=True))
        for name, leaf in known.items():
            _check_array(leaf, name, what)
        taken = [
            _adopt(known.pop(n, None), p) for n, p in zip(self.names, self.leaves, strict=True)
        ]
        if known:
            name = next(iter(known))
            raise GraphError(
                f"{what} have '{name}', which is none of the parameters"
                f"{nearest(name, self.names)}; near names: {listing(near_names(name, self.names))}"
            )
        return taken

    def build(self, leaves: Iterable[Leaf | None]) -> Any:
        """Return the tree of the parameters with other leaves."""
        return rebuild(self.structure, leaves)

    def keep(self, is_kept: Sequence[bool], leaves: Sequence[Leaf | None] | None = None) -> Any:
        """Return the tree with None for some of the parameters, or of what stands for them."""
        of = self.leaves if leaves is None else leaves
        return self.build([x if kept else None for x, kept in zip(of, is_kept, strict=True)])

    def zeros(self) -> Any:
        """Return a tree of zeros, each like its parameter; None for one that is not of floats."""
        return self.build([zeros_like(x) if is_float(x) else None for x in self.leaves])

    @property
    def widest(self) -> DType:
        """The dtype that numbers of all parameters are computed in: float32, or float64."""
        floats = (as_dtype(x.dtype) for x in self.leaves if is_float(x))
        return reduce(promote, floats, DType.float32)

    def scalar(self, value: float, dtype: DType) -> Leaf:
        """Return a scalar that lives where the parameters do.

        Raises:
            GraphError: there are no parameters.
        """
        if not self.leaves:
            raise GraphError(
                "an optimiser is given no parameters to make a state for; give a tree of arrays, "
                "such as compiled.randomize_params()"
            )
        return constant_like(self.leaves[0], value, dtype)


def is_float(x: Leaf) -> bool:
    """Whether gradients flow through an array."""
    return as_dtype(x.dtype).is_float


def widen(x: Leaf) -> Leaf:
    """Return an array in at least float32, in which updates are computed."""
    dtype = promote(as_dtype(x.dtype), DType.float32)
    return x.astype(dtype.numpy) if isinstance(x, np.ndarray) else ops.cast(x, dtype)


def zeros_like(x: Leaf, shape: Sequence[int] | None = None) -> Leaf:
    """Return zeros where an array lives, in its dtype and shape, or in another shape."""
    if isinstance(x, np.ndarray):
        return np.zeros(x.shape if shape is None else shape, x.dtype)
    if isinstance(x, Tensor):
        zero = constant_like(x, 0.0, x.dtype)
        return ops.broadcast_to(zero, x.shape if shape is None else tuple(shape))
    backend: Any = x.backend  # an array of a backend, which lies in a layer above
    if shape is None:
        return backend.full_like(x, 0)
    return backend.zeros(tuple(shape), dtype=x.dtype)


def constant_like(x: Leaf, value: float, dtype: DType) -> Leaf:
    """Return a scalar that lives where an array does."""
    if isinstance(x, np.ndarray):
        return np.asarray(value, dtype.numpy)
    if isinstance(x, Tensor):
        return (trace_around([x]) or x.builder).constant(value, dtype)
    return x._constant(value, dtype)


def _check_array(leaf: object, name: str, what: str) -> None:
    if not isinstance(leaf, Operand | np.ndarray):
        raise GraphError(
            f"{what} have {kind_of(leaf)} as '{name}', no array; give arrays of a backend, or call "
            f"it inside of ml.jit"
        )


def _adopt(leaf: Leaf | None, parameter: Leaf) -> Leaf | None:
    """Return values of NumPy as what their parameter is: an array of its backend, or traced."""
    is_taken = isinstance(leaf, np.ndarray) and isinstance(parameter, Operand)
    adopted = parameter._adopt(leaf) if is_taken else None
    return leaf if adopted is None else adopted
