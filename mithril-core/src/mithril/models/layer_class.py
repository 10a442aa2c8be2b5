"""Layers that are written as classes: what their function is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from mithril.errors import GraphError
from mithril.ir import Tensor


def function_of(cls: type) -> Callable[..., Any]:
    """Return the layer function a class with a method `apply` stands for.

    Raises:
        GraphError: the class has no such method, it takes options, an option cannot be one, or the
            class has a method `__init__`.
    """
    inputs = _inputs_of(cls)
    _refuse_init(cls)
    _check_attributes(cls, [argument.name for argument in inputs])
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    options = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if item.default is MISSING else item.default,
            annotation=item.type,
        )
        for item in fields(made)
    ]

    def function(*tensors: Tensor, **config: Any) -> Any:
        return made(**config).apply(*tensors)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(function, name, getattr(cls, name))
    function.__signature__ = inspect.Signature([*inputs, *options])  # type: ignore[attr-defined]
    return function


def _inputs_of(cls: type) -> list[inspect.Parameter]:
    method = vars(cls).get("apply")
    if not callable(method):
        raise GraphError(
            f"class {cls.__name__} has no method 'apply'; write def apply(self, input), with the "
            f"tensors it takes, or make a layer of a function"
        )
    inputs = list(inspect.signature(method).parameters.values())[1:]
    if any(argument.kind is inspect.Parameter.KEYWORD_ONLY for argument in inputs):
        raise GraphError(
            f"method 'apply' of class {cls.__name__} takes options; make them attributes of the "
            f"class, such as start: float = 1.0"
        )
    return inputs


def _refuse_init(cls: type) -> None:
    written = (base for base in cls.__mro__[:-1] if "__dataclass_fields__" not in vars(base))
    if any("__init__" in vars(base) for base in written):
        raise GraphError(
            f"class {cls.__name__} has a method '__init__', which a layer does without; its "
            f"options are annotated attributes of the class, such as width: int = 8"
        )


def _check_attributes(cls: type, inputs: Sequence[str]) -> None:
    for name in inspect.get_annotations(cls):
        if name in inputs:
            raise GraphError(
                f"class {cls.__name__} has an option and an input '{name}'; rename one"
            )
        if isinstance(default := vars(cls).get(name), list | dict | set):
            raise GraphError(
                f"option '{name}' of class {cls.__name__} is {default!r} by default, which all its "
                f"layers would share and could change; use a tuple or None"
            )


__all__ = ["function_of"]
