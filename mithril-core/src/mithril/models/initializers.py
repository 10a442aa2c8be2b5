"""How parameters start: distributions as plain data.

An initializer only describes; whoever creates the parameters hands it a counter-based generator, by
which it draws the part that a device holds, so that numbers are the same on every mesh.

Variances follow fan_in and fan_out, the inputs and outputs that meet at one element. A weight is
(out, in, …): fan_in is `in` times the elements of the kernel that follow, fan_out likewise; leading
dimensions that only stack weights (of repetitions, of experts) do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from mithril.errors import OptionError, ShapeError, listing, nearest
from mithril.mesh import Box
from mithril.types import Shape


class RandomKey(Protocol):
    """Random numbers by position: what is drawn for an element does not depend on the box."""

    def uniform(self, shape: Shape, box: Box, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Return float64 numbers in [low, high), for the part of a shape that a box cuts out."""
        ...

    def normal(self, shape: Shape, box: Box) -> np.ndarray:
        """Return float64 numbers of mean 0 and standard deviation 1."""
        ...

    def normal_between(self, shape: Shape, box: Box, low: float, high: float) -> np.ndarray:
        """Return the same, of those in [low, high] only."""
        ...


class Initializer:
    """How a parameter starts; derive from it, with a method `draw`, to have one of your own.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Signs(Initializer):
    ...     size: float
    ...
    ...     def draw(self, key, shape, box):
    ...         return self.size * np.sign(key.normal(shape, box))
    >>> Signs(0.5)
    Signs(size=0.5)
    """

    needs_whole: ClassVar[bool] = False
    """Whether a part cannot be drawn alone; `draw` is then asked for all of it, once a process."""

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the first values of a part of a parameter.

        Args:
            key: random numbers by position; numbers from elsewhere differ from mesh to mesh.
            shape: of the whole parameter.
            box: which part, a slice for each dimension.

        Returns:
            Numbers in the sizes of the box.
        """
        raise OptionError(
            f"initializer {self!r} has no method 'draw'; write draw(self, key, shape, box), which "
            f"returns the part of the parameter that the box cuts out"
        )

    def resolve(self, name: str, shape: Shape, stacked: int) -> Initializer:
        """Return what draws a parameter of a shape; by default the initializer itself.

        Args:
            name: of the parameter, for messages.
            shape: its sizes.
            stacked: how many leading dimensions only stack parameters.

        Raises:
            ShapeError: the initializer does not suit a parameter of that shape.
        """
        return self


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Numbers spread evenly between -bound and bound."""

    bound: float

    def __post_init__(self) -> None:
        check_numbers(self, least={"bound": 0})

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        return key.uniform(shape, box, -self.bound, self.bound)


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Numbers with a standard deviation around a mean."""

    standard_deviation: float
    mean: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, least={"standard_deviation": 0})

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        drawn = self.standard_deviation * key.normal(shape, box)
        return drawn + self.mean if self.mean else drawn


@dataclass(frozen=True, slots=True)
class TruncatedNormal(Initializer):
    """Numbers of a normal distribution, those far from the mean left out.

    Args:
        standard_deviation: of the distribution before anything is left out, as in JAX.
        mean: of the same.
        low: the least number kept, in standard deviations from the mean.
        high: the greatest, likewise.
    """

    standard_deviation: float
    mean: float = 0.0
    low: float = -2.0
    high: float = 2.0

    def __post_init__(self) -> None:
        check_numbers(self, least={"standard_deviation": 0})
        if self.low >= self.high:
            raise OptionError(
                f"TruncatedNormal keeps numbers from low={self.low} to high={self.high}; give a "
                f"low below high, such as -2 and 2"
            )

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        drawn = key.normal_between(shape, box, self.low, self.high)
        return self.mean + self.standard_deviation * drawn


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """The same number everywhere."""

    value: float

    def __post_init__(self) -> None:
        check_numbers(self)

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        return np.full(_sizes(box), self.value)


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    """Zero everywhere."""

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        return np.zeros(_sizes(box))


@dataclass(frozen=True, slots=True)
class Ones(Initializer):
    """One everywhere."""

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        return np.ones(_sizes(box))


@dataclass(frozen=True, slots=True)
class ZeroRow(Initializer):
    """What another initializer draws, but for one row of zeros.

    Args:
        others: draws the other rows.
        row: which of the rows of each weight.
        stacked: how many leading dimensions only stack weights.
    """

    others: Initializer
    row: int
    stacked: int = 0

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        drawn, rows = np.array(self.others.draw(key, shape, box)), box[self.stacked]
        if rows.start <= self.row < rows.stop:
            drawn[(slice(None),) * self.stacked + (self.row - rows.start,)] = 0
        return drawn

    def resolve(self, name: str, shape: Shape, stacked: int) -> Initializer:
        """Return the same for a parameter of the shape."""
        return ZeroRow(self.others.resolve(name, shape, stacked), self.row, stacked)


@dataclass(frozen=True, slots=True)
class Xavier(Initializer):
    """Variance gain^2 * 2 / (fan_in + fan_out), which keeps that of activations and gradients.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    2010.

    Args:
        distribution: "uniform" or "normal".
        gain: factor of the standard deviation.

    >>> Xavier().resolve("w", (8, 16), 0)
    Uniform(bound=0.5)
    """

    distribution: str = "uniform"
    gain: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, least={"gain": 0})
        _check_choice(self, "distribution", ("uniform", "normal"))

    def resolve(self, name: str, shape: Shape, stacked: int) -> Initializer:
        """Return the distribution of the variance that the shape asks for."""
        fan_in, fan_out = fans(self, name, shape, stacked)
        return _spread(self.distribution, 2.0 * self.gain**2 / (fan_in + fan_out))


SQUARED_GAINS: Mapping[str, float] = {
    "linear": 1.0, "sigmoid": 1.0, "tanh": 25.0 / 9.0, "relu": 2.0, "leaky_relu": 2.0,
    "selu": 9.0 / 16.0,
}  # fmt: skip
"""Factors of the variance by nonlinearity, as PyTorch has them."""


@dataclass(frozen=True, slots=True)
class Kaiming(Initializer):
    """Variance gain^2 / fan, which keeps that of activations, or of gradients.

    He et al., "Delving deep into rectifiers", 2015.

    Args:
        distribution: "uniform" or "normal".
        mode: "fan_in" keeps the variance of activations, "fan_out" that of gradients.
        nonlinearity: what follows the layer, which gives the gain: "relu", "leaky_relu", "tanh",
            "sigmoid", "selu" or "linear".
        slope: of a "leaky_relu" below zero.

    >>> Kaiming("normal").resolve("w", (8, 32), 0)
    Normal(standard_deviation=0.25, mean=0.0)
    """

    distribution: str = "uniform"
    mode: str = "fan_in"
    nonlinearity: str = "relu"
    slope: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self)
        _check_choice(self, "distribution", ("uniform", "normal"))
        _check_choice(self, "mode", ("fan_in", "fan_out"))
        _check_choice(self, "nonlinearity", tuple(SQUARED_GAINS))
        if self.slope and self.nonlinearity != "leaky_relu":
            raise OptionError(
                f"Kaiming option slope={self.slope} has no effect with nonlinearity="
                f"'{self.nonlinearity}'; give nonlinearity='leaky_relu', or leave it out"
            )

    def resolve(self, name: str, shape: Shape, stacked: int) -> Initializer:
        """Return the distribution of the variance that the shape asks for."""
        fan_in, fan_out = fans(self, name, shape, stacked)
        fan = fan_in if self.mode == "fan_in" else fan_out
        gain = SQUARED_GAINS[self.nonlinearity] / (1.0 + self.slope**2)
        return _spread(self.distribution, gain / fan)


@dataclass(frozen=True, slots=True)
class Orthogonal(Initializer):
    """Rows, or columns where there are fewer, that are orthogonal and of length `gain`.

    Of a kernel all dimensions but the first are one. Saxe, McClelland and Ganguli, "Exact solutions
    to the nonlinear dynamics of learning in deep linear neural networks", 2014. Every process makes
    the whole matrix, and cuts its part out of it.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, least={"gain": 0})

    def resolve(self, name: str, shape: Shape, stacked: int) -> Initializer:
        """Return what draws matrices of the shape."""
        _check_weight(self, name, shape, stacked)
        return _OrthogonalStack(self.gain, stacked)


