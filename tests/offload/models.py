"""Models that keep much for the backward, and how their gradients are taken."""

from __future__ import annotations

import mithril as ml
import numpy as np

ROWS, WIDTH, DEPTH = 2048, 64, 8
SEED = {"loss": np.ones((), np.float32)}


def layers(depth: int = DEPTH) -> ml.Model:
    """Linear layers with an activation behind each."""
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="x", output="h")
    for number in range(depth):
        model += ml.Linear(WIDTH, name=f"line_{number}")
        model += ml.Tanh(name=f"act_{number}")
    return add_loss(model)


def loop() -> ml.Model:
    """A block that is repeated."""
    block = ml.Model()
    block |= ml.Linear(2 * WIDTH, name="up")(input="x", output="u")
    block += ml.Gelu(name="act")
    block += ml.Dropout(0.2, name="drop")
    block += ml.Linear(WIDTH, name="down")(output="d")
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="x", output="h")
    model += ml.Repeat(block, DEPTH, name="blocks")
    return add_loss(model)


def pipeline() -> ml.Model:
    """Two stages, in which micro-batches are in flight."""

    def stage(name: str) -> ml.Model:
        model = ml.Model()
        model |= ml.Linear(WIDTH, name=f"{name}_line")(input="x", output="h")
        model += ml.Gelu(name=f"{name}_act")
        model += ml.Linear(WIDTH, name=f"{name}_out")(output="y")
        return model

    model = ml.Model()
    model |= ml.Pipeline([stage("one"), stage("two")], microbatch_size=512)(input="x", output="y")
    return add_loss(model)


def add_loss(model: ml.Model) -> ml.Model:
    model += ml.MeanSquaredError(name="end")(target="t", output="loss")
    return model


def train_uneven_stages(backend: ml.Backend) -> list[float]:
    """Return losses of two stages whose optimiser's state waits on the host, cut unevenly."""
    model = ml.Model()
    model |= ml.Linear(7, name="one", bias=False)(input="x", output="h")
    model |= ml.Linear(3, name="two", bias=False)(input="h", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    for name, stage in {"one": 0, "two": 1, "end": 1}.items():
        model.stage(name, stage)
    shapes = {n: ml.TensorSpec((8, k), sharding=ml.P("data")) for n, k in (("x", 5), ("t", 3))}
    step = ml.train_step(
        model, backend, ml.optim.sgd(0.1, momentum=0.9), shapes=shapes, zero=1,
        pipeline=ml.PipelineOptions(microbatch_size=2), offload_optimizer=True,
    )  # fmt: skip
    rng, losses = np.random.default_rng(0), []
    state = step.init(seed=0)
    for _ in range(3):
        samples = {n: rng.standard_normal(x.shape).astype(np.float32) for n, x in shapes.items()}
        state, metrics = step(state, samples)
        losses.append(metrics.numbers()["loss"])
    return losses


MODELS = {"layers": layers, "deep": lambda: layers(32), "loop": loop, "pipeline": pipeline}


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for name in ("x", "t")}


def compile_model(name: str, backend: ml.Backend, **options: object) -> ml.CompiledModel:
    return ml.compile(MODELS[name](), backend, outputs=["loss"], **options)


def take_gradients(compiled: ml.CompiledModel) -> dict[str, np.ndarray]:
    """Return the loss and all gradients."""
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, batch(), output_gradients=SEED, seed=3)
    return {name: x.numpy() for name, x in {**outputs, **gradients}.items()}
