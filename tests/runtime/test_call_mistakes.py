"""What models, functions and single ops cannot be told: every refusal says what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import pytest
from mithril import P

from tests.runtime.test_calls import WEIGHTS, X, Y, line, loss, mlp


def compile_with(**options: Any) -> Callable[[], object]:
    return lambda: ml.compile(mlp(), line(), **options)


def jit_with(**options: Any) -> Callable[[], object]:
    return lambda: ml.jit(loss, backend=line(), **options)(WEIGHTS, X, Y)


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no mapping": (
        compile_with(at_rest="data"),
        ml.ShardingError,
        "at_rest of compile() got 'data'; give a mapping from name patterns to partition specs, such as",
    ),
    "no spec": (
        jit_with(at_rest={"up": "data"}),
        ml.ShardingError,
        "at_rest of jit() got 'up': 'data'; give a name pattern and a partition spec, such as",
    ),
    "no parameter": (
        compile_with(at_rest={"upp.*": P("data")}),
        ml.ShardingError,
        "pattern 'upp.*' of at_rest of compile() matches nothing; near names: 'up.weight'",
    ),
    "no leaf": (
        jit_with(at_rest={"weights.*": P("data")}),
        ml.ShardingError,
        "pattern 'weights.*' of at_rest of function 'loss' matches nothing",
    ),
    "no axis": (jit_with(at_rest=P("rows")), ml.MeshError, "has no axis 'rows'"),
    "no argument of a model": (
        compile_with(donate="parms"),
        ml.OptionError,
        "donate='parms' is no argument of evaluate() and matches no input or parameter; did you mean "
        "'params'?; arguments: 'params', 'inputs', 'output_gradients', by name or by position from 0; "
        "names: 'x', 'up.weight', 'down.weight'",
    ),
    "no position": (
        compile_with(donate=3),
        ml.OptionError,
        "donate=3 is no argument of evaluate()",
    ),
    "no choice": (
        compile_with(donate=0.5),
        ml.OptionError,
        "donate=0.5 chooses no arguments; give names, such as donate=('params',)",
    ),
    "no input": (
        compile_with(in_shardings={"z": P()}),
        ml.GraphError,
        "in_shardings names 'z', which is no input; inputs: 'x'",
    ),
    "no sharding of an input": (
        compile_with(in_shardings="data"),
        ml.ShardingError,
        "in_shardings='data' is no partition spec; give P(…), or a mapping from input names to such",
    ),
    "a word for an input": (
        compile_with(in_shardings={"x": "data"}),
        ml.ShardingError,
        "in_shardings of 'x' is 'data'; give a spec, such as P()",
    ),
    "an axis of an input": (
        compile_with(in_shardings=P("rows")),
        ml.MeshError,
        "in_shardings P('rows') of input 'x' does not fit;",
    ),
    "an option of an op": (
        lambda: line().add(X, X, donate=0, axis=1),
        ml.OptionError,
        "add() has no option 'axis'",
    ),
    "gradients of a function": (
        jit_with(differentiable=["x"]),
        ml.OptionError,
        "option 'differentiable' makes no sense for jit(); gradients are those of ml.grad(function, "
        "argnums=…)",
    ),
    "inference of a function": (
        jit_with(inference=True),
        ml.OptionError,
        "option 'inference' makes no sense for jit(); a function does what its code says",
    ),
    "stages of a function": (
        jit_with(pipeline=ml.PipelineOptions()),
        ml.OptionError,
        "option 'pipeline' makes no sense for jit(); only a model has stages",
    ),
    "a schedule of a function": (
        jit_with(pipeline_schedule="1f1b"),
        ml.OptionError,
        "option 'pipeline_schedule' makes no sense for jit(); only a model has stages",
    ),
    "precision of a function": (
        jit_with(precision=ml.Precision()),
        ml.OptionError,
        "option 'precision' makes no sense for jit(); a function computes in the dtypes of its arrays; "
        "write x.astype(…)",
    ),
    "shapes of a function": (
        jit_with(shapes={}),
        ml.OptionError,
        "option 'shapes' makes no sense for jit(); call function.plan(ml.TensorSpec(…)) to plan without",
    ),
    "static of a model": (
        compile_with(static="x"),
        ml.OptionError,
        "option 'static' makes no sense for compile(); a model has no values of Python among its",
    ),
    "offload of a step": (
        compile_with(offload_optimizer=True),
        ml.OptionError,
        "option 'offload_optimizer' makes no sense for compile(); give it to train_step()",
    ),
    "loss of a function": (
        jit_with(loss="loss"),
        ml.OptionError,
        "option 'loss' makes no sense for jit(); give it to train_step()",
    ),
    "threshold of a function": (
        jit_with(offload_threshold=1),
        ml.OptionError,
        "option 'offload_threshold' makes no sense for jit(); give it to compile",
    ),
    "hooks of a function": (
        jit_with(partition_hooks=True),
        ml.OptionError,
        "partition_hooks=True is not available on backend 'numpy'",
    ),
    "an unknown option of a function": (
        jit_with(donated=0),
        ml.OptionError,
        "jit() has no option 'donated'; did you mean 'donate'?; options:",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    call, error, text = MISTAKES[case]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
