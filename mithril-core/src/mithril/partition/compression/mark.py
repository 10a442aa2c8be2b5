"""Marks in the joint graph the gradients that are to be compressed."""

from __future__ import annotations

from collections.abc import Mapping

from mithril.ir import Builder, Graph, Phase, Tensor
from mithril.ops.compression import MarkGradient
from mithril.partition.compression.asked import Compression
from mithril.plan.names import gradient_of


def mark_gradients(joint: Graph, parameters: Mapping[str, str], asked: Compression) -> Graph:
    """Return the joint graph with a mark behind each gradient that is to be compressed.

    Args:
        joint: by `differentiate`.
        parameters: the trained ones, each with the name that patterns know it by.
        asked: how gradients travel.
    """
    builder = Builder.extending(joint)
    results = {name: Tensor(builder, value) for name, value in joint.outputs.items()}
    producers = joint.producers()
    for name, known in parameters.items():
        output = gradient_of(name)
        if output not in results or asked.find(known) is None:
            continue
        maker = producers.get(results[output].value)
        scope, source = (maker.scope, maker.source) if maker is not None else ("", None)
        with builder.at(scope=scope, source=source, phase=Phase.backward):
            (results[output],) = builder.apply(MarkGradient(known), results[output])
    return builder.build(results)
