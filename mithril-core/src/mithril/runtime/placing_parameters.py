"""Placing parameters that exist elsewhere: each device gets its part, and all faults are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from mithril.errors import GraphError, kind_of, listing, nearest
from mithril.mesh import Box, Sharding
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend
from mithril.runtime.host import on_host
from mithril.runtime.parameters import Parameters
from mithril.types import DType, TensorType

Wanted = Mapping[str, tuple[TensorType, Sharding]]


def place_parameters(backend: Backend, given: Mapping[str, object], wanted: Wanted) -> Parameters:
    """Return parameters laid out on a backend; see `CompiledModel.place`.

    Args:
        backend: where they go.
        given: arrays by name.
        wanted: what each parameter is, and how it shall lie.

    Raises:
        GraphError: names are unknown or missing, or shapes do not fit; all of them are listed.
    """
    if not isinstance(given, Mapping):
        raise GraphError(
            f"place() takes a mapping of parameter names to arrays, not {kind_of(given)}; give one"
        )
    found = {name: _read(backend, given[name]) for name in wanted if name in given}
    faults = list(_list_faults(given, found, wanted))
    if faults:
        raise GraphError(
            f"arrays given to place() do not fit the model; {'; '.join(faults)}; give one array of "
            f"the right shape for each parameter"
        )
    return Parameters(
        (name, _place(backend, found[name], type, sharding))
        for name, (type, sharding) in wanted.items()
    )


def _read(backend: Backend, x: object) -> Array | np.ndarray:
    """Return an array of the backend as it is, anything else on the host."""
    if isinstance(x, Array):
        return x if x.backend is backend else x.numpy()
    if isinstance(x, np.ndarray):
        return on_host(x)
    return backend.read_host(x)[0]


def _list_faults(
    given: Mapping[str, object], found: Mapping[str, Array | np.ndarray], wanted: Wanted
) -> Iterator[str]:
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given]
    if unknown:
        near = nearest(str(unknown[0]), missing or list(wanted)) if len(unknown) == 1 else ""
        yield f"unknown: {listing(unknown)}{near}"
    if missing:
        yield f"missing: {listing(missing)}"
    for name, x in found.items():
        type = wanted[name][0]
        is_same_kind = _is_float(x) == type.dtype.is_float
        if tuple(x.shape) != type.shape or not is_same_kind:
            yield f"'{name}' is {x.dtype}{list(x.shape)} and must be {type}"


def _is_float(x: Array | np.ndarray) -> bool:
    return DType(str(x.dtype)).is_float


def _place(backend: Backend, x: Array | np.ndarray, type: TensorType, sharding: Sharding) -> Array:
    if isinstance(x, Array):
        return backend.reshard(x if x.dtype == type.dtype else x.astype(type.dtype), sharding)
    return backend.place(type, sharding, partial(_cut, x, type.dtype.numpy))


def _cut(host: np.ndarray, dtype: Any, box: Box) -> np.ndarray:
    """Return a copy of a part; of a file that is mapped into memory no more than that is read."""
    return np.array(host[box], dtype)
