"""What the scripts share: the backend that the command line names, on eight devices."""

from __future__ import annotations

import argparse

import mithril as ml
import numpy as np

DEVICES = 8


def backend_on(mesh: ml.Mesh) -> ml.Backend:
    """Return the backend of `--backend` on a mesh."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="numpy", help="numpy, jax, …")
    chosen, _ = parser.parse_known_args()  # a notebook's own arguments are not ours
    return ml.open_backend(chosen.backend, mesh)


def line(devices: int = DEVICES) -> ml.Backend:
    """Return the backend on a mesh of one axis, `x`."""
    return backend_on(ml.Mesh(x=devices))


def close(found: object, expected: object, tolerance: float = 1e-4) -> None:
    """Check numbers against NumPy's."""
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)


def kinds(plan: object) -> list[str]:
    """Return the kinds of the collectives of a plan."""
    return [row.kind for row in plan.collectives()]
