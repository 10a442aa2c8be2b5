"""Device meshes and shardings as plain data: who holds which part of a tensor, and nothing else."""

from mithril.mesh.axes import Axis
from mithril.mesh.cuts import refine
from mithril.mesh.mesh import MICRO, Mesh, list_origins
from mithril.mesh.reading import check_spec_mesh, is_whole, read_spec
from mithril.mesh.refinement import (
    carry,
    coarse,
    coarsen,
    common,
    follow,
    follow_sharding,
    list_finer_axes,
    may_meet,
    onto,
)
from mithril.mesh.sharding import Box, Sharding, edges
from mithril.mesh.spec import P, PartitionSpec

__all__ = [
    "MICRO",
    "Axis",
    "Box",
    "Mesh",
    "P",
    "PartitionSpec",
    "Sharding",
    "carry",
    "check_spec_mesh",
    "coarse",
    "coarsen",
    "common",
    "edges",
    "follow",
    "follow_sharding",
    "list_finer_axes",
    "is_whole",
    "list_origins",
    "may_meet",
    "onto",
    "read_spec",
    "refine",
]
