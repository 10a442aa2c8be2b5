"""Draws the sizes of models, by name and seed, and builds what several models have.

Sizes are powers of two, so that meshes of up to sixteen devices divide nearly all of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import mithril as ml

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""The shape and dtype of each input."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A model of which nothing is said how it is split.

    Args:
        model: the model.
        shapes: of its inputs; the leading dimension of each is the batch.
        output: what is differentiated.
        tokens: inputs whose second dimension are the tokens of one sequence.
        streams: values between layers of [batch, tokens, features], by pattern.
    """

    model: ml.Model
    shapes: Shapes
    output: str = "y"
    tokens: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    @property
    def specs(self) -> dict[str, ml.TensorSpec]:
        """The inputs, of which nothing is said how they come."""
        return {name: ml.TensorSpec(shape, dtype) for name, (shape, dtype) in self.shapes.items()}


class Draw:
    """Draws sizes, and builds what several models have.

    Args:
        name: of the model.
        seed: of all sizes.
        shrink: a power of two by which widths and batches are smaller than they would be.
        context: what attention does where its sequence comes split; None for gathering it.
    """

    def __init__(self, name: str, seed: int, shrink: int, context: str | None) -> None:
        self._random = random.Random(f"{seed} {name}")
        self.shrink, self.context = shrink, context

    def size(self, least: int, most: int) -> int:
        """Return a power of two between two others."""
        return 1 << self._random.randint(least.bit_length() - 1, most.bit_length() - 1)

    def width(self, least: int, most: int) -> int:
        """Return a width, which is smaller in a small model, but not below 32."""
        return max(32, self.size(least, most) // self.shrink)

    def batch(self, least: int, most: int) -> int:
        """Return samples of a batch, which are fewer for a small model, but not below 8."""
        return max(8, self.size(least, most) // self.shrink)

    def attend(self, heads: int, causal: bool, **options: object) -> ml.Layer:
        """Return attention named `attn`."""
        return ml.MultiHeadAttention(
            num_heads=heads, causal=causal, context_parallel=self.context, name="attn", **options
        )  # type: ignore[no-any-return]

    def block(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = True,
        name: str = "block",
        after: bool = False,
    ) -> ml.Model:
        """Return a transformer block from `x` to `y`, normalised before its layers or after them."""
        block = ml.Model(name=name)
        attend, mlp = self.attend(heads, causal), ml.FeedForward(4 * width, name="mlp")
        if after:
            block |= attend(input="x", output="seen")
            block |= ml.Add()(inputs=["x", "seen"], output="sum1")
            block |= ml.LayerNorm(name="norm1")(input="sum1", output="middle")
            block |= mlp(input="middle", output="thought")
            block |= ml.Add()(inputs=["middle", "thought"], output="sum2")
            block |= ml.LayerNorm(name="norm2")(input="sum2", output="y")
            return block
        block |= ml.LayerNorm(name="norm1")(input="x", output="normed1")
        block |= attend(input="normed1", output="seen")
        block |= ml.Add()(inputs=["x", "seen"], output="middle")
        block |= ml.LayerNorm(name="norm2")(input="middle", output="normed2")
        block |= mlp(input="normed2", output="thought")
        block |= ml.Add()(inputs=["middle", "thought"], output="y")
        return block
