"""Names of what differentiation, and the update of a train step, add to a graph."""

from __future__ import annotations

GRADIENT, COTANGENT, NEXT = "gradients.", "output_gradients.", "next."
LOST, FACTOR = "compression.lost.", "compression.factor."
"""What the compression of gradients keeps: what was lost of them, and factors of matrices."""


def cotangent_name(output: str) -> str:
    """Return the name of the input that carries the gradient of an output."""
    return f"{COTANGENT}{output}"


def gradient_of(name: str) -> str:
    """Return the name of the output that carries the gradient of an input."""
    return f"{GRADIENT}{name}"


def next_of(name: str) -> str:
    """Return the name of the output that carries what a step keeps next under a name."""
    return f"{NEXT}{name}"


def is_of_compression(name: str) -> bool:
    """Return whether an input of a step is what the compression of gradients keeps.

    >>> is_of_compression("compression.lost.up.weight"), is_of_compression("up.weight")
    (True, False)
    """
    return name.startswith((LOST, FACTOR))
