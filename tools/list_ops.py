"""Writes `docs/plugins/ops.md`: what every op is given, gives and expands into.

python tools/list_ops.py           # writes the page
python tools/list_ops.py --check   # fails if the page is not what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path

from mithril.engine.standard import EXTENSIONS, SHARED_KERNELS
from mithril.errors import MithrilError
from mithril.ir import Builder, Op
from mithril.spi import ops
from mithril.testing.cases import CASES, Case
from mithril.testing.needed import list_layers_with
from mithril.types import DType, TensorType, as_dtype

PAGE = Path(__file__).parent.parent / "docs" / "plugins" / "ops.md"
GROUPS = {
    "booleans": (DType.bool_,),
    "integers": (DType.int32, DType.uint8, DType.int64),
    "floats": (DType.float32, DType.float16, DType.float64),
}
BY_CORE = {
    "checkpoint": "taken out before programs are lowered",
    "constant": "",
    "constrain": "taken out before programs are lowered",
    "repeat": "a loop: what runs a program runs its body",
    "start": "begins a collective; `join_starts` takes pairs out for engines that have none",
    "wait": "ends what a `start` begins",
}
OPENING = """# The ops

Written by `python tools/list_ops.py` from the ops; `help(mithril.spi.ops.Softmax)` has all of each.
A backend registers kernels by class, `table.register(ops.Softmax)`, and names them in messages by
name, `softmax`. An engine without a kernel for an op that has an expansion runs that; of the others,
the *primitive* ones, it needs a kernel for what its users run. The shared kernels,
`bind_namespace(xp)`, are there for all primitive ops on the Python array API standard; those marked
with † need its extension `linalg`.

Results have the dtype of the operands where no other stands behind an arrow. *Layers* are those whose programs,
forward or backward, have the op before anything is expanded.
"""


def write_page() -> str:
    """Return the text of the page."""
    parts = [OPENING]
    for module, found in _group().items():
        title = (import_module(module).__doc__ or "").partition("\n")[0].rstrip(".")
        head = "| op | what it computes | operands | attributes | dtypes | expands into | layers |"
        rows = [_row(op) for op in found]
        parts.append(
            f"## {title}\n\n{head}\n|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


def _group() -> dict[str, list[type[Op]]]:
    """Return the ops by the module that they are of, in the order in which they are offered."""
    found: dict[str, list[type[Op]]] = {}
    offered = [getattr(ops, name) for name in ops.__all__]
    classes = [x for x in offered if inspect.isclass(x) and issubclass(x, Op) and x.name]
    for op in sorted(classes, key=lambda op: (op.__module__, inspect.getsourcelines(op)[1])):
        found.setdefault(op.__module__, []).append(op)
    return found


def _row(op: type[Op]) -> str:
    text = re.sub(r"; operands \((?:[^()]|\([^()]*\))*\)", "", _first_paragraph(op))
    text = f"{text} {_edge(op)}".rstrip()
    mark = " †" if op.name in EXTENSIONS else ""
    cells = (
        f"`{op.name}`{mark}<br>`{op.__name__}`", text, _operands(op), _attributes(op), _dtypes(op),
        _expansion(op), ", ".join(list_layers_with(op.name)),
    )  # fmt: skip
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(cell: str) -> str:
    """Return a cell whose bars and, outside of code, stars are no markup."""
    parts = cell.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def _attributes(op: type[Op]) -> str:
    """Return the fields with their types, and the defaults that say something."""
    return ", ".join(
        f"`{field.name}: {field.type}{_default(field.default)}`"
        for field in fields(op)
        if not field.name.startswith("_")
    )


def _default(value: object) -> str:
    plain = value is not MISSING and isinstance(value, bool | int | float | str | tuple)
    return f" = {value!r}" if plain else ""


def _operands(op: type[Op]) -> str:
    """Return the names of the operands: those that the op's text gives, else letters."""
    said = _said_operands(op) or _said_operands(getattr(ops, _plain(op.__name__), op))
    if said:
        return f"`{said}`"
    case = _case_of(op)
    if case is None or issubclass(op, ops.Collective):
        return "any number of tensors" if issubclass(op, ops.Collective) else ""
    return ", ".join(f"`{letter}`" for letter in "xyzabcdefg"[: len(case.arrays)])


def _said_operands(op: type[Op]) -> str:
    inside = r"\(((?:[^()]|\([^()]*\))*)\)"
    text = " ".join((inspect.getdoc(op) or "").split())
    found = re.search(rf"[Oo]perands {inside}", text)
    found = found or re.search(r"[;:] [^;]*\(([^()]*)\)\.$", _first_paragraph(op))
    return found[1] if found else ""


