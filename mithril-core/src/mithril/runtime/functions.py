"""The eager functions of a backend: which functions of `mithril.ops` it shows, and as what.

Names are those of the Python array API standard. Where `mithril.ops` has a function under another
name, often NumPy's, both are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mithril import ops

if TYPE_CHECKING:
    from mithril.runtime.backend import Backend

FUNCTIONS: tuple[str, ...] = (
    "abs", "add", "all", "any", "arctan", "argmax", "argmin", "argsort", "attention", "avg_pool",
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "broadcast_arrays", "broadcast_to", "cast", "ceil", "clip", "concatenate",
    "convolution", "cos", "cosh", "cross_entropy", "cumsum", "divide", "einsum", "equal", "erf",
    "exp", "expand_dims", "expm1", "flip", "floor", "floor_divide", "gelu", "greater",
    "greater_equal", "isfinite", "isinf", "isnan", "layer_norm", "less", "less_equal", "log",
    "log1p", "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor",
    "matmul", "matrix_transpose", "max", "max_pool", "maximum", "mean", "min", "minimum",
    "moveaxis", "multiply", "negate", "not_equal", "one_hot", "outer", "pad", "positive", "power",
    "prod", "reciprocal", "relu", "remainder", "reshape", "rms_norm", "roll", "rope", "round",
    "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "softmax", "sort", "sqrt", "square",
    "squeeze", "stack", "std", "subtract", "sum", "take", "take_along", "tan", "tanh", "tensordot",
    "tile", "top_k", "trace", "transpose", "tril", "triu", "trunc", "unstack", "var", "vecdot",
    "where",
)  # fmt: skip
"""Functions of `mithril.ops` that backends show under the same name."""

ALIASES: dict[str, str] = {
    "astype": "cast",
    "atan": "arctan",
    "concat": "concatenate",
    "cumulative_sum": "cumsum",
    "negative": "negate",
    "permute_dims": "transpose",
    "pow": "power",
    "take_along_axis": "take_along",
}
"""Names of the array API standard for functions that `mithril.ops` calls otherwise."""

EAGER = tuple(sorted({*FUNCTIONS, *ALIASES}))
"""Every eager function a backend has."""


def call_eager(backend: Backend, name: str, *arguments: Any, **options: Any) -> Any:
    """Call an eager function; NumPy arrays among the arguments are put on the backend's devices."""
    function = getattr(ops, ALIASES.get(name, name))
    given = [_taken(backend, x) for x in arguments]
    return function(*given, **{key: _taken(backend, x) for key, x in options.items()})


def eager(backend: Backend, name: str) -> Callable[..., Any]:
    """Return an eager function of a backend."""

    def function(*arguments: Any, **options: Any) -> Any:
        return call_eager(backend, name, *arguments, **options)

    source = getattr(ops, ALIASES.get(name, name))
    function.__name__, function.__doc__ = name, source.__doc__
    return function


def _taken(backend: Backend, x: Any) -> Any:
    if isinstance(x, Sequence) and not isinstance(x, str):
        items = [backend.taken(item) for item in x]
        changed = any(item is not given for item, given in zip(items, x, strict=True))
        return items if changed else x
    return backend.taken(x)
