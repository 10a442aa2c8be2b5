"""Network topologies that a user states: whether they fit the devices, and a profile with them."""

from __future__ import annotations

from dataclasses import replace

from mithril.cost.crossing import level_within
from mithril.cost.hardware import Hardware
from mithril.cost.levels import NEIGHBOURS, TOPOLOGIES, TORUS
from mithril.errors import OptionError, listing
from mithril.mesh import Mesh
from mithril.option_checks import check_choice

OPTION = "mesh_topology"


def check_topology(topology: object, mesh: Mesh, hardware: Hardware | None = None) -> None:
    """Raise unless devices may be linked as a user says.

    Args:
        topology: `mesh_topology=`.
        mesh: the devices; each of its axes is a dimension of a torus.
        hardware: what the devices are said to be; None where nobody says it.

    Raises:
        OptionError: there is no such topology, it does not fit the mesh, or the profile states
            another one.
    """
    check_choice(OPTION, topology, TOPOLOGIES)
    axes = [axis.name for axis in mesh.axes if axis.size > 1]
    if topology == TORUS and len(axes) < 2:
        raise OptionError(
            f"{OPTION}='{TORUS}' needs two mesh axes of several devices, which are its dimensions; "
            f"{mesh!r} has {len(axes)}; {_advise(mesh.size)}"
        )
    if hardware is not None:
        _check_levels(str(topology), mesh, hardware)


def _advise(size: int) -> str:
    first = next((n for n in range(int(size**0.5), 1, -1) if size % n == 0), None)
    if first is None:
        return f"{size} devices have no factors for a torus; use 'ring'"
    return f"use 'ring', or device_mesh=({size // first}, {first})"


def _check_levels(topology: str, mesh: Mesh, hardware: Hardware) -> None:
    """Raise unless one level of links, of which no other topology is known, links all devices."""
    sizes = [level.devices for level in hardware.levels]
    crossed = hardware.levels[: level_within(sizes, mesh.flat) + 1]
    if len(crossed) > 1:
        names = listing([level.name for level in crossed])
        raise OptionError(
            f"{OPTION}='{topology}' is given for {mesh.size} devices of profile "
            f"'{hardware.name}', which are linked on the levels {names}; leave it out, or describe "
            f"the network in a profile of one level"
        )
    stated = crossed[0].topology
    if stated in NEIGHBOURS and stated != topology:
        raise OptionError(
            f"{OPTION}='{topology}' is given for profile '{hardware.name}', whose level "
            f"'{crossed[0].name}' is a {stated}; leave it out, or give mesh_topology='{stated}'"
        )


def link_as(hardware: Hardware, topology: str, mesh: Mesh) -> Hardware:
    """Return a profile whose devices are linked as a user says.

    Args:
        hardware: the profile.
        topology: one of `TOPOLOGIES`.
        mesh: the devices.

    Raises:
        OptionError: as of `check_topology`.

    >>> from mithril.cost import SIMULATED
    >>> link_as(SIMULATED, "ring", Mesh(data=4)).link(Mesh(data=4)).topology
    'ring'
    """
    check_topology(topology, mesh, hardware)
    level = replace(hardware.levels[0], devices=mesh.size, topology=topology)
    name = f"{hardware.name}, links: {topology}"
    return replace(hardware, name=name, levels=(level,))


__all__ = ["check_topology", "link_as"]
