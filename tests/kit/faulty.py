"""Backends with one fault each, installed as a stranger's would be: variants of the NumPy engine."""

from __future__ import annotations

from pathlib import Path

from tests.plugin_packages import write_plugin

SOURCE = """
import numpy as np
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.numpy_engine import NUMPY_KERNELS, NumpyEngine
from mithril.types import DType

KERNELS = dict(NUMPY_KERNELS)

class Faulty(NumpyEngine):
    name = "faulty"

    @property
    def own_kernels(self):
        return KERNELS

    def lower(self, program, donate=()):
        return LockstepExecutable(program, self.kernel_table, np, checks=self.kernel_checks)

def open_faulty(mesh, options):
    return Faulty(mesh)

def replace(name, run):
    "Give an op a kernel that is no factory of its own: the same for all types."
    KERNELS[name] = lambda op, types: run

def wrap(name, change):
    "Change what the right kernel of an op returns."
    right = NUMPY_KERNELS[name]
    def factory(op, types):
        run = right(op, types)
        return lambda *operands: change(run(*operands))
    KERNELS[name] = factory

GAPS = {{}}
{fault}

@hookimpl
def mithril_backends():
    return [BackendSpec("faulty", open_faulty, (2, 0), known_gaps=GAPS)]
"""


def write_faulty(folder: Path, fault: str) -> None:
    """Write the backend `faulty` with a fault, Python code that stands behind what it changes."""
    write_plugin(folder, "faulty", SOURCE.format(fault=fault))
