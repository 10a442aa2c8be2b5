"""The one table of tolerances, which is the conformance kit's."""

from mithril.testing.tolerances import DIFFERENCES, TOLERANCE

__all__ = ["DIFFERENCES", "TOLERANCE"]
