"""Names of variables and comments of a generated program, and descriptions of its steps."""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Iterator

from mithril.spi import GRADIENT_PREFIX, Mesh, Node, Port, carry, describe_collective

from mithril_torch.program import runtime_library

_PARTS = {
    n
    for n, x in vars(runtime_library).items()
    if getattr(x, "__package__", "") == runtime_library.__name__
}
_RESERVED = {
    *dir(runtime_library), *dir(builtins), *keyword.kwlist, "device", "given", "inputs", "rank",
    "run", "sends", "step",
}  # fmt: skip
_RESERVED -= {*_PARTS, "input"}
_GENERATED = re.compile(
    r"(v|c|i|flat|work|body|user|group|index|stack|made|stage|number|coming|sent)_?\d.*"
)


class Names:
    """Gives out names of variables, each once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def reserve(self, wanted: str, number: int) -> str:
        """Return a name like the one of a value, with a number where another has it already.

        >>> names = Names()
        >>> [names.reserve(name, 2) for name in ("linear_0.weight", "linear_0.weight", "in")]
        ['linear_0_weight', 'linear_0_weight_2', 'in_']
        """
        # Python reads identifiers in this form: two that differ otherwise are the same to it.
        normal = unicodedata.normalize("NFKC", wanted)
        name = "".join(char if f"_{char}".isidentifier() else "_" for char in normal) or "_"
        if not name[0].isidentifier():
            name = f"x_{name}"
        if name in _RESERVED or _GENERATED.fullmatch(name):
            name = f"{name}_"
        if name in self._used:
            name = f"{name.rstrip('_')}_{number}"
        while name in self._used:
            name += "_"
        self._used.add(name)
        return name


def port_comment(port: Port, mesh: Mesh) -> str:
    """Return a port's type, and how it lies on the mesh: `float32[8, 5], P('data', None)`."""
    if not any(port.sharding.dims):
        return str(port.type)
    local = list(carry(port.sharding, mesh).local_shape(port.type.shape))
    return f"{port.type}, {port.sharding.spec!r}: {local} here"


def cause_comment(node: Node, mesh: Mesh) -> Iterator[str]:
    """Yield what a collective is there for."""
    if node.cause is not None:
        yield comment(describe_cause(node, mesh))


def describe_cause(node: Node, mesh: Mesh) -> str:
    """Return a collective with its cause."""
    kind, axes, _ = describe_collective(node, mesh)
    what = f"{kind} over {' x '.join(axes)}"
    if (cause := node.cause) is None:
        return what
    return f"{what}: {cause.value}, {cause.produced} -> {cause.required} for {cause.consumer}"


def layer_of(node: Node) -> str:
    """Return what part of a program a node belongs to: `backward: linear_0 (train.py:3)`."""
    where = f"{node.phase.value}: {node.scope}" if node.scope else node.phase.value
    return f"{where} ({node.source})" if node.source else where


def describe_node(node: Node, mesh: Mesh) -> str:
    """Return what a node is, for messages: `all_reduce over 'data' at 'linear_0' (train.py:3)`."""
    what, over = node.op.name, ""
    if node.op.is_collective:
        what, axes, _ = describe_collective(node, mesh)
        over = f" over {', '.join(map(repr, axes))}"
    if node.cause is not None and node.cause.parts:
        first, *_, last = (part.removeprefix(GRADIENT_PREFIX) for part in node.cause.parts)
        over += f" of {node.cause.value}, '{first}' to '{last}'"
    where = node.where()
    return f"{what}{over}" + ("" if where.startswith("op ") else f" at {where}")


def comment(text: str) -> str:
    """Return a comment, whatever a user's names are made of.

    >>> comment("layer\\nimport os\\0")
    '# layer import os\\\\x00'
    """
    shown = (char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(text.split()))
    return f"# {''.join(shown)}"


def one_a_line(head: str, entries: list[tuple[str, str]], tail: str) -> Iterator[str]:
    """Yield a list or tuple, one entry with its comment a line.

    >>> print(*one_a_line("return [", [("loss", "float32[]")], "]"), sep="\\n")
    return [
        loss,  # float32[]
    ]
    """
    yield head
    yield from (f"    {name},  {comment(said)}" for name, said in entries)
    yield tail
