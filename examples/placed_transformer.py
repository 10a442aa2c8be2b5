"""A transformer whose layers are placed on devices one by one, with `device_id`.

    python examples/placed_transformer.py --backend torch --devices 4

Attention of a block runs on one device and its feed-forward layer on the next; additions and norms
need no placement, they run where what they read was made. The plan shows what is sent and why.
"""

from __future__ import annotations

import argparse

import mithril as ml
import numpy as np

VOCABULARY, WIDTH, HEADS, HIDDEN = 128, 32, 4, 64
BATCH, CONTEXT, LAYERS = 4, 16, 4


def block(layer: int, device: int, devices: int) -> ml.Model:
    """Return a block on a device and the next one."""
    start, end = f"layer{layer}_input", f"layer{layer}_output"
    model = ml.Model(name=f"block_{layer}")
    model |= ml.MultiHeadAttention(num_heads=HEADS, causal=True, device_id=device)(
        input=start, output="mixed"
    )
    model += ml.Add()(inputs=[start, "mixed"], output="first")
    model += ml.LayerNorm()(input="first", output="normed")
    model += ml.FeedForward(HIDDEN, device_id=(device + 1) % devices)(
        input="normed", output="changed"
    )
    model += ml.Add()(inputs=["normed", "changed"], output="second")
    model += ml.LayerNorm()(input="second", output=end)
    return model


def transformer(devices: int) -> ml.Model:
    """Return the whole: the table on the first device, the head on the last."""
    model = ml.Model()
    model |= ml.Embedding(VOCABULARY, WIDTH, device_id=0)(input="input", output="embedding")
    model += ml.PositionalEncoding(max_len=CONTEXT, device_id=0)(output="layer0")
    for layer in range(LAYERS):
        wires = {
            f"layer{layer}_input": f"layer{layer}",
            f"layer{layer}_output": f"layer{layer + 1}",
        }
        model |= block(layer, layer % devices, devices)(**wires)
    model += ml.Linear(VOCABULARY, device_id=devices - 1)(input=f"layer{LAYERS}", output="logits")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--devices", type=int, default=4)
    given = parser.parse_args()
    backend = ml.open_backend(given.backend, given.devices)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, CONTEXT)).astype(np.int32)
    compiled = ml.compile(transformer(given.devices), backend)
    params = compiled.get_parameters()
    outputs = compiled.evaluate(params, {"input": ids})
    print(f"logits {outputs['logits'].shape}, mean {outputs['logits'].mean().item():.5f}")
    for device, held in compiled.get_partition_map()["devices"].items():
        print(f"device {device}: {len(held['layers'])} layers, {held['bytes']} bytes of parameters")
    sent = compiled.plan.bytes_by_axis()["send"]
    print(f"{sent} bytes sent from device to device")


if __name__ == "__main__":
    main()
