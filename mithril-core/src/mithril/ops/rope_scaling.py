"""How rotary positions are stretched, so that a model reads longer sequences than those it learnt.

A pair of elements that turns by `speed` radians a position then turns by a blend of `speed` and
`speed / factor`. What is blended how is said as in the configurations of Hugging Face's
transformers:

- linear: all pairs are slower (Chen et al., "Extending context window by positional
  interpolation", 2023);
- llama3: pairs that turn few times in the original length are (Grattafiori et al., "The Llama 3
  herd of models", 2024);
- yarn: likewise, by a ramp over the number of the pair, and vectors become longer (Peng et al.,
  "YaRN: Efficient context window extension", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mithril.errors import OptionError, kind_of, listing, nearest

LINEAR, LLAMA3, YARN = "linear", "llama3", "yarn"
_NEEDED: dict[str, tuple[str, ...]] = {
    LINEAR: ("factor",),
    LLAMA3: (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
    YARN: ("factor", "original_max_position_embeddings"),
}  # fmt: skip
_DEFAULTS: dict[str, dict[str, float | None]] = {
    LINEAR: {}, LLAMA3: {}, YARN: {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None},
}  # fmt: skip
Scaling = tuple[str | float, ...]
"""The kind and its numbers, in the order of `_NEEDED` and `_DEFAULTS`; empty for none."""


def read_scaling(given: object) -> Scaling:
    """Return the kind of a scaling and its numbers.

    Args:
        given: a mapping with `rope_type` and the numbers of that type by name, or None.

    Returns:
        The type and its numbers in order; nothing of None.

    Raises:
        OptionError: the type, or a number of it, is missing, unknown, or cannot be.

    >>> read_scaling({"rope_type": "linear", "factor": 4})
    ('linear', 4.0)
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise OptionError(
            f"rope_scaling is {kind_of(given)}; give a mapping, such as "
            f"{{'rope_type': 'linear', 'factor': 4.0}}"
        )
    kind = given.get("rope_type", given.get("type"))
    if kind not in _NEEDED:
        near = nearest(kind, _NEEDED) if isinstance(kind, str) else ""
        raise OptionError(f"rope_scaling has rope_type={kind!r}; choose {listing(_NEEDED)}{near}")
    numbers: dict[str, Any] = {n: v for n, v in given.items() if n not in ("rope_type", "type")}
    needed, defaults = _NEEDED[kind], _DEFAULTS[kind]
    for name in numbers:
        if name not in (*needed, *defaults):
            names = [*needed, *defaults]
            raise OptionError(
                f"rope_scaling '{kind}' has no '{name}'; it takes {listing(names)}"
                f"{nearest(str(name), names)}"
            )
    for name in needed:
        if name not in numbers:
            raise OptionError(
                f"rope_scaling '{kind}' needs '{name}'; give all of {listing(needed)}"
            )
    chosen: dict[str, Any] = {n: numbers.get(n, defaults.get(n)) for n in (*needed, *defaults)}
    for name, number in chosen.items():
        _check_number(kind, name, number)
    if kind == YARN and chosen["attention_factor"] is None:
        chosen["attention_factor"] = 0.1 * math.log(max(chosen["factor"], 1.0)) + 1.0
    if kind == LLAMA3 and chosen["high_freq_factor"] <= chosen["low_freq_factor"]:
        raise OptionError(
            f"rope_scaling 'llama3' has low_freq_factor={chosen['low_freq_factor']} and "
            f"high_freq_factor={chosen['high_freq_factor']}; the second must be larger"
        )
    return (kind, *(float(number) for number in chosen.values()))


def _check_number(kind: str, name: str, number: object) -> None:
    if number is None and name == "attention_factor":
        return
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise OptionError(f"rope_scaling '{kind}' has {name}={number!r}; give a positive number")


def speeds(base: float, scaling: Scaling, size: int) -> list[float]:
    """Return how many radians each pair of a head turns a position.

    Args:
        base: pair i turns by 1 / base**(2 i / size) without a scaling.
        scaling: what `read_scaling` returns.
        size: elements of a head.

    Returns:
        A number for each pair, computed in float64.

    >>> speeds(100.0, ("linear", 4.0), 4)
    [0.25, 0.025]
    """
    plain = [base ** (-2.0 * i / size) for i in range(size // 2)]
    if not scaling:
        return plain
    factor = float(scaling[1])
    shares = [_share(i, speed, base, scaling, size) for i, speed in enumerate(plain)]
    pairs = zip(plain, shares, strict=True)
    return [speed * (share + (1.0 - share) / factor) for speed, share in pairs]


def _share(pair: int, speed: float, base: float, scaling: Scaling, size: int) -> float:
    """Return how much of its own speed a pair keeps, from 0 to 1."""
    slope, start, of_speed = ramp(base, scaling, size)
    return min(max((speed if of_speed else pair) * slope + start, 0.0), 1.0)


def ramp(base: float, scaling: Scaling, size: int) -> tuple[float, float, bool]:
    """Return how much of its speed a pair keeps: clip(slope * x + start, 0, 1).

    Args:
        base: as in `speeds`.
        scaling: what `read_scaling` returns, not empty.
        size: elements of a head.

    Returns:
        The slope, the start, and whether x is the pair's speed, or its number.

    >>> ramp(10000.0, ("linear", 4.0), 64)
    (0.0, 0.0, False)
    """
    kind, *numbers = scaling
    if kind == LLAMA3:
        _, low, high, length = map(float, numbers)
        # length / wavelength, from low to high, becomes 0 to 1; the wavelength is 2 pi / speed.
        return length / (2.0 * math.pi * (high - low)), -low / (high - low), True
    if kind == YARN:
        _, length, fast, slow, _ = map(float, numbers)

        def pair_that_turns(times: float) -> float:
            return size * math.log(length / (times * 2.0 * math.pi)) / (2.0 * math.log(base))

        first = max(math.floor(pair_that_turns(fast)), 0)
        last: float = min(math.ceil(pair_that_turns(slow)), size - 1)
        last = last + 0.001 if last == first else last
        return -1.0 / (last - first), 1.0 + first / (last - first), False
    return 0.0, 0.0, False


def stretch(scaling: Scaling) -> float:
    """Return what rotated vectors are multiplied by: more than 1 with yarn.

    >>> stretch(("linear", 4.0))
    1.0
    """
    return float(scaling[-1]) if scaling and scaling[0] == YARN else 1.0


__all__: list[str] = []
