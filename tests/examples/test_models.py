"""The examples of models learn, and print the same on every backend and mesh."""

from __future__ import annotations

import ast
import importlib.util
import runpy
from pathlib import Path

import mithril as ml
import numpy as np
import pytest

from tests.examples.test_placement import EXAMPLES, PACKAGES, numbers, ran
from tests.profiles import quick
from tests.tolerances import TOLERANCE

MESHES = {
    "numpy": "data=2,tensor=2",
    "jax": "data=2,tensor=2",
    "torch": "data=2",
    "mlx": "tensor=2",
}
LAST_LOSS = {
    "encoder_decoder": 0.05,
    "llama": 0.2,
    "lora": 0.4,
    "lstm_text": 0.25,
    "unet": 0.15,
    "vae": 25.0,
    "vit": 0.05,
}
SAID = {
    "encoder_decoder": "118 of 118 letters are right",
    "llama": "the mat sat on the mat; the mat ",
    "lora": "trained 168 of 844 numbers",
    "lstm_text": "the rat sat on the rat",
    "unet": "....########....",
    "vae": "..####..",
    "vit": "16 of 16 new images are told apart",
}


@quick(lambda model: model == "lora")
@quick(lambda backend: backend == "numpy")  # the others start workers, or compile longer
@pytest.mark.parametrize("backend", PACKAGES)
@pytest.mark.parametrize("model", LAST_LOSS)
def test_a_model(model: str, backend: str) -> None:
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")
    expected = ran(f"{model}.py")
    others = ["--other-mesh", "tensor=2"] if model == "llama" else []
    found = ran(f"{model}.py", "--backend", backend, "--mesh", MESHES[backend], *others)
    losses = numbers(expected)
    assert losses[-1] < LAST_LOSS[model] < losses[0]
    assert any(SAID[model] in line for line in expected)
    relative, absolute = TOLERANCE["float32"]
    assert numbers(found) == pytest.approx(losses, rel=relative, abs=absolute)
    assert [x for x in found if "loss" not in x] == [x for x in expected if "loss" not in x]


def test_adapters_serve_beside_the_weights_and_in_them() -> None:
    without, inside, beside = numbers(ran("lora.py"))[-3:]
    assert beside == pytest.approx(inside, rel=TOLERANCE["float32"][0])
    assert 4 * beside < without


def test_a_cache_changes_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    llama = runpy.run_path(str(EXAMPLES / "llama.py"))
    backend = ml.NumpyBackend(ml.Mesh(data=1, tensor=2))
    whole = ml.compile(llama["llama"](cached=False), backend, outputs=["logits"])
    writer = ml.compile(llama["llama"](cached=True), backend, inference=True)
    params, ids = whole.randomize_params(3), llama["IDS"][None, :9]
    expected = whole.evaluate(params, {"ids": ids})["logits"].numpy()
    shape = (llama["LAYERS"], 1, 9, llama["GROUPS"], llama["WIDTH"] // llama["HEADS"])
    made = {"next_keys": backend.zeros(*shape), "next_values": backend.zeros(*shape)}
    found = []
    for start, end in ((0, 4), (4, 6), *((i, i + 1) for i in range(6, 9))):
        inputs = {"ids": ids[:, start:end], "position": np.int32(start)}
        inputs |= {"keys": made["next_keys"], "values": made["next_values"]}
        made = writer.evaluate(params, inputs, donate=("keys", "values"))
        found.append(made["logits"].numpy())
    relative, absolute = TOLERANCE["float32"]
    np.testing.assert_allclose(np.concatenate(found, 1), expected, relative, absolute)
    assert writer.recompiles == 3


@pytest.mark.parametrize("model", LAST_LOSS)
def test_a_model_is_short(model: str) -> None:
    """What makes the model (its layers and the function that joins them) has under 80 lines."""
    tree = ast.parse(Path(EXAMPLES / f"{model}.py").read_text(encoding="utf-8"))
    parts = [part for part in tree.body if isinstance(part, ast.FunctionDef) and is_model(part)]
    assert 0 < sum(part.end_lineno - part.lineno + 1 for part in parts if part.end_lineno) < 80


def is_model(function: ast.FunctionDef) -> bool:
    """Return whether a function is a layer or returns a model."""
    texts = [
        *map(ast.unparse, function.decorator_list),
        ast.unparse(function.returns or ast.Name("")),
    ]
    return any(text.startswith(("ml.layer", "ml.Model")) for text in texts)
