"""Random graphs of layers on devices, and what goes into them."""

from __future__ import annotations

import mithril as ml
import numpy as np
from hypothesis import strategies as st

from tests.pipeline.models import FEATURES

SHARED = ml.Linear(FEATURES, device_id=0, name="shared")


@st.composite
def graphs(draw: st.DrawFn) -> ml.Model:
    """Return a model of layers with random connections, on random devices or on none."""
    devices = st.one_of(st.none(), st.integers(0, 1))
    model, wires = ml.Model(), ["a", "b"]
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["linear", "relu", "add", "dropout", "shared"]))
        device = draw(devices)
        source, output = draw(st.sampled_from(wires)), f"w{number}"
        if kind == "add":
            both = [source, draw(st.sampled_from(wires))]
            model |= ml.Add(device_id=device)(inputs=both, output=output)
        elif kind == "shared":
            if number == 0:
                continue
            model |= SHARED(input=source, output=output)
        else:
            made = {
                "linear": lambda d=device: ml.Linear(FEATURES, device_id=d),
                "relu": lambda d=device: ml.Relu(device_id=d),
                "dropout": lambda d=device: ml.Dropout(rate=0.3, device_id=d),
            }[kind]()
            model |= made(input=source, output=output)
        wires.append(output)
    if len(wires) == 2:
        model |= ml.Relu(device_id=1)(input="a", output="only")
    return model


def entering(model: ml.Model) -> dict[str, np.ndarray]:
    """Return the inputs of such a graph, which may not use all of them."""
    values = np.random.default_rng(0).standard_normal((2, 6, FEATURES)).astype(np.float32)
    ports = model.snapshot().input_ports
    return {n: x for n, x in zip(("a", "b"), values, strict=True) if n in ports}
