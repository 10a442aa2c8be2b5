"""Saving trees of arrays, and loading them on any mesh and backend.

A checkpoint is a directory: safetensors files that hold parts of arrays, and `index.json`, which
says what each part is of which array, and how the tree is made. The index is written last, at once,
and names all files of one save; files of another save are never written to. So a save that is
interrupted leaves the checkpoint that was there.
"""

from mithril.checkpoints.loading import load
from mithril.checkpoints.saving import save

__all__ = ["load", "save"]
