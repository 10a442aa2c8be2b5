"""A training step as one function: loss, gradients, update. Gradients lie as parameters do."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, line

backend = line()
SPLIT = {"w": P("x", None), "b": P()}


def loss(params, x, y):
    error = x @ params["w"] + params["b"] - y
    return mnp.mean(error * error)


@ml.jit(backend=backend, in_shardings=(SPLIT, P(), P(), P()), out_shardings=(SPLIT, P()))
def step(params, x, y, rate):
    value, slopes = ml.value_and_grad(loss)(params, x, y)
    return {name: params[name] - rate * slopes[name] for name in params}, value


rng = np.random.default_rng(40)
host = {"w": rng.standard_normal((256, 64), np.float32), "b": np.zeros(64, np.float32)}
x, y = rng.standard_normal((32, 256), np.float32), rng.standard_normal((32, 64), np.float32)
params = {name: backend.array(value, sharding=SPLIT[name]) for name, value in host.items()}

error = x @ host["w"] + host["b"] - y
slope = 2 / error.size * x.T @ error
rate, losses = 2.0, []
for i in range(10):
    params, value = step(params, x, y, rate)
    losses.append(float(value))
    if i == 0:
        close(params["w"], host["w"] - rate * slope, 1e-3)
        close(losses[0], np.mean(error * error), 1e-3)
print("loss", *(f"{value:.2f}" for value in losses))
assert losses[-1] < losses[0]
assert params["w"].sharding.spec == P("x", None)
assert step.recompiles == 1
