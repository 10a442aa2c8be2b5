"""The one table of tolerances, (rtol, atol) by dtype; never loosened locally."""

TOLERANCE = {
    "float64": (1e-7, 1e-9),
    "float32": (1e-4, 5e-5),
    "bfloat16": (2e-2, 2e-2),
    "float16": (2e-3, 2e-3),
}

DIFFERENCES = (1e-5, 1e-7)
"""Of a slope taken from two float64 evaluations: half the digits cancel in their difference."""
