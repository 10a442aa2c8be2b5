"""Writes a region as a function, and what makes kernels of it."""

from __future__ import annotations

from collections.abc import Iterable

from mithril.spi import Node, Value

from mithril_torch.kernels import EXPRESSIONS
from mithril_torch.program.regions import Region, find_dependents


def write_region(name: str, region: Region) -> list[str]:
    """Return the lines of the function of a region.

    Args:
        name: of the function.
        region: what it computes.
    """
    body = region.body
    names: dict[Value, str] = {value: f"x{i}" for i, value in enumerate(body.inputs)}
    lines = [f"def {name}({', '.join(names.values())}):"]

    def write(nodes: Iterable[Node]) -> None:
        for node in nodes:
            operands = [names[value] for value in node.inputs]
            made = [names.setdefault(value, f"v{len(names)}") for value in node.outputs]
            text = EXPRESSIONS[node.op.name](node.op, [value.type for value in node.inputs])
            lines.append(f"    {', '.join(made)} = {text.format(*operands)}")

    results = list(body.outputs.values())
    if region.over is None:
        write(body.nodes)
    else:  # what reads the first result reads it where it is written, so that it is nowhere else
        first, after = results.pop(0), find_dependents(body, body.outputs["0"])
        write(node for node in body.nodes if node not in after)
        lines.append(f"    x{region.over}.copy_({names[first]})")
        names[first] = names[body.inputs[region.over]]
        write(node for node in body.nodes if node in after)
    lines.append(f"    return ({''.join(f'{names[result]}, ' for result in results)})")
    over = "" if region.over is None else f", over={region.over}"
    return [*lines, f"{name} = compile_region({name}{over})"]


__all__ = ["write_region"]
