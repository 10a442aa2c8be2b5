"""Quantities: numbers with units, as profile files hold them; a wrong unit is refused.

A figure without a unit would be read in whatever unit its reader thinks of, so none is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from mithril.errors import OptionError, kind_of

_FORM = re.compile(r"(?P<number>[-+]?[\w.+-]*?)\s*(?P<unit>[A-Za-zµμ][A-Za-zµμ/]*)")
# Decimal numbers, so that "100 ns" is the float that a programmer writes as 1e-7.
_DECIMAL = {p: Decimal(10) ** (3 * n) for n, p in enumerate(("", "k", "M", "G", "T", "P"))}
_BINARY = {p: Decimal(2) ** (10 * n) for n, p in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)}
_MICRO = Decimal("1e-6")
_SMALL = {
    "": Decimal(1), "m": Decimal("1e-3"), "u": _MICRO, "µ": _MICRO, "μ": _MICRO,
    "n": Decimal("1e-9"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a quantity is a quantity of.

    Args:
        name: for messages: `a time`.
        unit: its unit without a prefix: `s`.
        prefixes: factors by prefix.
        example: a quantity of it.
    """

    name: str
    unit: str
    prefixes: Mapping[str, Decimal]
    example: str

    def read(self, given: object, what: str) -> float:
        """Return a quantity as a number of units without prefix.

        Args:
            given: a text, `80 GB`.
            what: whose quantity it is, for messages.

        Raises:
            OptionError: it is no text, has no unit or another, or its number is not finite or is
                below 0.

        >>> TIME.read("2.5 us", "latency")
        2.5e-06
        """
        if not isinstance(given, str):
            raise self._refuse(what, f"{kind_of(given)} without a unit" if given else repr(given))
        match = _FORM.fullmatch(given.strip())
        prefix = match["unit"].removesuffix(self.unit) if match else ""
        if match is None or not match["unit"].endswith(self.unit) or prefix not in self.prefixes:
            raise self._refuse(what, f"'{given}'")
        number = _read_number(match["number"])
        if number is None or not number.is_finite() or number < 0:
            raise OptionError(
                f"{what} is '{given}', no number of at least 0; give {self.name}, such as "
                f"'{self.example}'"
            )
        return float(number * self.prefixes[prefix])

    def write(self, number: float) -> str:
        """Return a quantity with a prefix that leaves few digits before the point.

        Args:
            number: of units without prefix.

        >>> BYTES.write(8e10), RATE.write(6.7e13), TIME.write(2.5e-06), TIME.write(0.0)
        ('80 GB', '67 TFLOP/s', '2.5 us', '0 s')
        """
        by_size = sorted((factor, p) for p, factor in self.prefixes.items() if p.isascii())
        fitting = [entry for entry in by_size if entry[1] not in _BINARY and entry[0] <= number]
        factor, prefix = fitting[-1] if fitting and number else (1, "")
        return f"{number / float(factor):.6g} {prefix}{self.unit}"

    def _refuse(self, what: str, given: str) -> OptionError:
        return OptionError(f"{what} is {given}; give {self.name}, such as '{self.example}'")


# Many write KB; what is written is kB.
BYTES = Dimension("a number of bytes", "B", {**_DECIMAL, "K": _DECIMAL["k"], **_BINARY}, "80 GB")
BANDWIDTH = Dimension("bytes a second", "B/s", {**_DECIMAL, **_BINARY}, "900 GB/s")
TIME = Dimension("a time", "s", _SMALL, "2.5 us")
WORK = Dimension("a number of operations", "FLOP", _DECIMAL, "1 GFLOP")
RATE = Dimension("operations a second", "FLOP/s", _DECIMAL, "67 TFLOP/s")


def _read_number(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
