"""`network_topology_aware=True`: in which order a model has the axes of its backend's mesh.

The order is chosen for the plan that is made first, with the bytes that this sends; the model is
then planned again on a backend of the same devices in that order (`Backend.reorder`), and so are
all its later plans: what they share, such as parameters, lies where each of them has it.
"""

from __future__ import annotations

from mithril.cost.axis_order import OPTION, find_axis_order
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.placement import placement_spec_of
from mithril.models.prefixes import component_of
from mithril.plan import Plan
from mithril.runtime.backend import Backend
from mithril.units import format_seconds

Laid = tuple[tuple[str, ...], str]
"""An order of axes, and what a reader of the plans is told of it."""


def lay_axes(model: Composition | Layer, plan: Plan, backend: Backend) -> Laid:
    """Return the order of axes in which a model shall have them, and a note of why.

    Args:
        model: what was planned.
        plan: of it, on the backend's mesh.
        backend: where it runs.
    """
    given = backend.mesh.order or backend.mesh.names
    stays = f"{OPTION}=True: the order of axes stays {given}, as given"
    if placement_spec_of(component_of(model)).devices:
        return given, f"{stays}: layers are placed by device_id"
    unknown = backend.hardware.unknown_platform
    if unknown:
        return given, f"{stays}: no hardware profile describes platform '{unknown}'"
    found = find_axis_order(plan, backend.hardware)
    before = format_seconds(found.seconds_as_given)
    if not found.seconds_as_given:
        return given, f"{stays}: nothing is communicated"
    if found.order == given:
        return given, f"{stays}: predicted communication {before}, and no less in any other"
    after = format_seconds(found.seconds)
    return found.order, (
        f"{OPTION}=True: order {found.order} instead of {given}; predicted communication {after} "
        f"instead of {before}"
    )


__all__ = ["Laid", "lay_axes"]
