"""Layers that turn ids into features and tell positions apart."""

from __future__ import annotations

import math

from mithril.errors import OptionError, ShapeError
from mithril.ir import Tensor
from mithril.models.definition import INTEGER_OR_NONE, POSITIVE
from mithril.models.initializers import Initializer, Normal, ZeroRow
from mithril.models.layer import layer
from mithril.models.shapes import require_features
from mithril.models.trace_context import layer_path, parameter
from mithril.ops import accumulator, cast, equal, exp, iota, sin, take, where
from mithril.types import DType


@layer(
    parameters=("weight",),
    checks={"vocab_size": POSITIVE, "embedding_dim": POSITIVE, "padding_idx": INTEGER_OR_NONE},
)
def Embedding(  # noqa: N802
    input: Tensor, *, vocab_size: int, embedding_dim: int, padding_idx: int | None = None
) -> Tensor:
    """Look ids up in a table of learned features.

    The parameter is `weight` (vocab_size, embedding_dim), starting normal with deviation 1, with
    zeros in the row of padding.

    Args:
        input: [...], integers from 0 up to vocab_size - 1.
        vocab_size: number of ids.
        embedding_dim: number of features of an id.
        padding_idx: the id of padding, a negative one counted from the end: its features are zeros
            whatever its row of the table holds, and that row has no gradient.

    Returns:
        [..., embedding_dim].

    Raises:
        OptionError: padding_idx is no row of the table.
        ShapeError: the input is not of integers, or, where ids are looked at, one is no row of the
            table (`docs/layers.md` says where that is).

    >>> Embedding(vocab_size=100, embedding_dim=16)
    Embedding(vocab_size=100, embedding_dim=16)
    """
    if not input.dtype.is_integer:
        raise ShapeError(
            f"layer '{layer_path()}' needs integer ids, not {input.type}; convert them with "
            f"astype('int32')"
        )
    if padding_idx is not None and not -vocab_size <= padding_idx < vocab_size:
        raise OptionError(
            f"layer '{layer_path()}' has padding_idx={padding_idx} for {vocab_size} ids; choose "
            f"one of 0…{vocab_size - 1}, or -1 for the last"
        )
    start: Initializer = Normal(1.0)
    start = start if padding_idx is None else ZeroRow(start, padding_idx % vocab_size)
    found: Tensor = take(parameter("weight", (vocab_size, embedding_dim), start), input)
    if padding_idx is None:
        return found
    small = input.dtype.itemsize < 4  # ids may be too many to count in the input's dtype
    ids = cast(input, DType.int32) if small else input
    is_padding = equal(ids, padding_idx % vocab_size).reshape(*input.shape, 1)
    shown: Tensor = where(is_padding, 0.0, found)
    return shown


@layer(
    parameters=lambda learned: ("weight",) if learned else (),
    checks={"max_len": POSITIVE},
)
def PositionalEncoding(input: Tensor, *, max_len: int, learned: bool = False) -> Tensor:  # noqa: N802
    """Add to each position a vector that tells it from the others.

    The vector is sinusoidal (Vaswani et al., 2017): sine in even features, cosine in odd ones, of
    position / 10000^(even feature / features). A learned one is the parameter `weight` (max_len,
    features), starting normal with deviation 0.02.

    Args:
        input: [..., sequence, features], floats.
        max_len: longest sequence.
        learned: learn the vectors instead.

    Returns:
        The same shape.

    Raises:
        ShapeError: the sequence is longer than max_len, or the input has no sequence dimension.

    >>> PositionalEncoding(max_len=512)
    PositionalEncoding(max_len=512)
    """
    require_features(input)
    if input.ndim < 2:
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [..., sequence, features], not {input.type}; "
            f"reshape it"
        )
    sequence, features = input.shape[-2:]
    if sequence > max_len:
        raise ShapeError(
            f"layer '{layer_path()}' takes sequences up to max_len={max_len}, and the input has "
            f"{sequence} positions; raise max_len or shorten the input"
        )
    if learned:
        return input + parameter("weight", (max_len, features), Normal(0.02))[:sequence]
    return input + cast(_sinusoids(input, sequence, features), input.dtype)


def _sinusoids(like: Tensor, sequence: int, features: int) -> Tensor:
    """The table [sequence, features]."""
    shape = (sequence, features)
    wide = accumulator(like.dtype)
    position = cast(iota(like, shape, 0), wide)
    feature = iota(like, shape, 1)
    pair = cast(feature * 0.5, DType.int32)
    odd = feature - pair * 2
    rate = exp(cast(pair, wide) * (-2.0 * math.log(10000.0) / features))
    return sin(position * rate + cast(odd, wide) * (0.5 * math.pi))


__all__ = ["Embedding", "PositionalEncoding"]
