"""A backend of devices that are only planned for, whatever machine this is."""

from __future__ import annotations

from pathlib import Path

from mithril.cost import Hardware, as_hardware
from mithril.engine.planned import PlannedEngine
from mithril.mesh import Mesh
from mithril.runtime.backend import Backend


def plan_backend(mesh: Mesh, hardware: Hardware | str | Path) -> Backend:
    """Return a backend on which models compile to plans, and nothing runs.

    Args:
        mesh: as many devices as are wanted.
        hardware: what they are: a profile, the name of one, or the path of a file.

    Raises:
        OptionError: no profile has the name, or the file holds none.

    >>> import mithril as ml
    >>> backend = plan_backend(Mesh(data=512, tensor=8), "h100-sxm")
    >>> compiled = ml.compile(ml.Linear(8), backend, shapes={"input": (4096, 16)})
    >>> compiled.plan.mesh.size
    4096
    """
    return Backend(PlannedEngine(mesh), hardware=as_hardware(hardware))
