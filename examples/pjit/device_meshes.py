"""A mesh gives names to the ways in which devices are arranged; arrays are split by these names."""

import mithril as ml
from mithril import P
from setting import DEVICES, backend_on, line

one = line()
print(one.mesh, one.engine.devices[:2], "…")

x = one.ones(16, 4, sharding=P("x"))
print("split by rows:", [shard.data.shape for shard in x.addressable_shards])
assert {shard.data.shape for shard in x.addressable_shards} == {(16 // DEVICES, 4)}

two = backend_on(ml.Mesh(data=4, model=2))
both = two.ones(8, 6, sharding=P("data", "model"))
whole_rows = two.ones(8, 6, sharding=P("data"))
for array in (both, whole_rows):
    first = array.addressable_shards[0]
    print(array.sharding, "each device holds", first.data.shape)
assert both.addressable_shards[0].data.shape == (2, 3)
assert whole_rows.addressable_shards[0].data.shape == (2, 6)

uneven = two.arange(10.0, sharding=P("data"))
parts = [shard.data.tolist() for shard in uneven.addressable_shards[::2]]
print("ten over four:", parts)
assert parts == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
