"""Both axes of a mesh in one product: rows over `data`, the sum over `model`."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import backend_on, close

backend = backend_on(ml.Mesh(data=4, model=2))
product = ml.jit(
    mnp.matmul,
    backend=backend,
    in_shardings=(P("data", "model"), P("model", None)),
    out_shardings=P("data", None),
)

rng = np.random.default_rng(30)
a, b = rng.standard_normal((256, 256), np.float32), rng.standard_normal((256, 128), np.float32)
result = product(a, b)
close(result, a @ b, 1e-3)
print(result.shape, result.sharding)

(row,) = product.plan(a, b).collectives()
print(f"{row.kind} over {row.axes}: {row.bytes} bytes on each device")
assert (row.kind, row.axes) == ("all_reduce", ("model",))
assert row.bytes == 256 // 4 * 128 * 4, "the part of the result that a device has, in float32"