@dataclass(frozen=True, slots=True)
class _OrthogonalStack(Initializer):
    """Orthogonal matrices, one for each index of the leading dimensions."""

    gain: float
    stacked: int
    needs_whole: ClassVar[bool] = True

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the whole parameter.

        Q of a normal matrix's QR is uniform over orthogonal matrices if R's diagonal is positive
        (Mezzadri, "How to generate random matrices from the classical compact groups", 2007).
        """
        rows = shape[self.stacked]
        columns = math.prod(shape[self.stacked + 1 :])
        drawn = key.normal(shape, box).reshape(*shape[: self.stacked], rows, columns)
        tall = drawn if rows >= columns else np.swapaxes(drawn, -1, -2)
        q, r = np.linalg.qr(tall)
        signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
        q = q * signs[..., None, :]
        whole = q if rows >= columns else np.swapaxes(q, -1, -2)
        return self.gain * whole.reshape(shape)


def fans(initializer: Initializer, name: str, shape: Shape, stacked: int = 0) -> tuple[int, int]:
    """Return fan_in and fan_out of a weight (out, in, …); see the module's text.

    Raises:
        ShapeError: the parameter is no such weight.
    """
    _check_weight(initializer, name, shape, stacked)
    out, inside, *kernel = shape[stacked:]
    window = math.prod(kernel)
    return max(inside * window, 1), max(out * window, 1)


def fan_in_uniform(fan_in: int) -> Uniform:
    """Return PyTorch's default for Linear and Conv2d: uniform within 1 / sqrt(fan_in).

    >>> fan_in_uniform(16)
    Uniform(bound=0.25)
    """
    return Uniform(1.0 / math.sqrt(max(fan_in, 1)))


def check_numbers(initializer: Any, least: Mapping[str, float] | None = None) -> None:
    """Raise unless all fields that are declared as numbers are finite ones, none below its least.

    Raises:
        OptionError: one is not.
    """
    for field in fields(initializer):
        if field.type != "float":
            continue
        value, bound = getattr(initializer, field.name), (least or {}).get(field.name)
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or (bound is not None and value < bound):
            wanted = "a number" if bound is None else f"a number of {bound} or more"
            raise OptionError(
                f"{type(initializer).__name__} option {field.name} is {value!r}; give {wanted}"
            )


def _check_choice(initializer: Initializer, option: str, known: tuple[str, ...]) -> None:
    value = getattr(initializer, option)
    if value not in known:
        raise OptionError(
            f"{type(initializer).__name__} option {option} is {value!r}; give one of "
            f"{listing(known)}{nearest(str(value), known)}"
        )


def _check_weight(initializer: Initializer, name: str, shape: Shape, stacked: int) -> None:
    if len(shape) - stacked < 2:
        raise ShapeError(
            f"{initializer!r} needs a weight (out, in, …) and '{name}' is {list(shape)}; give it "
            f"to weights only, such as by the pattern '*.weight', or use Normal or Uniform"
        )


def _spread(distribution: str, variance: float) -> Initializer:
    """Return a distribution of a variance; that of an even one is bound^2 / 3."""
    return (
        Normal(math.sqrt(variance))
        if distribution == "normal"
        else Uniform(math.sqrt(3.0 * variance))
    )


def _sizes(box: Box) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in box)
