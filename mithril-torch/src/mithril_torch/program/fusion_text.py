"""Writes a fusion as a function, and what makes kernels of it."""

from __future__ import annotations

from collections.abc import Iterable

from mithril.spi import Node, Value

from mithril_torch.kernels import EXPRESSIONS
from mithril_torch.program.fusions import Fusion, find_dependents


def write_fusion(name: str, fusion: Fusion) -> list[str]:
    """Return the lines of the function of a fusion.

    Args:
        name: of the function.
        fusion: what it computes.
    """
    body = fusion.body
    names: dict[Value, str] = {value: f"x{i}" for i, value in enumerate(body.inputs)}
    lines = [f"def {name}({', '.join(names.values())}):"]

    def write(nodes: Iterable[Node]) -> None:
        for node in nodes:
            operands = [names[value] for value in node.inputs]
            made = [names.setdefault(value, f"v{len(names)}") for value in node.outputs]
            text = EXPRESSIONS[node.op.name](node.op, [value.type for value in node.inputs])
            lines.append(f"    {', '.join(made)} = {text.format(*operands)}")

    results = list(body.outputs.values())
    if fusion.over is None:
        write(body.nodes)
    else:  # what reads the first result reads it where it is written, so that it is nowhere else
        first, after = results.pop(0), find_dependents(body, body.outputs["0"])
        write(node for node in body.nodes if node not in after)
        lines.append(f"    x{fusion.over}.copy_({names[first]})")
        names[first] = names[body.inputs[fusion.over]]
        write(node for node in body.nodes if node in after)
    turned = fusion.turned
    own = (f"{names[x]}.contiguous(), " if x in turned else f"{names[x]}, " for x in results)
    lines.append(f"    return ({''.join(own)})")
    over = "" if fusion.over is None else f", over={fusion.over}"
    return [*lines, f"{name} = compile_fusion({name}{over})"]


__all__ = ["write_fusion"]
