"""Functions of NumPy on arrays: `np.sum(x)` is that of `np.asarray(x)`, on the host.

Results are NumPy's, as those of `np.exp(x)` and of all that reads `np.asarray(x)` by itself. What
looks at shape and dtype only, such as `np.shape`, copies nothing from devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mithril.errors import BackendError
from mithril.ir import Operand

Convert = Callable[[Any], np.ndarray]
OF_FORM: frozenset[object] = frozenset({
    np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.common_type, np.zeros_like,
    np.ones_like, np.empty_like, np.full_like, np.iscomplexobj, np.isrealobj,
})  # fmt: skip
"""Functions that read no values."""


def call_numpy(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    to_host: Convert,
) -> Any:
    """Return what a function of NumPy makes of arguments some of which are arrays.

    Args:
        function: it.
        arguments: by position.
        options: by name.
        to_host: returns an array of ours as NumPy's.

    Raises:
        BackendError: the result would be written into an array.
    """
    if isinstance(options.get("out"), Operand):
        raise BackendError(
            f"np.{function.__name__} cannot write to an array of Mithril, which does not change; "
            f"leave out= out, and make an array of the result with backend.array(…)"
        )
    convert = _as_form if function in OF_FORM else lambda x: _protect(to_host(x))
    found = function(
        *(_lower(x, convert) for x in arguments),
        **{name: _lower(x, convert) for name, x in options.items()},
    )
    return _release(found)


def _lower(x: Any, convert: Convert) -> Any:
    if isinstance(x, Operand):
        return convert(x)
    if type(x) in (list, tuple):
        return type(x)(_lower(item, convert) for item in x)
    return x


def _as_form(x: Any) -> np.ndarray:
    """Return a stand-in of the shape and dtype of an array."""
    return np.broadcast_to(np.zeros((), x.dtype.numpy), x.shape)


def _protect(host: np.ndarray) -> np.ndarray:
    """Return values that NumPy refuses to write to: a function that does would change a copy."""
    host.flags.writeable = False
    return host


def _release(found: Any) -> Any:
    """Return results that users may write to, also where they are views of what was protected."""
    if isinstance(found, np.ndarray) and not found.flags.writeable:
        return found.copy()
    if type(found) in (list, tuple):
        return type(found)(_release(item) for item in found)
    return found