def _first_paragraph(op: type[Op]) -> str:
    return " ".join((inspect.getdoc(op) or "").partition("\n\n")[0].split())


def _edge(op: type[Op]) -> str:
    """Return what an op's text says of operands at the edge."""
    paragraphs = (" ".join(part.split()) for part in (inspect.getdoc(op) or "").split("\n\n"))
    return next((part for part in paragraphs if part.startswith("At the edge: ")), "")


def _case_of(op: type[Op]) -> Case | None:
    """Return an example of an op: the first case; attention that splits sequences has none itself."""
    like = getattr(ops, _plain(op.__name__))
    case = next((case for case in CASES if case.op.name == like.name), None)
    if case is None or like is op:
        return case
    made = op(**{field.name: getattr(case.op, field.name) for field in fields(op)})
    return Case(made, case.arrays, case.number)


def _plain(name: str) -> str:
    """Return the name of the attention that an op is where no sequence is split."""
    found = re.fullmatch(r"(?:Ring|Ulysses|AllGather)(Attention\w*)", name)
    return found[1] if found else name


def _dtypes(op: type[Op]) -> str:
    """Return which dtypes operands may have, and those of results where they are others.

    The operands that have the dtype of the first one of floats, if there is one, are given others.
    """
    case = _case_of(op)
    if case is None:
        return ""
    has_own = any(field.name == "dtype" for field in fields(op))
    types = [TensorType(x.shape, as_dtype(x.dtype)) for x in case.arrays]
    varied = next((t.dtype for t in types if t.dtype.is_float), types[0].dtype if types else None)
    accepted = {group: _try(case.op, types, varied, dtypes) for group, dtypes in GROUPS.items()}
    others = dict.fromkeys(str(type.dtype) for type in types if type.dtype != varied)
    beside = f"; beside {', '.join(others)}" if others else ""
    made = [_say(group, results, has_own) for group, results in accepted.items() if results]
    if not made and types:
        results = ", ".join(str(result.dtype) for result in case.op.infer(types))
        return f"{varied} → {results}{beside}"
    return (", ".join(made) + beside + ("; → `dtype`" if has_own else "")).removeprefix("; ")


def _say(group: str, results: dict[DType, tuple[str, ...]], has_own: bool) -> str:
    """Return what a group of dtypes gives: only those that give something else are told of."""
    if has_own or all(set(made) == {str(dtype)} for dtype, made in results.items()):
        return group
    found = {tuple("same" if x == dtype else x for x in made) for dtype, made in results.items()}
    if len(found) == 1:
        return f"{group} → {', '.join(found.pop())}"
    rows = (
        f"{dtype} → {', '.join(made)}"
        for dtype, made in results.items()
        if set(made) != {str(dtype)}
    )
    return f"{group} ({'; '.join(rows)})"


def _try(
    op: Op, types: Sequence[TensorType], varied: DType | None, dtypes: Sequence[DType]
) -> dict[DType, tuple[str, ...]]:
    """Return the dtypes of the results by that of the operands; none where one is refused."""
    found = {}
    for dtype in dtypes:
        given = [TensorType(t.shape, dtype if t.dtype == varied else t.dtype) for t in types]
        try:
            found[dtype] = tuple(str(result.dtype) for result in op.infer(given))
        except MithrilError:
            return {}
    return found if types else {}


def _expansion(op: type[Op]) -> str:
    """Return the ops that the first case is expanded into, or what else runs it."""
    if BY_CORE.get(op.name):
        return BY_CORE[op.name]
    if op.is_collective or op.name == "axis_index":
        return "carried out by the engine or its executor"
    case = _case_of(op)
    if op.expand is Op.expand or case is None:
        return "" if op.name in SHARED_KERNELS else "optional: kernels of engines that have them"
    builder = Builder()
    operands = [
        builder.input(TensorType(x.shape, as_dtype(x.dtype)), f"x{number}")
        for number, x in enumerate(case.arrays)
    ]
    made = case.op.expand(operands)
    graph = builder.build({f"y{number}": y for number, y in enumerate(made or ())})
    return ", ".join(f"`{name}`" for name in dict.fromkeys(_names(graph.nodes)))


def _names(nodes: Sequence[object]) -> Iterator[str]:
    yield from (node.op.name for node in nodes)  # type: ignore[attr-defined]


def main(arguments: list[str]) -> int:
    """Write the page, or say that it is not up to date."""
    text = write_page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if not is_current:
        print(f"{PAGE.name} is not up to date; run python tools/list_ops.py")
    return int(not is_current)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
