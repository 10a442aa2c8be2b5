"""A function over the mesh: how its arguments and its result lie is said once, beside it."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, line

backend = line()


@ml.jit(backend=backend, in_shardings=(P("x"), P()), out_shardings=P("x"))
def product(x, y):
    """Rows of x over the devices, y on each of them."""
    return mnp.matmul(x, y)


rng = np.random.default_rng(42)
x, y = rng.standard_normal((32, 64), np.float32), rng.standard_normal((64, 32), np.float32)
result = product(x, y)
print(result.shape, result.sharding)
close(result, x @ y)
assert result.sharding.spec == P("x", None)
assert product.plan(x, y).collectives() == (), "every device has all it needs"

product(x, y)
assert product.recompiles == 1, "arguments of a known kind are not planned again"
