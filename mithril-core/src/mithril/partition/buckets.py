"""Put collectives of one kind together: one over a flat buffer in place of several small ones.

One collective a parameter costs its start-up every time. What works instead is known from PyTorch's
DDP: buckets, filled in the order in which the backward computation finishes the gradients (last
layer first). DDP's are of 25 MiB; here the time model says how large they are (`bucket_sizes.py`).
Where nothing is computed meanwhile, a bucket makes its start-up a small part of its time.

What reduces is issued with the last of its bucket, for all of which the same collective waits, or
none; so is what gathers the parts of updated parameters, or what only results need. What is kept at
rest is gathered with the first of its bucket, since it is there all the time. All but an
all_reduce, which works in place, is copied into the buffer and out of it, and it lies in memory for
longer than by itself. So such a bucket has at most a fourth of all that is moved
(`bucket_limits.py`), and takes nothing whose copies take longer than the start-up that they save.
What brings activations to other devices travels together where the program is predicted to be
faster with it (`neighbour_buckets.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mithril.cost import Hardware
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import Pricing
from mithril.ir import Graph, Node
from mithril.ir.rewrite import map_bodies
from mithril.mesh import Mesh
from mithril.ops.collective import ReduceScatter
from mithril.partition.bucket_filling import Filling, find_form, size_of
from mithril.partition.bucket_limits import count_moved
from mithril.partition.early_buckets import join_early
from mithril.partition.fusion import FUSE_AS_IT_PAYS, Fusion
from mithril.partition.late_buckets import join_late
from mithril.partition.neighbour_buckets import join_neighbours
from mithril.plan import Program


def bucket_collectives(
    program: Program, hardware: Hardware, asked: Fusion = FUSE_AS_IT_PAYS
) -> Program:
    """Return the program with collectives that may travel together gathered into buckets.

    Args:
        program: a local program.
        hardware: the profile that prices a bucket.
        asked: what shall travel together.
    """
    if not (asked.all_reduces or asked.others):
        return program
    fill = Filling(program.mesh, hardware, count_moved(program.graph), asked)
    execution = replace(hardware.execution, lays_out=False)  # priced as it stands
    pricing = Pricing(program.mesh, replace(hardware, execution=execution), OpCosts())
    return replace(program, graph=_bucket_graph(program.graph, fill, pricing))


def _bucket_graph(graph: Graph, fill: Filling, pricing: Pricing) -> Graph:
    nodes = (map_bodies(n, lambda body: _bucket_graph(body, fill, pricing)) for n in graph.nodes)
    made = Graph(graph.inputs, tuple(nodes), graph.outputs)
    return join_neighbours(join_early(join_late(made, fill, pricing), fill, pricing), fill, pricing)


def group_scatters(
    nodes: Sequence[Node], mesh: Mesh, hardware: Hardware, moved: Mapping[str, int]
) -> list[list[Node]]:
    """Return the scatters of gradients in the buckets they come into if nobody waits for them.

    Args:
        nodes: of a backward, in order.
        mesh: the devices.
        hardware: the profile that prices a bucket.
        moved: by the whole program, as of `count_moved`.
    """
    fill, found = Filling(mesh, hardware, moved), list[list[Node]]()
    current: dict[object, tuple[list[Node], int]] = {}
    for node in nodes:
        op = node.op
        is_again = node.cause is not None and node.cause.is_again
        if not isinstance(op, ReduceScatter) or is_again or not fill.may_join(node):
            continue
        key = op, node.inputs[0].type.dtype, find_form(node)
        bucket, filled = current.get(key, ([], 0))
        if not bucket or filled >= fill.find_limit(op):
            bucket, filled = [], 0
            found.append(bucket)
        bucket.append(node)
        current[key] = bucket, filled + size_of(node)
    return found


__all__ = ["bucket_collectives", "group_scatters"]
