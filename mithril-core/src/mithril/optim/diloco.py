"""DiLoCo: parts of a mesh axis train by themselves, and agree on parameters now and then.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithril.errors import OptionError
from mithril.keywords import checked_keywords
from mithril.optim.checks import check_count
from mithril.optim.sgd import sgd
from mithril.optim.transformation import Transformation, check_transformation


@dataclass(frozen=True, slots=True)
class Diloco:
    """What `ml.train_step` makes local and outer steps of; made by `diloco`.

    Args:
        inner: the optimiser of the local steps.
        outer: the optimiser of the outer steps, whose gradients are how far parameters moved.
        every: how many local steps there are to an outer one.
        axis: the mesh axis whose parts train by themselves.
    """

    inner: Transformation
    outer: Transformation
    every: int
    axis: str

    def __post_init__(self) -> None:
        check_transformation("diloco()", self.inner)
        check_transformation("diloco()", self.outer)
        check_count("diloco()", "every", self.every, least=1)
        if not isinstance(self.axis, str):
            raise OptionError(f"diloco() has axis={self.axis!r}; give the name of one mesh axis")


@checked_keywords()
def diloco(
    inner: Transformation,
    outer: Transformation | None = None,
    *,
    every: int,
    axis: str = "pod",
) -> Diloco:
    """Train on each part of a mesh axis by itself, and average over the axis now and then.

    After `every` local steps of all parts comes an outer step: `outer` takes the parameters of the
    outer step before less the mean of those that the parts have come to for a gradient, and all
    parts go on with what it makes. Local steps do not communicate over the axis.

    Args:
        inner: the optimiser of the local steps; each part of the axis has a state of its own.
        outer: the optimiser of the outer steps; by default Nesterov's momentum of 0.9 with a
            learning rate of 0.7, as in the paper.
        every: how many local steps there are to an outer one (H in the paper).
        axis: the mesh axis.

    Returns:
        What `ml.train_step` takes for an optimiser; no transformation, as it trains on a mesh only.

    Raises:
        OptionError: `every` is no positive integer, or `inner` or `outer` is no optimiser.

    >>> from mithril.optim import adamw
    >>> diloco(adamw(1e-3), every=10).axis
    'pod'
    """
    outer = sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
    return Diloco(inner, outer, every, axis)


__all__ = ["Diloco", "diloco"]
