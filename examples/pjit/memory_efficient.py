"""`ml.checkpoint`: values inside are computed again for the gradient instead of being kept."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, line

backend = line()
rng = np.random.default_rng(70)
w = backend.array(0.03 * rng.standard_normal((1024, 2048), np.float32), sharding=P("x", None))
x = backend.array(rng.standard_normal((64, 1024), np.float32))


def layer(w, x):
    return mnp.tanh(x @ w)


def total(layer, w, x):
    return mnp.sum(layer(w, x) ** 2)


efficient = ml.jit(
    ml.checkpoint(layer), in_shardings=(P("x", None), P()), out_shardings=P(None, "x")
)
output = efficient(w, x)
print(output.shape, output.sharding)
assert output.sharding.spec == P(None, "x")

kept = ml.jit(ml.grad(lambda w, x: total(layer, w, x)))
again = ml.jit(ml.grad(lambda w, x: total(ml.checkpoint(layer), w, x)))
close(again(w, x), np.asarray(kept(w, x)), 1e-3)
assert again(w, x).sharding == w.sharding, "a gradient lies as its argument does"


def count(function, op: str) -> int:
    (stage,) = function.plan(w, x).stages
    return sum(node.op.name == op for node in stage.program.graph.nodes)


print("tanh runs:", count(kept, "tanh"), "time if kept,", count(again, "tanh"), "times if not")
assert (count(kept, "tanh"), count(again, "tanh")) == (1, 2)
