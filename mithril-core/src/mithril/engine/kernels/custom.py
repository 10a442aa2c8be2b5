"""Kernels that users gave ops of their own, for any engine by its name.

An engine takes `kernels_for(name, its own)` where it would take its own table. A user's kernel is
guarded: what it returns must have the types its op promises, and NumPy operands, which devices may
share, cannot be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Kernel, Run, Types
from mithril.errors import BackendError, ShapeError
from mithril.ir import registry
from mithril.ops.definition import UserOp

DtypeName = Callable[[Any], str]


def name_dtype(dtype: Any) -> str:
    """Return `float32` for NumPy's `float32`, PyTorch's `torch.float32` and the like.

    >>> name_dtype(np.dtype("float32")), name_dtype("mlx.core.bool_")
    ('float32', 'bool')
    """
    return str(dtype).rpartition(".")[2].rstrip("_")


def kernels_for(
    backend: str, kernels: Mapping[str, Kernel], dtype_name: DtypeName = name_dtype
) -> dict[str, Kernel]:
    """Return an engine's kernels and those that users gave their ops for it.

    Args:
        backend: the engine's name.
        kernels: the engine's own kernels by op name.
        dtype_name: says what Mithril calls a dtype of the framework; `Engine.dtype_name`.
    """
    users = {
        name: _guard(backend, cache(dtype_name))
        for name, op in registry().items()
        if issubclass(op, UserOp) and backend in op.definition.kernels
    }
    return {**kernels, **users}


def _guard(backend: str, dtype_name: DtypeName) -> Kernel:
    def factory(op: UserOp, types: Types) -> Run:
        function = op.definition.kernels.get(backend)
        if function is None:
            raise BackendError(
                f"op '{op.name}' was defined again and has no kernel for backend '{backend}' as it "
                f"was before; make the layer anew"
            )
        wanted = [(t.shape, str(t.dtype)) for t in op.infer(types)]
        attributes = dict(op.attributes)
        show = partial(_show, dtype_name)

        def run(*operands: Any) -> Any:
            try:
                found = function(*map(_read_only, operands), **attributes)
            except Exception as error:
                error.add_note(
                    f"in the {backend} kernel of op '{op.name}' for {show(operands)}, which it "
                    f"cannot write to"
                )
                raise
            results = (found,) if len(wanted) == 1 else found
            if not _has_types(results, wanted, dtype_name):
                raise ShapeError(
                    f"op '{op.name}': its {backend} kernel returned {show(found)} for "
                    f"{show(operands)}; shapes= promises {', '.join(map(str, op.infer(types)))}; "
                    f"make them equal"
                )
            return found

        return run

    return factory


def _has_types(
    results: Any, wanted: list[tuple[tuple[int, ...], str]], dtype_name: DtypeName
) -> bool:
    if not isinstance(results, tuple | list) or len(results) != len(wanted):
        return False
    for result, (shape, dtype) in zip(results, wanted, strict=True):
        found = getattr(result, "shape", None), getattr(result, "dtype", None)
        if found[0] is None or tuple(found[0]) != shape or found[1] is None:
            return False
        if dtype_name(found[1]) != dtype:
            return False
    return True


def _read_only(operand: Any) -> Any:
    if isinstance(operand, np.ndarray) and operand.flags.writeable:
        operand = operand.view()
        operand.flags.writeable = False
    return operand


def _show(dtype_name: DtypeName, value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(_show(dtype_name, one) for one in value) or "nothing"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__
