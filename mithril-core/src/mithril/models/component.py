"""What a model is made of: anything with named inputs and outputs that can be given connections.

Layers and models are components. Calling one with connection names, `layer(input="x", output="y")`,
changes nothing; it returns the component together with its connections, for a model to add. In the
body of a layer a component is called on tensors, and computes with them: see `models/calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from mithril.errors import GraphError, kind_of, listing, nearest
from mithril.ir import Source, Tensor
from mithril.ir.running import running_trace
from mithril.ir.source import at, user_source

Names = tuple[tuple[str, str], ...]
MOST_NESTED = 100
"""Models, and layers that call or repeat others, in each other; passes call themselves for each."""


class Connectable(Protocol):
    """What has ports: a layer, or the snapshot of a model."""

    @property
    def label(self) -> str:
        """What messages call it."""

    @property
    def input_ports(self) -> tuple[str, ...]:
        """Names of the inputs that have to be given."""

    @property
    def optional_ports(self) -> tuple[str, ...]:
        """Names of the inputs that may be left out."""

    @property
    def output_ports(self) -> tuple[str, ...]:
        """Names of the outputs."""

    @property
    def variadic_input(self) -> str | None:
        """Name of the input that takes any number of tensors, if there is one."""


Target = TypeVar("Target", bound=Connectable)
"""A layer, or the snapshot of a model."""


@dataclass(frozen=True, slots=True, eq=False)
class Connected(Generic[Target]):
    """A component with the connections it was called with.

    Args:
        component: a layer, or the snapshot of a model.
        inputs: pairs of input port and connection name, only those given.
        outputs: pairs of output port and connection name, only those given.
        source: the user's line.
    """

    component: Target
    inputs: Names
    outputs: Names
    source: Source | None


class Component(Generic[Target]):
    """Base of layers and models: calling it names its connections."""

    __slots__ = ()

    @overload
    def __call__(self, **connections: str | Sequence[str]) -> Connected[Target]: ...

    @overload
    def __call__(self, *tensors: Any, **named: Any) -> Any: ...

    def __call__(self, *values: Any, **connections: Any) -> Any:
        """Connect inputs and outputs by name: `layer(input="x", output="y")`.

        In the body of a layer, or a function that is traced, called on tensors, it computes with
        them: `layer(x)`.

        Args:
            values: the tensors; a connection without a name is refused.
            connections: for each input and output the name of a connection of the model it is
                added to; an input that takes any number of tensors gets a list of names. Or the
                tensors of inputs, by name.

        Returns:
            The component with its connections, to be added with `|=` or `+=`; or, of tensors, what
            it makes of them: a tensor, or a dict if it has several outputs.

        Raises:
            GraphError: it has no such input or output, or the name is not a connection name; or it
                has parameters and is called in a function.
        """
        if _has_tensors((*values, *connections.values())):
            return self._call_on(values, connections)
        target = self._component()
        if values:
            raise _no_names(target, values[0])
        inputs: list[tuple[str, str]] = []
        outputs: list[tuple[str, str]] = []
        for port, given in connections.items():
            if port == target.variadic_input:
                inputs += _several(target, port, given)
            elif port in (*target.input_ports, *target.optional_ports):
                inputs.append((port, _one(target, port, given)))
            elif port in target.output_ports:
                outputs.append((port, _one(target, port, given)))
            else:
                raise refuse_port(target, port)
        return Connected(target, tuple(inputs), tuple(outputs), user_source())

    def _component(self) -> Target:
        raise NotImplementedError

    def _call_on(self, values: Sequence[object], named: Mapping[str, object]) -> Any:
        """Return what it makes of tensors."""
        raise NotImplementedError


def check_depth(what: str, depth: int, source: Source | None) -> None:
    """Raise if what is nested in a model or layer does not leave room for it.

    Args:
        what: names the model or layer.
        depth: how many models and layers are nested in each other in it.
        source: the user's line.

    Raises:
        GraphError: it does not.
    """
    if depth >= MOST_NESTED:
        raise GraphError(
            f"{what} holds models and layers nested {depth} deep{at(source)}, and {MOST_NESTED} is "
            f"the most with the one around them; add layers to one model instead, or repeat one "
            f"block more often"
        )


def check_name(name: object, what: str) -> str:
    """Return a name given by a user, if it can be one.

    Raises:
        GraphError: it is not a string, is empty, holds a dot, or what cannot be printed.
    """
    if not isinstance(name, str):
        raise GraphError(f"{what} is {name!r}; give a name as a string")
    if not name:
        raise GraphError(f"{what} is empty; give a name")
    check_printable(name, what)
    if "." in name:
        raise GraphError(
            f"{what} '{name}' holds a dot, which separates the parts of a layer's path; write "
            f"'{name.replace('.', '_')}'"
        )
    return name


def check_printable(name: str, what: str) -> None:
    """Raise unless a name can stand in texts, files and generated programs.

    Raises:
        GraphError: it holds a line break, a control character, or half of a character.
    """
    if not name.isprintable():
        raise GraphError(
            f"{what} {name!a} holds a character that cannot be printed; leave it out, as in "
            f"'{''.join(filter(str.isprintable, name))}'"
        )


def number_ports(port: str, count: int) -> tuple[str, ...]:
    """Return the ports of an input that takes any number of tensors.

    >>> number_ports("inputs", 2)
    ('inputs_0', 'inputs_1')
    """
    return tuple(f"{port}_{index}" for index in range(count))


def _several(target: Connectable, port: str, given: object) -> list[tuple[str, str]]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise GraphError(
            f"input '{port}' of {target.label} takes a list of connection names, not {given!r}; "
            f'write {port}=["a", "b"]'
        )
    names = [_one(target, port, name) for name in given]
    return list(zip(number_ports(port, len(names)), names, strict=True))


def _one(target: Connectable, port: str, given: object) -> str:
    # Full paths of unnamed ports ("linear_0.output") are legal for inputs; the model looks them up.
    what = f"connection for '{port}' of {target.label}"
    if isinstance(given, str) and "." in given and port not in target.output_ports:
        check_printable(given, what)
        return given
    if not isinstance(given, str):
        raise GraphError(
            f"{what} is of type {type(given).__name__}; give the name of a connection, and the "
            f'array itself to evaluate(params, {{"name": array}})'
        )
    return check_name(given, what)


def _no_names(target: Connectable, given: object) -> GraphError:
    several = target.variadic_input
    example = [f'{several}=["a", "b"]'] if several else [f'{p}="x"' for p in target.input_ports[:1]]
    example += [f'{port}="y"' for port in target.output_ports[:1]]
    arrays = "" if isinstance(given, str) else "; arrays go to evaluate() of the compiled model"
    return GraphError(
        f"{target.label} is called with {kind_of(given)}; it takes connections by name, such as "
        f"({', '.join(example)}){arrays}"
    )


def refuse_port(target: Connectable, port: str, *, is_given: bool = False) -> GraphError:
    """Return the error for a name that is no input or output, or one that is given already."""
    if is_given:
        return GraphError(f"{target.label} gets input '{port}' twice; give it once")
    variadic = [target.variadic_input] if target.variadic_input else []
    inputs = [*target.input_ports, *target.optional_ports, *variadic]
    known = [*inputs, *target.output_ports]
    return GraphError(
        f"{target.label} has no input or output '{port}'; inputs: {listing(inputs)}; outputs: "
        f"{listing(target.output_ports)}{nearest(port, known)}"
    )


def _has_tensors(given: Sequence[object]) -> bool:
    """Return whether something is called on tensors: in a trace on arrays of values, too."""
    flat = [x for item in given for x in (item if isinstance(item, list | tuple) else (item,))]
    if any(isinstance(x, Tensor) for x in flat):
        return True
    return running_trace() is not None and any(hasattr(x, "shape") for x in flat)
