"""The eager functions of a backend: which functions of `mithril.ops` it shows, and as what.

Names are those of the Python array API standard. Where `mithril.ops` has a function under another
name, often NumPy's, both are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from mithril import ops
from mithril.errors import GraphError, kind_of
from mithril.ir import Operand
from mithril.keywords import list_argument_names, refuse_unknown
from mithril.runtime.array import ArrayBackend
from mithril.runtime.functional.arguments import Choice, Signature
from mithril.runtime.functional.function import Function
from mithril.runtime.functional.options import FunctionOptions
from mithril.runtime.lru import LRUCache
from mithril.runtime.patterns import read_patterns

NOT_EAGER: dict[str, str] = {
    "accumulator": "about dtypes, not arrays",
    "advance_seed": "of the seed of a model",
    "after": "orders the nodes of a plan",
    "bernoulli": "draws from the seed of a model; backends have rand",
    "apply_constraint": "backends have reshard",
    "dropout": "draws from the seed of a model",
    "getitem": "written x[...]",
    "grouped_matmul": "of the blocks that a mixture of experts makes",
    "iota": "backends have arange",
    "moe_combine": "of the lists that a mixture of experts makes",
    "moe_dispatch": "of the lists that a mixture of experts makes",
    "normal": "draws from the seed of a model; backends have randn",
    "randint": "draws from the seed of a model; backends have their own",
    "random_bits": "draws from the seed of a model; backends have randint",
    "repeat": "a loop of a plan; what backends call so repeats elements",
    "scatter_add": "the gradient of take",
    "split_seed": "of the seed of a model",
    "trace_body": "makes the body of a loop",
    "uniform": "draws from the seed of a model; backends have rand",
    "window_sizes": "about the windows of a pooling",
}
"""Functions of `mithril.ops` that backends do not show, and why."""

FUNCTIONS: tuple[str, ...] = tuple(
    name
    for name, value in vars(ops).items()
    if isinstance(value, FunctionType) and name not in NOT_EAGER
)
"""Functions of `mithril.ops` that backends show under the same name: all others."""

ALIASES: dict[str, str] = {
    "astype": "cast",
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "concat": "concatenate",
    "cumulative_prod": "cumprod",
    "cumulative_sum": "cumsum",
    "negative": "negate",
    "permute_dims": "transpose",
    "pow": "power",
    "repeat": "repeat_elements",
    "take_along_axis": "take_along",
}
"""Names of the array API standard for functions that `mithril.ops` calls otherwise."""

EAGER = tuple(sorted({*FUNCTIONS, *ALIASES}))
"""Every eager function a backend has."""


def call_eager(backend: ArrayBackend, name: str, *arguments: Any, **options: Any) -> Any:
    """Call an eager function; NumPy arrays among the arguments are put on the backend's devices."""
    given = [_convert(backend, x) for x in arguments]
    return attempt(name, given, {key: _convert(backend, x) for key, x in options.items()})


def attempt(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Call a function of the ops; what it cannot take is named as its user named it.

    Args:
        name: the name that it was called by.
        arguments: those by position.
        options: those by name.

    Raises:
        GraphError: an argument that has to be a tensor is something else.
        OptionError: an option does not exist.
    """
    function = getattr(ops, ALIASES.get(name, name))
    try:
        return function(*arguments, **options)
    except AttributeError as error:
        # A value without `ndim` or `dtype` that the user passed in; all others are our mistakes.
        if any(x is error.obj for x in (*arguments, *options.values())):
            raise GraphError(
                f"op '{name}' takes tensors, not {kind_of(error.obj)}; pass an array of a backend, "
                f"such as backend.array(…)"
            ) from None
        raise
    except TypeError:
        refuse_unknown(f"{name}()", options, list_argument_names(function))
        raise


def eager(backend: ArrayBackend, name: str) -> Callable[..., Any]:
    """Return an eager function of a backend.

    Besides its own arguments it takes `donate=` and `at_rest=`, as `jit` does; then it runs as one
    plan.
    """

    def function(
        *arguments: Any, donate: Choice = (), at_rest: object = None, **options: Any
    ) -> Any:
        if donate != () or at_rest is not None:
            planned = _find_function(backend, name, donate, at_rest)
            refuse_unknown(f"{name}()", options, list_argument_names(planned))
            return planned(*arguments, **options)
        return call_eager(backend, name, *arguments, **options)

    source = getattr(ops, ALIASES.get(name, name))
    function.__name__, function.__doc__ = name, source.__doc__
    return function


def _find_function(backend: ArrayBackend, name: str, donate: Choice, at_rest: object) -> Function:
    """Return a function of the ops that runs as one plan; the same one for the same options."""
    source = getattr(ops, ALIASES.get(name, name))
    donated = Signature(source).select_arguments(donate, "donate")
    patterns = read_patterns(at_rest, f"at_rest of {name}()", backend.mesh)
    specs = ((pattern, spec, spec.cuts) for pattern, spec in patterns.items())
    key = name, donated, tuple(specs)
    known: LRUCache[object, Function] = backend.op_functions
    found = known.get(key)
    if found is None:
        options = FunctionOptions(donated=donated, at_rest=patterns)
        found = Function(source, backend, options, _is_option)
        known.put(key, found)
    return found


def _is_option(x: object) -> bool:
    """Return whether an argument is no array; a number is a part of the op then."""
    return not isinstance(x, Operand) and not hasattr(x, "shape")


def _convert(backend: ArrayBackend, x: Any) -> Any:
    if isinstance(x, Sequence) and not isinstance(x, str):
        items = [backend.convert(item) for item in x]
        changed = any(item is not given for item, given in zip(items, x, strict=True))
        return items if changed else x
    return backend.convert(x)
