"""Where the layers of a model run in one call: on devices, on stages, or on parts of the batch."""

from __future__ import annotations

from mithril.compiler import Batch, accumulate_over, placement_of
from mithril.errors import GraphError, ShapeError, listing, nearest
from mithril.mesh import Mesh, Sharding
from mithril.models.placement import PlacementSpec
from mithril.models.trace import Traced
from mithril.partition.pipeline import Placement
from mithril.runtime.asked import ArgumentKinds
from mithril.runtime.settings import Settings


def place_layers(
    spec: PlacementSpec, settings: Settings, mesh: Mesh, traced: Traced, arguments: ArgumentKinds
) -> Placement:
    """Return where layers run.

    Args:
        spec: what the model says of it.
        settings: of the model, which say how stages run, and into how many parts a batch is cut.
        mesh: of the backend.
        traced: the model.
        arguments: what it is called with.

    Raises:
        GraphError: the batch is that of an input that does not exist.
        ShapeError: what is to be cut into micro-batches is a scalar.
    """
    batch = _find_batch(spec, settings, traced, arguments)
    gradients = arguments.gradients is not None
    if settings.accumulate > 1:
        return accumulate_over(mesh, settings.accumulate, batch, gradients=gradients)
    return placement_of(
        spec, mesh, settings.pipeline, batch, gradients=gradients, pads=settings.plan.pads
    )


def _find_batch(
    spec: PlacementSpec, settings: Settings, traced: Traced, arguments: ArgumentKinds
) -> Batch:
    """Return what is cut into micro-batches, where anything is."""
    wanted = settings.pipeline.batch
    if wanted is not None and wanted not in traced.input_names:
        raise GraphError(
            f"PipelineOptions(batch={wanted!r}) names no input of the model"
            f"{nearest(wanted, traced.input_names)}; inputs: {listing(traced.input_names)}"
        )
    named = wanted or spec.batch
    value = traced.value_names.get(named) or traced.graph.inputs[0]
    name = value.name or traced.graph.inputs[0].name
    shape = value.type.shape
    sharding = _arriving(name, shape[:1], arguments)
    if not shape and (spec.pipeline is not None or settings.accumulate > 1):
        raise ShapeError(
            f"pipeline cuts '{name}' into micro-batches, and it is a scalar; give the model a "
            f"first input with a leading dimension of samples"
        )
    return Batch(name, shape[0] if shape else 1, sharding.dims[0] if sharding and shape else ())


def _arriving(name: str, batch: tuple[int, ...], arguments: ArgumentKinds) -> Sharding | None:
    """Return how a batch arrives: as the input of that name, or else the first one of its size."""
    found = dict(arguments.inputs)
    if name in found:
        return found[name][1]
    sizes = ((type, s) for type, s in found.values() if type.shape)
    return next((s for type, s in sizes if type.shape[:1] == batch), None)
