"""Kernels that users and plugins give ops of the core on a backend that exists.

`define_kernel` keeps an op's meaning: shapes, gradient, sharding rule and price stay the core's.
Plans that are made for the backend afterwards run another op in its place, a `KernelOp` of the same
attributes, which has the one kernel; so a plan shows, by the op's name, whose kernel runs. Engines
take it for what it is, an op of a user's: their own ways to fuse the op, or to have it write into
memory that is given, do not apply to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from typing import Any, ClassVar

from mithril.errors import OptionError, kind_of, nearest
from mithril.ir.constant import Constant
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register, registry
from mithril.ir.rule import Rule
from mithril.keywords import checked_keywords
from mithril.ops.custom import find_origin
from mithril.ops.definition import Definition, Part, UserOp

OWN = "own"
"""The namespace of kernels that no plugin brings."""
_CHOSEN: dict[tuple[str, str], type[KernelOp]] = {}
"""What runs in the place of an op of the core, by backend and the op's name."""


class KernelOp(UserOp):
    """An op of the core with a kernel of somebody else's; it means what that op means."""

    of: ClassVar[type[Op]]
    """The op of the core."""
    by: ClassVar[str]
    """Who brings the kernel."""
    is_own: ClassVar[bool]
    """Whether it is of a user, not of a plugin."""

    def __post_init__(self) -> None:
        """Leave the attributes as they are: the op of the core has checked them."""

    def _make_original(self) -> Op:
        return self.of(**self.attributes)

    def infer(self, inputs: Types) -> Types:
        """Return the types of the results."""
        return self._make_original().infer(inputs)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        """Return the sharding rule."""
        return self._make_original().rule(inputs, outputs)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        """Return the cotangents of the operands."""
        return self._make_original().gradient(inputs, outputs, cotangents)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        """Return the work."""
        return self._make_original().cost(inputs, outputs)

    def expand(self, inputs: Tensors) -> Tensors | None:
        """Return the results computed from smaller ops, or None."""
        return self._make_original().expand(inputs)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        """Emit the op on one shard."""
        return self._make_original().localize(inputs, shard)


