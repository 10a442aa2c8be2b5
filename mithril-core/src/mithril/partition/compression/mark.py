"""Marks in the joint graph the gradients that are to be compressed."""

from __future__ import annotations

from collections.abc import Mapping

from mithril.ir import Builder, Graph, Phase, Tensor
from mithril.ops.compression import MarkGradient
from mithril.partition.compression.asked import Compression
from mithril.plan.names import gradient_of


def mark_gradients(
    joint: Graph,
    parameters: Mapping[str, str],
    asked: Compression,
    stacked: Mapping[str, int] | None = None,
) -> Graph:
    """Return the joint graph with a mark behind each gradient that is to be compressed.

    Args:
        joint: by `differentiate`.
        parameters: the trained ones, each with the name that patterns know it by.
        asked: how gradients travel.
        stacked: how many leading dimensions of a parameter only stack layers, by the known name.
    """
    builder = Builder.extending(joint)
    results = {name: Tensor(builder, value) for name, value in joint.outputs.items()}
    producers = joint.producers()
    for name, known in parameters.items():
        output = gradient_of(name)
        form = asked.find(known)
        if output not in results or form is None:
            continue
        mark = MarkGradient(known, name, (stacked or {}).get(known, 0), form.keeps_state)
        maker = producers.get(results[output].value)
        scope, source = (maker.scope, maker.source) if maker is not None else ("", None)
        with builder.at(scope=scope, source=source, phase=Phase.backward):
            (results[output],) = builder.apply(mark, results[output])
    return builder.build(results)
