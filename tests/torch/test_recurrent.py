"""LSTM and GRU are those of PyTorch: what they make, and their gradients."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest

from tests.tolerances import TOLERANCE

torch = pytest.importorskip("torch")

BATCH, SEQUENCE, FEATURES, HIDDEN, LAYERS = 3, 5, 4, 6, 2
RTOL, ATOL = TOLERANCE["float64"]


def name_of(parameter: str) -> str:
    """Return our name of one of PyTorch's: `weight_ih_l0_reverse` is of `layer_0.reverse`.

    >>> name_of("bias_hh_l1")
    'layer.layer_1.hidden.bias'
    """
    kind, part, number, *reverse = parameter.split("_")
    path = ".".join([f"layer_{number[1:]}", *reverse])
    return f"layer.{path}.{'input' if part == 'ih' else 'hidden'}.{kind}"


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_equal_those_of_pytorch(
    kind: str, bias: bool, given: bool, bidirectional: bool
) -> None:
    torch.manual_seed(0)
    options = {"num_layers": LAYERS, "bidirectional": bidirectional, "bias": bias}
    theirs = getattr(torch.nn, kind)(FEATURES, HIDDEN, batch_first=True, **options).double()
    x = torch.randn(BATCH, SEQUENCE, FEATURES, dtype=torch.float64, requires_grad=True)
    names = ("hidden", "cell")[: 2 if kind == "LSTM" else 1]
    shape = LAYERS * (1 + bidirectional), BATCH, HIDDEN
    states = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in names]
    start = tuple(states) if kind == "LSTM" else states[0]
    output, last = theirs(x, start) if given else theirs(x)
    results = [output, *(last if kind == "LSTM" else [last])]
    slopes = [torch.randn_like(result) for result in results]
    torch.autograd.backward(results, slopes)

    model = ml.Model()
    ports = {name: name for name in names} if given else {}
    lasts = {f"last_{name}": f"last_{name}" for name in names}
    layer = getattr(ml, kind)(HIDDEN, name="layer", **options)
    model |= layer(input="x", output="output", **ports, **lasts)
    backend = ml.NumpyBackend(dtype="float64")
    inputs = {"x": x, **(dict(zip(names, states, strict=True)) if given else {})}
    shapes = {name: ml.TensorSpec(tuple(value.shape), "float64") for name, value in inputs.items()}
    compiled = ml.compile(model, backend, shapes=shapes, differentiable=list(inputs))
    own = dict(compiled.randomize_params())
    parameters = {name_of(name): value for name, value in theirs.named_parameters()}
    assert set(parameters) == set(own)
    params = {n: p.detach().numpy().reshape(own[n].shape) for n, p in parameters.items()}
    arrays = {name: value.detach().numpy() for name, value in inputs.items()}
    wanted = {n: s.numpy() for n, s in zip(("output", *lasts), slopes, strict=True)}
    made, found = compiled.evaluate(params, arrays, wanted)

    for name, result in zip(("output", *lasts), results, strict=True):
        np.testing.assert_allclose(made[name], result.detach(), RTOL, ATOL, err_msg=name)
    for name, value in {**parameters, **inputs}.items():
        slope = value.grad.numpy().reshape(found[name].shape)
        np.testing.assert_allclose(found[name], slope, RTOL, ATOL, err_msg=name)


def test_dropout_lies_between_layers() -> None:
    """In training it changes what comes out; what the first layer ends in stays as it is."""
    x = np.random.default_rng(0).standard_normal((BATCH, SEQUENCE, FEATURES)).astype(np.float32)
    made = []
    for options in ({"dropout": 0.5}, {}):
        model = ml.Model()
        model |= ml.GRU(HIDDEN, num_layers=2, name="layer", **options)(input="x", output="y")
        compiled = ml.compile(model, ml.NumpyBackend())
        made.append(compiled.evaluate(compiled.randomize_params(0), {"x": x}, seed=1))
    first, second = ((found["last_hidden"].numpy()) for found in made)
    np.testing.assert_array_equal(first[0], second[0])
    assert (first[1] != second[1]).any()
