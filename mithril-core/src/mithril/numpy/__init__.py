"""A namespace like NumPy's, on arrays of any backend and on values inside a traced function.

Names and meanings are those of the Python array API standard, and of NumPy where that has another
name; besides them there are functions of neural networks, such as `softmax`. A function works where
its arguments live: on arrays at once, inside a function that is traced as a part of it. NumPy
arrays may stand among the arguments.

    import mithril.numpy as mnp

Those of matrices are in `mnp.linalg`, too.

Functions that make arrays from nothing take `backend=` outside of a traced function. Inside, they
make constants of the plan. In the examples `backend` is `ml.NumpyBackend()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from typing import Any

import numpy as _np

from mithril import ops as _ops
from mithril.errors import BackendError, nearest
from mithril.ir import Builder, Operand
from mithril.ir.running import running_trace, trace_around
from mithril.numpy.creation import *
from mithril.numpy.creation import __all__ as _made
from mithril.runtime.array import Array
from mithril.runtime.functional.tracing import lift
from mithril.runtime.functions import ALIASES, EAGER, attempt, call_eager
from mithril.types import DType

pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None
bool_, int8, int16, int32, int64 = (DType(n) for n in ("bool", "int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = (DType(n) for n in ("uint8", "uint16", "uint32", "uint64"))
bfloat16, float16 = DType.bfloat16, DType.float16
float32, float64 = DType.float32, DType.float64

_CONSTANTS = (
    "bfloat16", "bool_", "e", "float16", "float32", "float64", "inf", "int16", "int32", "int64",
    "int8", "nan", "newaxis", "pi", "uint16", "uint32", "uint64", "uint8",
)  # fmt: skip

__all__ = [*EAGER, *_made, *_CONSTANTS, "linalg"]  # noqa: PLE0604 - tuples of strings


def __getattr__(name: str) -> Any:
    if name == "linalg":  # it takes its functions from here
        return import_module("mithril.numpy.linalg")
    if name not in EAGER:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"mithril.numpy has no '{name}'{nearest(name, __all__)}")
    return _function(name)  # never put among the globals: `max` here is Python's


def __dir__() -> list[str]:
    return list(__all__)


@cache
def _function(name: str) -> Callable[..., Any]:
    """Return a function of `mithril.ops` that takes arrays, NumPy arrays and traced values."""
    source = getattr(_ops, ALIASES.get(name, name))

    @wraps(source)
    def function(*arguments: Any, **options: Any) -> Any:
        given = list(_operands((*arguments, *options.values())))
        builder = trace_around(given)
        if builder is None:
            arrays = [x for x in given if isinstance(x, Array)]
            if arrays:
                return call_eager(arrays[0].backend, name, *arguments, **options)
            builder = running_trace()
        if builder is None:
            raise BackendError(
                f"mithril.numpy.{name} is called without an array of a backend; pass one, such as "
                f"backend.array(…)"
            )
        taken = [_lift(builder, x) for x in arguments]
        named = {key: _lift(builder, x) for key, x in options.items()}
        return builder.attempt(attempt, name, taken, named)

    function.__name__ = function.__qualname__ = name
    return function


def _operands(arguments: Sequence[Any]) -> Any:
    for x in arguments:
        if isinstance(x, Operand):
            yield x
        elif isinstance(x, list | tuple):
            yield from _operands(x)


def _lift(builder: Builder, x: Any) -> Any:
    """Return an argument with arrays of values as tensors of a trace, those in lists too."""
    if isinstance(x, list | tuple) and any(_is_values(item) for item in x):
        return [_lift(builder, item) for item in x]
    return lift(builder, x, "argument") if _is_values(x) else x


def _is_values(x: Any) -> bool:
    return isinstance(x, _np.ndarray | Array)
