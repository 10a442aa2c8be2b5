"""The kinds of a model's inputs, from the shapes, arrays and specs that a user gives."""

from __future__ import annotations

from collections.abc import Mapping

from mithril.errors import GraphError, kind_of
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.statistics import find_unsaid
from mithril.plan import Port
from mithril.runtime.array import Array, Kind
from mithril.runtime.evaluation import check_names
from mithril.runtime.planner import Planner
from mithril.runtime.specification import read_kind


def read_kinds(
    model: Composition | Layer,
    shapes: object,
    planner: Planner,
) -> list[Kind]:
    """Return the kinds of a model's inputs, in order.

    Running statistics need no shape where the layer that keeps them knows it.

    Args:
        model: its snapshot.
        shapes: for each input a shape, an array, or a `TensorSpec`.
        planner: of the model.

    Raises:
        GraphError: an input is missing or unknown.
    """
    names, backend, wanted = model.input_ports, planner.backend, planner.input_shardings.specs
    if not isinstance(shapes, Mapping):
        raise GraphError(
            f"shapes is {kind_of(shapes)}; give a mapping of input names to shapes, such as "
            f"{{'{names[0]}': (8, 4)}}"
        )
    unsaid = find_unsaid(model, shapes)
    check_names({**dict.fromkeys(unsaid), **shapes}, names, "input", planner.explain_input)

    def read(name: str, given: object) -> Kind:
        described = backend.follow(given.kind) if isinstance(given, Array) else given
        return read_kind(described, wanted.get(name), backend, f"input '{name}'")

    kinds = {name: read(name, given) for name, given in shapes.items()}
    if unsaid:
        graph = planner.trace(tuple((name, kind.type) for name, kind in kinds.items())).graph
        kinds |= {name: read(name, graph.input(name).type.shape) for name in unsaid}
    return [kinds[name] for name in names]


def lie_as(port: Port | None, kind: Kind) -> Kind:
    """Return the kind of what lies as an input of a plan, if that is for the same type."""
    if port is None or port.type != kind.type:
        return kind
    return Kind(kind.backend, port.type, port.sharding, kind.backend.mesh.size > 1)


__all__ = ["lie_as", "read_kinds"]
