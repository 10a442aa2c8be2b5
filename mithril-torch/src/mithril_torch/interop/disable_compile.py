"""Functions that `torch.compile` leaves alone: the backend has options of its own to compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Made = TypeVar("Made")


def disable_compile(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Return a function that is called as it is, also where `torch.compile` looks into its callers.

    `torch.compiler.disable` alone would do, but loads the compiler, which takes seconds.
    """

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        if torch.compiler.is_compiling():
            made: Made = torch.compiler.disable(function)(*args, **kwargs)
            return made
        return function(*args, **kwargs)

    return call
