"""Compression that makes no sense is refused, with what would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest


def compiled(compression: Any, **axes: int) -> ml.CompiledModel:
    backend = ml.NumpyBackend(ml.Mesh(axes or {"data": 2}))
    return ml.compile(ml.Linear(2), backend, gradient_compression=compression)


def of_backend(compression: Any) -> None:
    """Evaluate gradients on a backend whose default keeps a state."""
    backend = ml.NumpyBackend(ml.Mesh(data=2), gradient_compression=compression)
    model = ml.compile(ml.Linear(2), backend)
    params = model.randomize_params(seed=0)
    x = np.ones((4, 3), np.float32)
    model.evaluate(params, {"input": x})  # outputs alone need none
    model.evaluate(params, {"input": x}, {"output": np.ones((4, 2), np.float32)})


def stepped(compression: Any, optimizer: Any = None, **options: Any) -> Any:
    model = ml.Model()
    model |= ml.Linear(1, name="line")(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {n: ml.TensorSpec((4, k), sharding=ml.P("data")) for n, k in (("x", 2), ("t", 1))}
    backend, rule = ml.NumpyBackend(ml.Mesh(data=2)), optimizer or ml.optim.sgd(0.1)
    options["gradient_compression"] = compression
    return ml.train_step(model, backend, rule, shapes=shapes, **options)


def gathered(dtype: Any) -> Any:
    return ml.compile(ml.Linear(2), ml.NumpyBackend(ml.Mesh(data=2)), gather_dtype=dtype)


def form(*arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: ml.GradientCompression(*arguments, **options)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "unknown form": (lambda: compiled("fp61"), ml.OptionError, "'fp61' does not exist; did you mean 'fp16'"),
    "no form": (lambda: compiled(16), ml.OptionError, "gradient_compression is an int.*; give one of 'fp16'"),
    "no step": (
        lambda: compiled("powersgd"), ml.OptionError,
        "'powersgd' keeps a state from step to step, which gradients of evaluate.* no place for; give it to ml.train_step",
    ),
    "no step, error feedback": (
        lambda: compiled(ml.GradientCompression("fp16", error_feedback=True)), ml.OptionError, "give it to ml.train_step",
    ),
    "no step, of a backend": (lambda: of_backend("powersgd"), ml.OptionError, "give it to ml.train_step"),
    "rank of 0": (form("powersgd", rank=0), ml.OptionError, "rank=0 of GradientCompression is no number of columns; give 1 or more"),
    "rank of int8": (form("int8", rank=2), ml.OptionError, "rank=2 has no effect on gradient_compression='int8'; it is for 'powersgd'; leave it out"),
    "warmup below 0": (form("powersgd", warmup=-1), ml.OptionError, "warmup=-1 of GradientCompression is no number of steps; give 0 or more"),
    "error feedback of a word": (form("fp16", error_feedback="yes"), ml.OptionError, "error_feedback='yes' is neither True nor False"),
    "loss scale": (
        lambda: stepped("powersgd", loss_scale="dynamic"), ml.OptionError,
        "keeps a state of gradients, which loss_scale='dynamic' changes",
    ),
    "diloco": (
        lambda: stepped("powersgd", ml.optim.diloco(ml.optim.sgd(0.1), every=2, axis="data")), ml.OptionError,
        "which parts that train by themselves .* have no place for",
    ),
    "unknown name of a step": (
        lambda: stepped({"wieght": "powersgd"}), ml.OptionError, "'wieght' of gradient_compression matches no parameter",
    ),
    "gathered in 8 bits": (lambda: gathered("int8"), ml.OptionError, "gather_dtype='int8' does not exist; known: 'bf16'"),
    "gathered by a function": (
        lambda: ml.jit(lambda x: x, gather_dtype="bf16"), ml.OptionError, "only a model has parameters that are gathered",
    ),
    "block of 0": (form("int8", block=0), ml.OptionError, "block=0 of GradientCompression is no number"),
    "block of a word": (form("int8", block="8"), ml.OptionError, "block='8' of GradientCompression"),
    "block of fp16": (form("fp16", block=8), ml.OptionError, "block=8 has no effect on gradient_compression='fp16'; it is for 'int8'; leave it out"),
    "names of a list": (form("fp16", names=["a"]), ml.OptionError, "is no pattern of parameter names"),
    "axes of a number": (form("fp16", axes=2), ml.OptionError, "axes=2 of GradientCompression names no mesh axes"),
    "unknown option": (form("fp16", bloc=8), ml.OptionError, "no option 'bloc'; did you mean 'block'"),
    "unknown axis": (
        lambda: compiled(ml.GradientCompression("fp16", axes="dat")), ml.OptionError,
        "gradient_compression names axis 'dat', which the mesh lacks; did you mean 'data'",
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
