"""Numbers of NumPy, such as `y.max() + 1`, are taken where numbers of Python are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest

ONE = ml.NumpyBackend()
X = ONE.ones(4, 6)


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.Linear(3, name="fc")(input="x", output="y")
    return made


def stage(number: Any) -> object:
    made = model()
    made.stage("fc", number)
    return made.snapshot().stage_rules[0].stage


def pipelined(**options: Any) -> object:
    return ml.Pipeline([ml.Relu()], **options).snapshot().pipeline


def drawn(seed: Any) -> object:
    compiled = ml.compile(model(), ONE, shapes={"x": (4, 6)})
    return compiled.randomize_params(seed=seed)["fc.weight"].numpy().tolist()


def dropped(seed: Any) -> object:
    return (
        ml.compile(ml.Dropout(0.5), ONE)
        .evaluate({}, {"input": X}, seed=seed)["output"]
        .numpy()
        .tolist()
    )


USES: dict[str, Callable[[Any], object]] = {
    "mesh": lambda n: ml.Mesh(data=n),
    "mesh by shape": lambda n: ml.NumpyBackend(device_mesh=(n, n)).mesh,
    "dimension": lambda n: repr(ml.Linear(n)),
    "pair": lambda n: repr(ml.MaxPool2d((n, n))),
    "count": lambda n: repr(ml.Repeat(ml.Relu(), n)),
    "device": lambda n: repr(ml.Linear(2, device_id=n)),
    "flag": lambda n: ml.Linear(2, bias=n > 5).parameters,
    "rate": lambda n: repr(ml.Dropout(n / 4)),
    "micro-batch": lambda n: repr(pipelined(microbatch_size=n)),
    "assignment": lambda n: repr(pipelined(device_assignment=[n])),
    "stage": lambda n: repr(stage(n)),
    "stages": lambda n: repr(stage([n, n])),
    "shape": lambda n: repr(ml.TensorSpec((n, 3))),
    "shapes": lambda n: str(ml.compile(model(), ONE, shapes={"x": (n, 6)}).plan),
    "summary": lambda n: model().summary({"x": (n, 6)}),
    "seed of parameters": drawn,
    "seed of masks": dropped,
    "seed of a sample": lambda n: ONE.rand(3, seed=n).numpy().tolist(),
    "range": lambda n: ONE.randint(n - 2, n + 5, (3,), seed=1).numpy().tolist(),
    "length": lambda n: ml.scan(lambda c, _: (c + 1.0, None), X, length=n)[0].numpy().tolist(),
    "argnums": lambda n: ml.grad(lambda a, b, c: (c**2).sum(), argnums=n)(X, X, X).numpy().tolist(),
    "static": lambda n: ml.jit(lambda x, y, k: x * k, static=n)(X, X, 2).numpy().tolist(),
    "bytes": lambda n: repr(ml.compile(model(), ONE, max_reshard_bytes=n)),
}


@pytest.mark.parametrize("number", [np.int64(2), np.int32(2), np.uint8(2)], ids=lambda n: n.dtype)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_numbers_of_numpy_are_numbers(use: Callable[[Any], object], number: Any) -> None:
    assert use(number) == use(2)


def test_numbers_of_numpy_that_do_not_fit_are_refused_as_others_are() -> None:
    with pytest.raises(ml.OptionError, match=r"'dimension' is 2\.0; it must be a positive integer"):
        ml.Linear(np.float32(2))
    with pytest.raises(ml.MeshError, match="mesh axis 'data' has size 0; give a positive integer"):
        ml.Mesh(data=np.int64(0))
    with pytest.raises(ml.OptionError, match=r"seed=-1 is not an integer in \[0, 2\*\*32\)"):
        drawn(np.int64(-1))
