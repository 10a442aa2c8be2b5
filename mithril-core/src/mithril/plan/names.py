"""Names of what differentiation, and the update of a train step, add to a graph."""

from __future__ import annotations

GRADIENT, COTANGENT, NEXT = "gradients.", "output_gradients.", "next."


def cotangent_name(output: str) -> str:
    """Return the name of the input that carries the gradient of an output."""
    return f"{COTANGENT}{output}"


def gradient_of(name: str) -> str:
    """Return the name of the output that carries the gradient of an input."""
    return f"{GRADIENT}{name}"


def next_of(name: str) -> str:
    """Return the name of the output that carries what a step keeps next under a name."""
    return f"{NEXT}{name}"
