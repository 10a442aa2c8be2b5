"""The table of the shared kernels, and how it is bound to an array namespace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mithril.engine.kernel_table import (
    Kernel,
    KernelTable,
    NamespaceKernel,
    Run,
    on_namespace,
)
from mithril.engine.standard.namespace import EXTENSIONS, FACTORISATIONS, ArrayNamespace
from mithril.engine.standard.needs import functions_in
from mithril.ir import Op
from mithril.types import DType

SHARED_KERNELS: KernelTable[NamespaceKernel] = KernelTable()
"""Kernels of all primitive ops, by name; fused ops are expanded into those."""
kernel = SHARED_KERNELS.register


def same_name(names: Mapping[type[Op], str], of_booleans: Mapping[type[Op], str]) -> None:
    """Register kernels that are a function of the namespace, by its name.

    Args:
        names: of the functions.
        of_booleans: of those that are another one of booleans, with which the array API standard
            does no arithmetic.
    """
    for op_class, function in names.items():
        others = (of_booleans[op_class],) if op_class in of_booleans else ()
        kernel(op_class)(partial(_take, function, *others))


def _take(*given: Any) -> Run:
    """Return a function: given are its name, perhaps that of booleans, and what a kernel is."""
    *names, _, types, xp = given
    is_boolean = bool(types) and types[0].dtype == DType.bool_
    run: Run = getattr(xp, names[-1 if is_boolean else 0])
    return run


def function_of(name: str) -> str:
    """Return the function of a namespace that the shared kernel of an op is; empty if it is none.

    >>> function_of("arctan"), function_of("take")
    ('atan', '')
    """
    factory = SHARED_KERNELS.get(name)
    if isinstance(factory, partial) and factory.func is _take:
        return str(factory.args[0])
    return ""


def list_lacking(name: str, factory: NamespaceKernel, xp: object) -> list[str]:
    """Return the functions that a shared kernel calls and a namespace lacks.

    >>> from types import SimpleNamespace
    >>> list_lacking("inv", SHARED_KERNELS["inv"], SimpleNamespace(astype=1, linalg=None))
    ['linalg.inv']
    """
    lacking = [function for function in functions_in(factory) if not hasattr(xp, function)]
    if name in EXTENSIONS:
        extension, function = EXTENSIONS[name], FACTORISATIONS[name]
        if not hasattr(getattr(xp, extension, None), function):
            lacking.append(f"{extension}.{function}")
    return sorted(lacking)


def bind_namespace(xp: ArrayNamespace) -> dict[str, Kernel]:
    """Return the shared kernels on an array namespace, by op name.

    Those that call a function which the namespace lacks, or its extension, are left out.

    Args:
        xp: the namespace, such as the module `numpy`; `ArrayNamespace` says what it has to have.

    >>> import numpy as np
    >>> from mithril.spi import ops
    >>> bind_namespace(np)["tanh"](ops.Tanh(), [])(0.0)
    np.float64(0.0)
    """
    found = {
        name: factory
        for name, factory in SHARED_KERNELS.items()
        if not list_lacking(name, factory, xp)
    }
    return on_namespace(found, xp)
