"""Split what is large, leave what is small; and two stages, one after another, split differently."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, kinds, line

backend = line()


def square_sum(x):
    return mnp.sum(x**2)


def adaptive(host: np.ndarray, threshold: int = 1000) -> tuple[ml.Array, list[str]]:
    """Return the sum of squares, and the collectives it took."""
    spec = P("x") if host.size > threshold else P()
    function = ml.jit(square_sum, backend=backend, in_shardings=spec, out_shardings=P())
    return function(host), kinds(function.plan(host))


rng = np.random.default_rng(80)
small, large = (rng.standard_normal(n).astype(np.float32) for n in (100, 10_000))
for host, expected in ((small, []), (large, ["all_reduce"])):
    result, moved = adaptive(host)
    print(f"{host.size:6} elements: {float(result):.2f}, collectives: {', '.join(moved) or 'none'}")
    close(result, (host**2).sum(), 1e-3)
    assert moved == expected

first = ml.jit(lambda x: mnp.maximum(x, 0.0), in_shardings=P("x"), out_shardings=P("x"))
second = ml.jit(lambda x: mnp.mean(x, axis=0), in_shardings=P("x"), out_shardings=P())
host = rng.standard_normal((128, 64)).astype(np.float32)
x = backend.array(host, sharding=P("x"))
middle = first(x)
result = second(middle)
print("two stages:", middle.sharding, "->", result.sharding)
close(result, np.maximum(host, 0).mean(0))
assert not kinds(first.plan(x))
assert kinds(second.plan(middle)) == ["all_reduce"]
assert result.sharding.is_replicated
