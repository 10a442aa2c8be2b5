"""The sides of the benchmark of training on MLX: one device."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mlx.core as mx
from mlx import optimizers

from benchmarks import mlx_by_hand
from benchmarks.sides import INPUTS, Functions
from benchmarks.training_cases import DECAY, RATE, Case, Ours, check

COMPILED = "mlx.optimizers, mx.compile"


def contestants(case: Case) -> Functions:
    """Return both sides; by hand, loss, gradients and update are one compiled function."""
    ours = Ours(ml.MLXBackend(device="cpu"), case)
    params = {name: mx.array(x) for name, x in ours.parameters().items()}
    inputs = tuple(mx.array(case.data()[name]) for name in INPUTS)
    optimizer = optimizers.AdamW(RATE, weight_decay=DECAY, bias_correction=True)
    optimizer.init(params)
    loss_of = (mlx_by_hand.llama if case.key_heads else mlx_by_hand.gpt)(case.sizes.heads)
    gradients_of = mlx_by_hand.step(loss_of)

    def update(params: Any, *inputs: mx.array) -> tuple[mx.array, Any]:
        loss, gradients = gradients_of(params, *inputs)
        return loss, optimizer.apply_gradients(gradients, params)

    kept = [optimizer.state]
    run, state = mx.compile(update, inputs=kept, outputs=kept), [params]

    def by_hand() -> mx.array:
        loss, state[0] = run(state[0], *inputs)
        mx.eval(loss, state, optimizer.state)
        return loss

    def mithril() -> object:
        metrics = ours.step()
        mx.eval([x.shards for x in ours.state.params.values()])
        return metrics

    check(ours.loss, lambda: by_hand().item(), COMPILED)
    return {"mithril": mithril, COMPILED: by_hand}
