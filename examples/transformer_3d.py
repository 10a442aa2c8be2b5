"""A transformer over data, tensor and pipeline at once, in the style of the guides.

    python examples/transformer_3d.py --backend numpy --mesh 4,2,2
    python examples/transformer_3d.py --backend torch --mesh 2,2,2 --schedule gpipe

Two stages of blocks: every layer says with `weight_shard_spec` over which mesh dimensions its
weights are split, and the pipeline goes along the third. Parameters, gradients and the loss of each
step are those of one device, whatever the mesh and the schedule.
"""

from __future__ import annotations

import argparse

import mithril as ml
import numpy as np

VOCABULARY, WIDTH, HEADS, HIDDEN = 128, 32, 4, 64
BATCH, CONTEXT, LAYERS, STAGES = 32, 16, 4, 2


def block(layer: int, mesh: tuple[int, int, int]) -> ml.Model:
    """Return a block whose wires bear the number of its layer."""
    usable = {"device_mesh": (*mesh[:2], 1), "device_mesh_partition": (True, True, False)}
    start, end = f"layer{layer}_input", f"layer{layer}_output"
    model = ml.Model(name=f"block_{layer}")
    model |= ml.MultiHeadAttention(
        num_heads=HEADS, weight_shard_spec=[(0, 1), None, None], causal=True, **usable
    )(input=start, output="mixed")
    model |= ml.Add()(inputs=[start, "mixed"], output="first")
    model |= ml.LayerNorm()(input="first", output="normed")
    model |= ml.FeedForward(HIDDEN, weight_shard_spec=[(0, 1), (1, 0)], **usable)(
        input="normed", output="changed"
    )
    model |= ml.Add()(inputs=["normed", "changed"], output="second")
    model |= ml.LayerNorm()(input="second", output=end)
    return model


def stage(layers: range, mesh: tuple[int, int, int]) -> ml.Model:
    """Return the blocks of a stage, one after another; the first stage starts with the table."""
    usable = {"device_mesh": (*mesh[:2], 1), "device_mesh_partition": (True, True, False)}
    model, wire = ml.Model(), f"layer{layers[0]}_input"
    if layers[0] == 0:
        table = ml.Embedding(VOCABULARY, WIDTH, weight_shard_spec=(0, None), **usable)
        model |= table(input="input", output="embedding")
        model |= ml.PositionalEncoding(max_len=CONTEXT)(input="embedding", output="positions")
        wire = "positions"
    for layer in layers:
        end = f"layer{layer}_output"
        model |= block(layer, mesh)(**{f"layer{layer}_input": wire, end: end})
        wire = end
    if layers[-1] == LAYERS - 1:
        head = ml.Linear(VOCABULARY, weight_shard_spec=(0, 1), **usable)
        model |= head(input=wire, output="logits")
        model |= ml.CrossEntropy()(input="logits", target="targets", output="loss")
    return model


def transformer(mesh: tuple[int, int, int], microbatch_size: int) -> ml.Model:
    """Return the pipeline: two stages along the third mesh dimension."""
    each = LAYERS // STAGES
    stages = [stage(range(each * i, each * (i + 1)), mesh) for i in range(STAGES)]
    pipeline = ml.Pipeline(
        stages, stage_to_mesh_dim=2, microbatch_size=microbatch_size, device_mesh=mesh
    )
    model = ml.Model()
    model |= pipeline(input="input", targets="targets", output="loss")
    return model


def batches(backend: ml.Backend, steps: int) -> list[dict[str, ml.Array]]:
    """Return sequences that count, split over the data dimension only."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(steps):
        first = rng.integers(0, VOCABULARY, (BATCH, 1))
        whole = ((first + np.arange(CONTEXT + 1)) % VOCABULARY).astype(np.int32)
        given = {"input": whole[:, :-1], "targets": whole[:, 1:]}
        split = {"device_mesh": backend.mesh.shape, "tensor_split": (0, None, None)}
        alone = backend.mesh.size == 1
        found.append({n: backend.array(x, **({} if alone else split)) for n, x in given.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--mesh", default="4,2,2", help="data, tensor and pipeline")
    parser.add_argument("--schedule", default="gpipe")
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    mesh = tuple(map(int, given.mesh.split(",")))
    data, tensor, pipeline = mesh
    backend = ml.open_backend(
        given.backend,
        None if data * tensor * pipeline == 1 else mesh,
        mesh_axis_names=None if data * tensor * pipeline == 1 else ["data", "tensor", "pipeline"],
    )
    model = transformer((data, tensor, pipeline), microbatch_size=4)
    compiled = ml.compile(model, backend, pipeline_schedule=given.schedule)
    params = compiled.randomize_params()
    update = ml.jit(lambda params, slopes: {n: params[n] - 0.1 * slopes[n] for n in params})
    for step, inputs in enumerate(batches(backend, given.steps)):
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": 1.0}, seed=step)
        params = update(params, gradients)
        print(f"step {step}: loss {outputs['loss'].item():.4f}", flush=True)
    for held in compiled.get_partition_map()["stages"][:2]:
        print(f"{held['name']}: devices {held['devices']}")


if __name__ == "__main__":
    main()
