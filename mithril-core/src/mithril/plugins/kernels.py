"""Kernels that plugins bring for ops of the core: what one is, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PluginKernel:
    """A kernel of a plugin for an op of the core on a backend that exists.

    Args:
        op: the op's name, as plans print it.
        backend: the backend's name.
        function: what `ml.define_kernel` decorates, or a text `"module:attribute"` of where it is,
            which is imported when the backend is opened.
    """

    op: str
    backend: str
    function: Callable[..., Any] | str
