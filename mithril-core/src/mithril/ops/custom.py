"""Ops that users define: shapes, a sharding rule, and kernels of their own, without touching core.

A defined op is an op like any other: it is planned, sharded, differentiated, printed, written into
plans and read back. Everything that can be known is checked when it is defined; the rest at its
first use, with the user's line.
"""

from __future__ import annotations

import inspect
import keyword
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass
from types import FrameType
from typing import Any

from mithril.errors import OptionError, listing, nearest
from mithril.ir.op import register
from mithril.ir.operand import apply
from mithril.keywords import checked_keywords
from mithril.ops.definition import (
    ELEMENTWISE,
    Definition,
    Function,
    Part,
    UserOp,
    check_rule_text,
)
from mithril.types import DType

KINDS = (bool, int, float, str, tuple, DType)
"""Types an attribute may have: what a plan can be written with."""
REDUCTIONS = ("sum", "max", "min")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_PLACE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@checked_keywords()
def define_op(
    name: str,
    *,
    shapes: Callable[..., Any],
    rule: str | Callable[..., str],
    kernels: Mapping[str, Callable[..., Any]] | None = None,
    expand: Callable[..., Any] | None = None,
    gradient: Callable[..., Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    flops: Callable[..., int] | None = None,
    whole: Iterable[str] = (),
    expandable: Iterable[str] = (),
    reductions: Mapping[str, str] | None = None,
    linear: Iterable[Sequence[int]] = (),
    indices: Iterable[int] = (),
) -> Callable[..., Any]:
    """Define an op and return it as a function of tensors and arrays.

    All functions take the operands by position and, by name, those attributes they have an argument
    for. Running the same definition again, as notebooks do, replaces the op: what was built with
    the old one keeps it.

    Args:
        name: what plans and messages call it.
        shapes: from the type of each operand (`x.shape`, `x.dtype`) to the type of the result, or a
            list of types when there are several.
        rule: how dimensions hang together, and with that how the op is split: `"elementwise"`, with
            broadcasting, or one name for each dimension, as in `"b n, n -> b"`; `...` stands for
            the dimensions that are not named, `(h d)` for one made of two. A factor missing from
            the result is summed over: each device sums its part. A function of the operand types
            may return the rule.
        kernels: for each backend by its name (`numpy`, `jax`, `torch`, `mlx`, …) the function that
            computes the op on that framework's arrays. It returns new arrays, one for each result,
            and sees a part of the operands when the op is split. Results are checked at each call.
        expand: computes the op from smaller ones, on backends without a kernel.
        gradient: from lists of operands, results and gradients of the results to a list of the
            gradients of the operands, None where none flows; written with tensor operations. By
            default that of the expansion, where there is one.
        attributes: settings of the op by name: a default, or a type (`bool`, `int`, `float`, `str`,
            `tuple`, `DType`) where there is none.
        flops: from the operand types to the number of arithmetic operations, by which splits are
            priced; by default one per element of the results.
        whole: factors of the rule that are never split.
        expandable: factors that are split by taking the expansion instead of the kernel.
        reductions: for a factor missing from the result, `max` or `min` instead of the sum.
        linear: groups of operands in which the op is jointly linear; partial sums may pass it.
        indices: operands that hold positions; in the padding of uneven parts they are zero.

    Returns:
        A function that takes the operands by position and the attributes by name, and returns the
        result, or a tuple of results. It works inside layers and on arrays.

    Raises:
        GraphError: the name belongs to another op.
        OptionError: the definition contradicts itself.

    >>> import numpy as np
    >>> squash = define_op(
    ...     "squash",
    ...     shapes=lambda x: x,
    ...     rule="elementwise",
    ...     kernels={"numpy": lambda x: x / (1 + np.abs(x))},
    ... )
    >>> squash(backend.array([1.0, -3.0])).numpy().tolist()
    [0.5, -0.75]
    """
    given = dict(attributes or {})
    _check_name(name)
    kinds = {key: _kind(name, key, value) for key, value in given.items()}
    wanted = frozenset(kinds)
    if callable(rule):
        rule_part: str | Part = _part(name, "rule", rule, wanted)
    else:
        check_rule_text(name, rule)
        rule_part = rule
    definition = Definition(
        shapes=_part(name, "shapes", shapes, wanted),
        rule=rule_part,
        kernels=_kernels(name, kernels or {}, wanted, has_expansion=expand is not None),
        expand=None if expand is None else _full_part(name, "expand=", expand, wanted),
        gradient=None if gradient is None else _part(name, "gradient", gradient, wanted),
        flops=None if flops is None else _part(name, "flops", flops, wanted),
        kinds=kinds,
        operands=_operand_count(name, shapes, wanted),
        whole=tuple(whole),
        expandable=tuple(expandable),
        reductions=_reductions(name, reductions or {}),
        linear=tuple(map(tuple, linear)),
    )
    _check_factors(name, definition)
    positions = tuple(indices)
    _check_positions(name, definition, positions)
    op_class = _op_class(name, given, definition, positions, find_origin(sys._getframe(2)))
    return _function(register(op_class), given)


def _function(op_class: type[UserOp], given: Mapping[str, Any]) -> Callable[..., Any]:
    name, definition = op_class.name, op_class.definition
    required = [key for key, value in given.items() if isinstance(value, type)]

    def function(*operands: Any, **settings: Any) -> Any:
        for key in settings:
            if key not in given:
                raise OptionError(
                    f"op '{name}' has no attribute '{key}'{nearest(key, given)}; attributes: "
                    f"{listing(given)}"
                )
        for key in required:
            if key not in settings:
                raise OptionError(
                    f"op '{name}' needs attribute '{key}', a {definition.kinds[key].__name__}; "
                    f"pass {key}=…"
                )
        op = op_class(**settings)
        op.check_count(len(operands))
        results = apply(op, *operands)
        return results[0] if len(results) == 1 else results

    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__module__ = op_class.__module__
    function.__doc__ = op_class.__doc__
    function.__signature__ = _signature(given, definition)  # type: ignore[attr-defined]
    return function


def _signature(given: Mapping[str, Any], definition: Definition) -> inspect.Signature:
    settings = [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if isinstance(value, type) else value,
            annotation=definition.kinds[key],
        )
        for key, value in given.items()
    ]
    operands = inspect.Parameter("operands", inspect.Parameter.VAR_POSITIONAL)
    return inspect.Signature([operands, *settings])


