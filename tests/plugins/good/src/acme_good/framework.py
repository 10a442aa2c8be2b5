"""Stands for a heavy framework: imported only when the backend is opened."""

from mithril.engine.numpy_engine import NumpyEngine


class SimulatedEngine(NumpyEngine):
    """The NumPy engine under another name."""

    name = "tpu-sim"
