"""An MLP split differently layer by layer. Ten classes over eight devices: sizes need not divide."""

from itertools import pairwise

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, kinds, line

backend = line()
SIZES = (784, 512, 256, 10)
COLUMNS, ROWS = {"w": P(None, "x"), "b": P("x")}, {"w": P("x", None), "b": P()}
STRATEGIES = {
    "all by columns": ([COLUMNS, COLUMNS, COLUMNS], P(None, "x")),
    "columns, rows, columns": ([COLUMNS, ROWS, COLUMNS], P(None, "x")),
    "columns, rows, whole": ([COLUMNS, ROWS, {"w": P(), "b": P()}], P()),
}

rng = np.random.default_rng(20)
host = [
    {
        "w": (0.05 * rng.standard_normal((a, b))).astype(np.float32),
        "b": 0.1 * rng.standard_normal(b).astype(np.float32),
    }
    for a, b in pairwise(SIZES)
]
x = rng.standard_normal((16, 784)).astype(np.float32)


def mlp(params, x):
    for layer in params[:-1]:
        x = mnp.maximum(x @ layer["w"] + layer["b"], 0.0)
    return x @ params[-1]["w"] + params[-1]["b"]


expected = x
for layer in host[:-1]:
    expected = np.maximum(expected @ layer["w"] + layer["b"], 0)
expected = expected @ host[-1]["w"] + host[-1]["b"]

for name, (split, out) in STRATEGIES.items():
    parallel = ml.jit(mlp, backend=backend, in_shardings=(split, P()), out_shardings=out)
    result = parallel(host, x)
    plan = parallel.plan(host, x)
    sizes = [shard.data.shape[1] for shard in result.addressable_shards]
    moved = sum(row.bytes for row in plan.collectives())
    print(f"{name:23} {', '.join(kinds(plan)) or 'none'}: {moved} bytes; classes a device: {sizes}")
    close(result, expected, 1e-3)
    assert result.sharding.spec == ml.Sharding.of(backend.mesh, out, 2).spec

assert sizes == [10] * 8
