"""Graphs of one model on one backend, each traced once, however the model is planned."""

from __future__ import annotations

from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.trace import Traced, trace
from mithril.runtime.backend import Backend
from mithril.runtime.capture import convert_on
from mithril.runtime.lru import LRUCache
from mithril.runtime.settings import Settings
from mithril.types import TensorType

Types = tuple[tuple[str, TensorType], ...]
KEPT = 256
"""How many graphs are kept."""


class Tracer:
    """Traces a model, once for all settings with which its graph is the same.

    Args:
        model: the snapshot of a model, or a layer.
        backend: whose arrays the values become that layers use from around them.
    """

    def __init__(self, model: Composition | Layer, backend: Backend) -> None:
        self._model, self._backend = model, backend
        self._known: LRUCache[tuple[object, ...], Traced] = LRUCache(KEPT)

    def trace(self, types: Types, settings: Settings) -> Traced:
        """Return the graph for inputs of some types, with what the model itself says of it.

        Args:
            types: of the inputs, by name.
            settings: of which inference and precision count.
        """
        precision = settings.plan.precision
        key = types, settings.inference, precision
        traced = self._known.get(key)
        if traced is None:
            convert = convert_on(self._backend, "a layer", precision.default)
            traced = trace(
                self._model, dict(types), inference=settings.inference, precision=precision,
                convert=convert,
            )  # fmt: skip
            self._known.put(key, traced)
        return traced


__all__ = ["Tracer", "Types"]
