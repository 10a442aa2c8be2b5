"""One process a device: all that `spmd.py` checks, on each transport.

More processes than two are slow: they spin where a small machine has no core for each.
"""

from __future__ import annotations

import pytest

from tests.mlx.jobs import SPMD, launch, mpirun
from tests.runtime.scripts import lines_of


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2", "a=4", "a=2,b=2", "a=2,b=2:b,a", "a=3,b=2"])
def test_a_ring_gives_what_one_device_gives(mesh: str) -> None:
    """Over all processes natively, over some emulated: two gather, three have a slot a group."""
    ranks = {"data=2": 2, "a=3,b=2": 6}.get(mesh, 4)
    done = launch(ranks, SPMD, mesh)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(ranks):
        assert lines_of(rank, done.stdout)[-1].startswith("checked Mesh(")


@pytest.mark.slow
def test_a_library_with_reduce_scatter() -> None:
    """Sums use it in any order of the axes; extremes, of which there is none, an all_reduce."""
    done = launch(4, SPMD, "a=2,b=2", "scatters")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(4):
        assert lines_of(rank, done.stdout)[-1] == "checked reduce_scatter"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["a=2,b=2", "a=2,b=2:b,a"])
def test_mpi_gives_what_one_device_gives(mesh: str) -> None:
    """Its groups are split off; they are let go of before the end, or the job would abort."""
    done = mpirun(4, SPMD, mesh)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("checked Mesh(") == 4
    assert "abort" not in done.stderr.lower()