@checked_keywords()
def define_kernel(op: str, *, backend: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that gives an op of the core a kernel of your own on a backend.

    Shapes, gradient, sharding and price stay the core's; plans that are made for the backend from
    now on run the function. It takes the operands by position, arrays of the backend's framework,
    and the op's attributes by name, sees the parts that a device has, and returns new arrays, one
    for each result. Results are checked at each call. Plans print the op as `own.NAME`. Running the
    same definition again replaces the kernel; `remove_kernel` takes it back.

    Args:
        op: the op's name, as plans print it; docs/plugins/ops.md lists them.
        backend: the backend's name.

    Raises:
        OptionError: there is no such op, it cannot have another kernel, or it has one of somebody
            else's on this backend.

    >>> import mithril as ml
    >>> import numpy as np
    >>> @define_kernel("relu", backend="numpy")
    ... def clip(x):
    ...     return np.clip(x, 0, None)
    >>> relu = ml.compile(ml.Relu(), ml.NumpyBackend(), inference=True)
    >>> [node.op.name for node in relu.plan_for({"input": (2,)}).stages[0].program.graph.nodes]
    ['own.relu']
    >>> remove_kernel("relu", backend="numpy")
    """
    origin = find_origin(sys._getframe(2))

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        add_kernel(op, backend, function, OWN, origin)
        return function

    return define


def remove_kernel(op: str, *, backend: str) -> None:
    """Take a kernel of your own, or a plugin's, back: plans made from now on run the backend's.

    Args:
        op: the op's name.
        backend: the backend's name.

    Raises:
        OptionError: the op has no such kernel.
    """
    if _CHOSEN.pop((backend, op), None) is None:
        known = [name for of, name in _CHOSEN if of == backend]
        raise OptionError(
            f"op '{op}' has no kernel on backend '{backend}' that is not the backend's own; there "
            f"is nothing to take back{nearest(op, known)}"
        )


def add_kernel(
    op: str, backend: str, function: Callable[..., Any], namespace: str, origin: str
) -> None:
    """Give an op of the core a kernel on a backend; `define_kernel` says what that means.

    Args:
        op: the op's name.
        backend: the backend's name.
        function: the kernel.
        namespace: of the plugin that brings it; plans print `NAMESPACE.NAME`.
        origin: who defines it, for messages; the same origin may define it again.

    Raises:
        OptionError: as `define_kernel` does.
    """
    op_class = check_op(op)
    if not callable(function):
        raise OptionError(
            f"kernel of op '{op}' on backend '{backend}' is {kind_of(function)}; give a function"
        )
    taken, is_own = _CHOSEN.get((backend, op)), namespace == OWN
    if taken is not None and taken.is_own and not is_own:
        return  # what a user defines stands before what plugins bring
    if taken is not None and taken.is_own == is_own and taken.by != origin:
        raise OptionError(
            f"op '{op}' has a kernel on backend '{backend}' by {taken.by} already, and {origin} "
            f"brings another; remove one of them"
            + ("" if is_own else ", or name in MITHRIL_PLUGINS all plugins but one of these")
        )
    _CHOSEN[backend, op] = register(_make_class(op_class, backend, function, namespace, origin))


def choose_op(op: Op, backend: str) -> Op:
    """Return what runs in the place of an op on a backend: by default the op."""
    chosen = _CHOSEN.get((backend, op.name))
    return op if chosen is None else chosen(**op.attributes)


def list_kernels(backend: str) -> Mapping[str, str]:
    """Return who brings a kernel of somebody else's on a backend, by the name of the op."""
    return {name: chosen.by for (of, name), chosen in _CHOSEN.items() if of == backend}


def check_op(name: str) -> type[Op]:
    """Return the class of an op that may have another kernel.

    Args:
        name: of the op.

    Raises:
        OptionError: there is no such op, or it cannot have another kernel.
    """
    import mithril.ops  # noqa: F401 - fills the registry

    op_class = registry().get(name)
    if op_class is None:
        raise OptionError(
            f"op '{name}' does not exist{nearest(name, registry())}; plans print the names of ops"
        )
    if issubclass(op_class, UserOp):
        raise OptionError(
            f"op '{name}' is defined by {op_class.origin}, which gives it its kernels; add one to "
            f"its define_op"
        )
    special = op_class.is_collective or not op_class.has_kernel or op_class.overwrites
    has_bodies = op_class.bodies is not Op.bodies
    if special or has_bodies or issubclass(op_class, Constant):
        raise OptionError(
            f"op '{name}' cannot have another kernel: it exchanges data, runs other ops, or writes "
            f"into memory that is given up, which engines do themselves; choose another op"
        )
    return op_class


def _make_class(
    op_class: type[Op], backend: str, function: Callable[..., Any], namespace: str, origin: str
) -> type[KernelOp]:
    """Return the class of the op that has the kernel; it has the kernels of its namespace."""
    name = f"{namespace}.{op_class.name}"
    before = registry().get(name)
    kernels = dict(before.definition.kernels) if before and issubclass(before, KernelOp) else {}
    definition = Definition(
        shapes=Part(op_class.infer),
        rule=Part(op_class.rule),
        kernels={**kernels, backend: function},
        expand=None,
        gradient=None,
        flops=None,
        kinds={},
        operands=(0, None),
    )
    members = [
        (item.name, item.type, field(default=item.default, default_factory=item.default_factory))
        for item in fields(op_class)
    ]
    made = make_dataclass(
        f"{namespace.title()}{op_class.__name__}",
        members,
        bases=(KernelOp,),
        namespace={
            "__doc__": f"The op '{op_class.name}' with a kernel by {origin}.",
            "name": name,
            "definition": definition,
            "of": op_class,
            "indices": op_class.indices,
            "is_product": op_class.is_product,
            "by": origin,
            "is_own": namespace == OWN,
            "origin": f"kernels of '{namespace}'",
        },
        frozen=True,
    )
    made.__module__ = origin
    return made


__all__ = ["define_kernel", "remove_kernel"]
