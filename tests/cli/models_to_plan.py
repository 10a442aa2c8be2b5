"""Scripts with models that commands plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from mithril.cli.app import app
from typer.testing import CliRunner

SCRIPT = """
import mithril as ml

model = ml.Model()
model |= ml.Linear(16, name="up")(input="x", output="h")
model |= ml.Relu(name="relu")(input="h", output="r")
model |= ml.Linear(4, name="down")(input="r", output="y")
model |= ml.MeanSquaredError(name="loss")(input="y", target="t", output="loss")

split = ml.Model()
split |= ml.Linear(16, name="up")(input="x", output="h")
split |= ml.Relu(name="relu")(input="h", output="r")
split |= ml.Linear(4, name="down")(input="r", output="y")
split |= ml.MeanSquaredError(name="loss")(input="y", target="t", output="loss")
split.shard({"up.weight": ml.P("tensor", None), "down.weight": ml.P(None, "tensor")})

words = ml.Model()
words |= ml.Embedding(50, 8)(input="ids", output="y")

compiled = ml.compile(
    split, ml.NumpyBackend(ml.Mesh(tensor=2)), shapes={"x": (8, 8), "t": (8, 4)}
)
number = 3
"""
SHAPES = "x=64x8@data,t=64x4@data"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*arguments: object) -> str:
    """Return what a command prints, or the error that it ends with."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{type(done.exception).__name__}: {done.exception}"
    return done.stdout + done.stderr
