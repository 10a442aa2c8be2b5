"""One product, four ways to split it: the result is the same, what the devices say is not."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, kinds, line

backend = line()
STRATEGIES = {
    "rows of a": (P("x"), P(), P("x"), []),
    "columns of b": (P(), P(None, "x"), P(None, "x"), []),
    "nothing": (P(), P(), P(), []),
    "the sum": (P(None, "x"), P("x"), P(), ["all_reduce"]),
}

rng = np.random.default_rng(0)
a, b = rng.standard_normal((128, 64), np.float32), rng.standard_normal((64, 96), np.float32)
for name, (left, right, out, expected) in STRATEGIES.items():
    product = ml.jit(mnp.matmul, backend=backend, in_shardings=(left, right), out_shardings=out)
    result = product(a, b)
    found = kinds(product.plan(a, b))
    print(f"{name:13} {result.sharding!s:24} collectives: {', '.join(found) or 'none'}")
    close(result, a @ b, 1e-3)
    assert result.sharding.spec == ml.Sharding.of(backend.mesh, out, 2).spec
    assert found == expected
