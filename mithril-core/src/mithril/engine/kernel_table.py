"""Kernels: how ops run on arrays of one device. One class of tables for all backends.

A backend makes one `KernelTable` and registers a factory for each op class that it runs itself.
The factory is called once per node when a program is lowered, with the op and the operand types,
and returns what runs each time: whatever depends only on attributes and shapes is worked out
beforehand. In most tables that is a function of the operands (`Kernel`); a backend that writes
programs as text has factories of text.

Kernels on the Python array API standard, and NumPy's own, have factories that take the array
namespace, too; `on_namespace` binds them to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from mithril.errors import BackendError
from mithril.ir import Op
from mithril.types import TensorType

Types = Sequence[TensorType]
Run = Callable[..., Any]
"""Takes the operands and returns the result, or a tuple when the op has several."""
Kernel = Callable[[Any, Types], Run]
"""A factory `(op, operand types) -> Run`."""
NamespaceKernel = Callable[[Any, Types, Any], Run]
"""A factory `(op, operand types, array namespace) -> Run`."""
Factory = TypeVar("Factory", bound=Callable[..., Any])


class KernelTable(Mapping[str, Factory], Generic[Factory]):
    """Factories by op name, in the order of registration.

    Args:
        base: a table whose factories this one has, too, where it has none of its own; for devices
            on which some ops run otherwise.

    >>> import math
    >>> from mithril import ops
    >>> table = KernelTable()
    >>> table.register_same({ops.Tanh: math.tanh})
    >>> table["tanh"](ops.Tanh(), [])(0.0)
    0.0
    """

    def __init__(self, base: Mapping[str, Factory] | None = None) -> None:
        self._own: dict[str, Factory] = {}
        self._base: Mapping[str, Factory] = {} if base is None else base

    def register(self, *op_classes: type[Op]) -> Callable[[Factory], Factory]:
        """Return the decorator that registers a factory for op classes.

        Raises:
            BackendError: an op has a factory in this table already.
        """

        def add(factory: Factory) -> Factory:
            for op_class in op_classes:
                if op_class.name in self._own:
                    raise BackendError(
                        f"op '{op_class.name}' has a kernel in this table already; register one"
                    )
                self._own[op_class.name] = factory
            return factory

        return add

    def register_same(self, made: Mapping[type[Op], Any]) -> None:
        """Register what factories make where it is the same for all attributes and types.

        Args:
            made: by op class, such as a function of the framework.
        """
        for op_class, result in made.items():
            self.register(op_class)(partial(_give, result))  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> Factory:
        found = self._own.get(name)
        return self._base[name] if found is None else found

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (name for name in self._base if name not in self._own)

    def __len__(self) -> int:
        return len({*self._own, *self._base})


def _give(result: Any, *op_and_types: object) -> Any:
    return result


def on_namespace(kernels: Mapping[str, NamespaceKernel], xp: Any) -> dict[str, Kernel]:
    """Return kernels with their namespace.

    Args:
        kernels: by op name.
        xp: the array namespace, such as the module `numpy`.
    """
    return {name: partial(_bind, factory, xp) for name, factory in kernels.items()}


def _bind(factory: NamespaceKernel, xp: Any, op: Any, types: Types) -> Run:
    return factory(op, types, xp)
