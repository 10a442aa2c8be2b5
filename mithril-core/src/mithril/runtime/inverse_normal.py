"""The inverse of the normal distribution, on arrays.

Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics
37, 1988, the form for about 16 digits.
"""

from __future__ import annotations

import numpy as np

Coefficients = tuple[float, ...]
"""Of a polynomial, that of the highest power first."""
_MIDDLE: Coefficients = (
    2509.0809287301227,
    33430.57558358813,
    67265.7709270087,
    45921.95393154987,
    13731.69376550946,
    1971.5909503065513,
    133.14166789178438,
    3.3871328727963665,
)
_MIDDLE_BELOW: Coefficients = (
    5226.495278852854,
    28729.085735721943,
    39307.89580009271,
    21213.794301586597,
    5394.196021424751,
    687.1870074920579,
    42.31333070160091,
    1.0,
)
_OUTER: Coefficients = (
    0.0007745450142783414,
    0.022723844989269184,
    0.2417807251774506,
    1.2704582524523684,
    3.6478483247632045,
    5.769497221460691,
    4.630337846156546,
    1.4234371107496835,
)
_OUTER_BELOW: Coefficients = (
    1.0507500716444169e-09,
    0.0005475938084995345,
    0.015198666563616457,
    0.14810397642748008,
    0.6897673349851,
    1.6763848301838038,
    2.053191626637759,
    1.0,
)
_TAIL: Coefficients = (
    2.0103343992922881e-07,
    2.7115555687434876e-05,
    0.0012426609473880784,
    0.026532189526576124,
    0.29656057182850487,
    1.7848265399172913,
    5.463784911164114,
    6.657904643501103,
)
_TAIL_BELOW: Coefficients = (
    2.0442631033899397e-15,
    1.421511758316446e-07,
    1.8463183175100548e-05,
    0.0007868691311456133,
    0.014875361290850615,
    0.1369298809227358,
    0.599832206555888,
    1.0,
)


def invert_normal(probability: np.ndarray) -> np.ndarray:
    """Return the numbers that a standard normal one stays below with given probabilities.

    Args:
        probability: float64 numbers strictly between 0 and 1.

    >>> invert_normal(np.array([0.5, 0.975])).round(6)
    array([0.      , 1.959964])
    """
    centred = probability - 0.5
    small = 0.180625 - centred * centred
    middle = centred * np.polyval(_MIDDLE, small) / np.polyval(_MIDDLE_BELOW, small)
    root = np.sqrt(-np.log(np.minimum(probability, 1.0 - probability)))
    outer = np.polyval(_OUTER, root - 1.6) / np.polyval(_OUTER_BELOW, root - 1.6)
    tail = np.polyval(_TAIL, root - 5.0) / np.polyval(_TAIL_BELOW, root - 5.0)
    far = np.copysign(np.where(root <= 5.0, outer, tail), centred)
    return np.where(np.abs(centred) <= 0.425, middle, far)
