"""Compression that makes no sense is refused, with what would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import pytest


def compiled(compression: Any, **axes: int) -> ml.CompiledModel:
    backend = ml.NumpyBackend(ml.Mesh(axes or {"data": 2}))
    return ml.compile(ml.Linear(2), backend, gradient_compression=compression)


def form(*arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: ml.GradientCompression(*arguments, **options)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "unknown form": (lambda: compiled("fp61"), ml.OptionError, "'fp61' does not exist; did you mean 'fp16'"),
    "no form": (lambda: compiled(16), ml.OptionError, "gradient_compression is an int.*; give one of 'fp16'"),
    "of later": (lambda: compiled("powersgd"), ml.OptionError, "'powersgd' is not available yet; use one of"),
    "block of 0": (form("int8", block=0), ml.OptionError, "block=0 of GradientCompression is no number"),
    "block of a word": (form("int8", block="8"), ml.OptionError, "block='8' of GradientCompression"),
    "block of fp16": (form("fp16", block=8), ml.OptionError, "block=8 has no effect on gradient_compression='fp16', which has no scales; leave it out"),
    "names of a list": (form("fp16", names=["a"]), ml.OptionError, "is no pattern of parameter names"),
    "axes of a number": (form("fp16", axes=2), ml.OptionError, "axes=2 of GradientCompression names no mesh axes"),
    "unknown option": (form("fp16", bloc=8), ml.OptionError, "no option 'bloc'; did you mean 'block'"),
    "unknown axis": (
        lambda: compiled(ml.GradientCompression("fp16", axes="dat")), ml.MeshError,
        "gradient_compression: mesh .* has no axis 'dat'.*did you mean 'data'",
    ),
    "unknown name": (
        lambda: compiled({"wieght": "fp16"}), ml.OptionError,
        "pattern 'wieght' of gradient_compression matches no parameter; near names: 'weight'",
    ),
    "pattern of a number": (lambda: compiled({3: "fp16"}), ml.OptionError, "has 3 in the place of a pattern"),
    "names twice": (
        lambda: compiled({"weight": ml.GradientCompression("fp16", names="w*")}), ml.OptionError,
        r"names='w\*' under the pattern 'weight'; say the names once",
    ),
    "of a backend": (
        lambda: ml.NumpyBackend(device_mesh=2, gradient_compression="zip"), ml.OptionError, "'zip' does not exist",
    ),
    "of a function": (
        lambda: ml.jit(lambda x: x, gradient_compression="fp16"), ml.OptionError, "only a model has parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_refusals(mistake: str) -> None:
    call, error, text = MISTAKES[mistake]
    with pytest.raises(error, match=text):
        call()


def test_the_guides_name_of_an_axis_is_known() -> None:
    found = compiled(ml.GradientCompression("fp16", axes="data_parallel"))
    ((_, form),) = found.settings.plan.compression.rules
    assert form is not None
    assert form.axes == ("data",)
