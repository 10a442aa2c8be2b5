"""Which way to split is fastest here? Warm up first, and wait for results before the clock stops."""

import time

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, line

backend = line()
STRATEGIES = {
    "replicated": (P(), P(), P()),
    "rows": (P("x"), P(), P("x")),
    "columns": (P(), P(None, "x"), P(None, "x")),
}
ROUNDS = 5

rng = np.random.default_rng(60)
host = [rng.standard_normal((512, 512), np.float32) for _ in range(2)]
seconds: dict[str, float] = {}
work: dict[str, int] = {}
for name, (left, right, out) in STRATEGIES.items():
    a, b = (backend.array(x, sharding=s) for x, s in zip(host, (left, right), strict=True))
    product = ml.jit(mnp.matmul, in_shardings=(left, right), out_shardings=out)
    close(product(a, b), host[0] @ host[1], 1e-2)
    started = time.perf_counter()
    for _ in range(ROUNDS):
        product(a, b).addressable_shards[0].data.sum()
    seconds[name] = (time.perf_counter() - started) / ROUNDS
    (stage,) = product.plan(a, b).stages
    work[name] = sum(
        node.op.cost([v.type for v in node.inputs], [v.type for v in node.outputs]).flops
        for node in stage.program.graph.nodes
    )
    print(f"{name:11} {1e3 * seconds[name]:7.2f} ms, {work[name]} flops on each device")

best = min(seconds, key=seconds.__getitem__)
print(f"fastest on this machine: {best}")
assert work["rows"] == work["columns"] == work["replicated"] // 8