def _op_class(
    name: str,
    given: Mapping[str, Any],
    definition: Definition,
    indices: tuple[int, ...],
    origin: str,
) -> type[UserOp]:
    kinds = definition.kinds
    members = [
        (key, kinds[key].__name__, field() if isinstance(value, type) else field(default=value))
        for key, value in sorted(given.items(), key=lambda item: not isinstance(item[1], type))
    ]
    op_class = make_dataclass(
        "".join(part.title() for part in re.split(r"[._]", name)),
        members,
        bases=(UserOp,),
        namespace={
            "__doc__": f"The op '{name}', defined by {origin}.",
            "name": name,
            "definition": definition,
            "indices": indices,
            "origin": origin,
        },
        frozen=True,
    )
    op_class.__module__ = origin.partition(",")[0]  # later: dataclasses would look it up
    return op_class


def find_origin(frame: FrameType) -> str:
    """Return where an op is defined: module and enclosing function, which outlive an edit."""
    code = frame.f_code
    module = frame.f_globals.get("__name__", code.co_filename)
    return str(module) if code.co_qualname == "<module>" else f"{module}, in {code.co_qualname}"


# ------------------------------------------------------------------ checks


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        raise OptionError(f"op name {name!r} is not one; give letters, digits and _")


def _kind(op: str, name: str, value: object) -> type:
    """Return the type of an attribute that is given by its default, or by its type."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise OptionError(f"op '{op}' has attribute {name!r}; give it a Python name")
    if hasattr(UserOp, name) or name == "definition":
        raise OptionError(f"op '{op}' cannot have an attribute '{name}'; choose another name")
    kind = value if isinstance(value, type) else type(value)
    if kind not in KINDS:
        known = ", ".join(k.__name__ for k in KINDS)
        raise OptionError(
            f"attribute '{name}' of op '{op}' is a {kind.__name__}; give a value or a type among "
            f"{known}"
        )
    return kind


def _kernels(
    op: str, kernels: Mapping[str, Function], wanted: frozenset[str], *, has_expansion: bool
) -> dict[str, Function]:
    if not isinstance(kernels, Mapping):
        raise OptionError(
            f"op '{op}' has kernels={kernels!r}; give a mapping, such as {{'numpy': function}}"
        )
    if not kernels and not has_expansion:
        raise OptionError(
            f"op '{op}' has neither a kernel nor an expansion; pass kernels={{'numpy': …}} or "
            f"expand=…"
        )
    return {
        backend: _full_part(op, f"kernel of '{backend}'", kernel, wanted).function
        for backend, kernel in kernels.items()
    }


def _part(op: str, what: str, function: Function, wanted: frozenset[str]) -> Part:
    """Return a function with those attributes it has an argument for."""
    if not callable(function):
        raise OptionError(f"op '{op}' has {what}={function!r}; give a function")
    parameters = _parameters(function)
    if parameters is None or inspect.Parameter.VAR_KEYWORD in [p.kind for p in parameters]:
        return Part(function)
    return Part(function, wanted & {p.name for p in parameters if p.kind in _BY_NAME})


def _full_part(op: str, what: str, function: Function, wanted: frozenset[str]) -> Part:
    """Return a function that computes the op, which takes every attribute."""
    part = _part(op, what, function, wanted)
    missing = sorted(wanted - (wanted if part.attributes is None else part.attributes))
    if missing:
        raise OptionError(
            f"op '{op}' has attribute '{missing[0]}', which its {what} does not take; add it as an "
            f"argument there"
        )
    return part


def _parameters(function: Function) -> list[inspect.Parameter] | None:
    """Return the arguments of a function; None where Python cannot tell, as for some of NumPy's."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return None


