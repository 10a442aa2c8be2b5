"""Arrays that arrive otherwise than a function wants them are moved by the cheapest way."""

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from setting import close, kinds, line

backend = line()
host = np.random.default_rng(50).standard_normal((1024, 1024)).astype(np.float32)
x = backend.array(host, sharding=P("x"))

by_row = ml.jit(lambda x: mnp.sum(x, axis=1), in_shardings=P("x"), out_shardings=P("x"))
by_column = ml.jit(lambda x: mnp.sum(x, axis=0), in_shardings=P(None, "x"), out_shardings=P("x"))
close(by_row(x), host.sum(1), 1e-2)
close(by_column(x), host.sum(0), 1e-2)
print("rows as they lie:", kinds(by_row.plan(x)) or "nothing moves")
assert not kinds(by_row.plan(x))

moved = ml.reshard(x, P(None, "x"))
print("by hand:", x.sharding, "->", moved.sharding)
assert moved.sharding.spec == P(None, "x")
np.testing.assert_array_equal(np.asarray(moved), host)

turned = ml.jit(lambda x: x, in_shardings=P("x"), out_shardings=P(None, "x"))
(row,) = turned.plan(x).collectives()
print(f"{row.kind}: {row.bytes} bytes a device; gathering would take {host.nbytes}")
assert row.kind == "all_to_all"
assert row.bytes == host.nbytes // 8
