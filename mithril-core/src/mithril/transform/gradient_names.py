"""Names of what differentiation adds to a graph."""

from __future__ import annotations


def cotangent_name(output: str) -> str:
    """Return the name of the input that carries the gradient of an output."""
    return f"output_gradients.{output}"


def gradient_of(name: str) -> str:
    """Return the name of the output that carries the gradient of an input."""
    return f"gradients.{name}"