def _operand_count(op: str, shapes: Function, wanted: frozenset[str]) -> tuple[int, int | None]:
    """Return how many operands `shapes` takes, at least and at most."""
    parameters = _parameters(shapes) or []
    placed = [p for p in parameters if p.kind in _BY_PLACE and p.name not in wanted]
    least = sum(p.default is inspect.Parameter.empty for p in placed)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return max(least, 1), None
    if not placed:
        raise OptionError(f"op '{op}' has no operands; let shapes= take one argument for each")
    return max(least, 1), len(placed)


def _reductions(op: str, reductions: Mapping[str, str]) -> dict[str, str]:
    for factor, reduction in reductions.items():
        if reduction not in REDUCTIONS:
            raise OptionError(
                f"op '{op}' reduces '{factor}' by {reduction!r}; known: {listing(REDUCTIONS)}; for "
                f"others, put the factor into whole="
            )
    return dict(reductions)


def _check_factors(op: str, definition: Definition) -> None:
    named = (*definition.whole, *definition.expandable, *definition.reductions)
    if named and definition.rule == ELEMENTWISE:
        raise OptionError(
            f"op '{op}' is elementwise and names factor '{named[0]}'; write the rule with names"
        )
    if isinstance(definition.rule, str):
        known = dict.fromkeys(re.findall(r"\w+", definition.rule))
        for factor in named:
            if factor not in known:
                raise OptionError(
                    f"op '{op}' names factor '{factor}', which its rule '{definition.rule}' lacks"
                    f"{nearest(str(factor), known)}; factors: {listing(known)}"
                )
    if definition.expandable and definition.expand is None:
        raise OptionError(
            f"op '{op}' has expandable= and no expand=; give the expansion that can be split"
        )


def _check_positions(op: str, definition: Definition, indices: tuple[int, ...]) -> None:
    least = definition.operands[0]
    for what, positions in (("linear=", sum(definition.linear, ())), ("indices=", indices)):
        for position in positions:
            if not isinstance(position, int) or not 0 <= position < least:
                raise OptionError(
                    f"op '{op}' has no operand {position!r}, which {what} names; its operands are "
                    f"numbered from 0 to {least - 1}"
                )


__all__ = ["define_op"]
