"""What modules of compiled models refuse, and how they say it."""

from __future__ import annotations

from pathlib import Path

import mithril as ml
import pytest
import torch

from tests.jax.models import TOKENS, mlp, small_gpt

X = torch.arange(48.0).reshape(8, 6) / 48


def test_what_is_passed_in_is_checked() -> None:
    compiled, inputs = small_gpt(ml.TorchBackend())
    module = compiled.as_module()
    tokens = torch.from_numpy(TOKENS)
    with pytest.raises(ml.GraphError, match="module is called with 3 inputs; the model has 2"):
        module(tokens, tokens, tokens)
    with pytest.raises(ml.GraphError, match="input 'tokens' is given by position and by name"):
        module(tokens, tokens=tokens)
    with pytest.raises(ml.GraphError, match=r"inputs given to the module are 'tokens'; .*'target'"):
        module(tokens)
    other = ml.TorchBackend().array(TOKENS)
    with pytest.raises(ml.BackendError, match="input 'tokens' belongs to another backend"):
        module(other, inputs["target"])


def test_parameters_are_checked() -> None:
    compiled, _ = mlp(ml.TorchBackend())
    with pytest.raises(ml.GraphError, match=r"parameters given to as_module\(\) are none; "):
        compiled.as_module({})
    with pytest.raises(ml.BackendError, match=r"'weight' has no size yet; .* or pass shapes="):
        ml.compile(ml.Linear(4), ml.TorchBackend()).as_module()
    module = compiled.as_module().half()
    with pytest.raises(
        ml.BackendError, match=r"of the module is torch.float16\[.*it was compiled as"
    ):
        module(X)


@pytest.mark.parametrize("name", ["forward", "seed", "training"])
def test_names_that_modules_have_are_refused(name: str) -> None:
    model = ml.Model()
    model |= ml.Linear(4, name=name)(input="x", output="y")
    compiled = ml.compile(model, ml.TorchBackend(), shapes={"x": (8, 6)})
    with pytest.raises(ml.GraphError, match=f"'{name}' is an attribute of torch.nn.Module already"):
        compiled.as_module()


def test_it_cannot_be_pickled(tmp_path: Path) -> None:
    compiled, _ = mlp(ml.TorchBackend())
    with pytest.raises(ml.BackendError, match=r"cannot be pickled; save module.state_dict\(\)"):
        torch.save(compiled.as_module(), tmp_path / "module.pt")
