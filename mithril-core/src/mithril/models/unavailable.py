"""Layers of the guides that are not built yet: they refuse at once, and say so."""

from __future__ import annotations

from typing import Any, NoReturn

from mithril.errors import OptionError


def Pipeline(*stages: Any, **options: Any) -> NoReturn:  # noqa: N802 - it stands for a layer
    """Refuse: pipelines of stages are not available yet.

    Raises:
        OptionError: always.
    """
    del stages, options
    raise OptionError(
        "Pipeline is not available yet; stages on different devices are not built; add the stages "
        "one after another with model += stage, and split parameters with sharding=…"
    )
