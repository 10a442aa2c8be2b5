"""A linear layer whose output features are split: each device has its part of weight and bias."""

import mithril as ml
import numpy as np
from mithril import P
from setting import close, line

backend = line()
SPLIT = {"w": P(None, "x"), "b": P("x")}


def init(seed: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "w": 0.1 * rng.standard_normal((inputs, outputs), np.float32),
        "b": np.zeros(outputs, np.float32),
    }


@ml.jit(backend=backend, in_shardings=(SPLIT, P()), out_shardings=P(None, "x"))
def linear(params, x):
    return x @ params["w"] + params["b"]


host = init(10, 256, 512)
params = {name: backend.array(value, sharding=SPLIT[name]) for name, value in host.items()}
x = np.random.default_rng(11).standard_normal((32, 256), np.float32)
output = linear(params, x)
print(output.shape, output.sharding)
print("a device holds of w:", params["w"].addressable_shards[0].data.shape)
close(output, x @ host["w"] + host["b"])
assert params["w"].addressable_shards[0].data.shape == (256, 64)
assert output.sharding.spec == P(None, "x")
assert not linear.plan(params, x).collectives()
