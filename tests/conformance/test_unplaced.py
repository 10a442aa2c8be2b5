"""On every backend a loaded dict lies as the parameters that a model draws."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.profiles import quick
from tests.runtime.loaded import INPUTS, SEED, WEIGHTS, check_loaded, megatron, staged

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@quick(lambda backend: backend != LOCKSTEP)
def test_loaded_parameters_lie_as_annotated(backend: str) -> None:
    own = opened(backend, data=2, tensor=2)
    batch = {name: own.array(x, sharding=P("data")) for name, x in INPUTS.items()}
    check_loaded(own, megatron(), batch)


@quick(lambda backend: backend != LOCKSTEP)
def test_loaded_parameters_at_rest_stay_there(backend: str) -> None:
    check_loaded(opened(backend, data=2, tensor=2), megatron(at_rest=True), INPUTS)


@quick(lambda backend: backend == "mlx")
def test_loaded_parameters_of_stages_lie_there(backend: str) -> None:
    check_loaded(opened(backend, pipeline=2), staged(), INPUTS)


def test_tensors_of_pytorch_are_taken_everywhere(backend: str) -> None:
    torch = pytest.importorskip("torch")
    own = opened(backend, data=2)
    for x in (torch.arange(6.0).bfloat16(), torch.nn.Parameter(torch.arange(6.0))):
        for tensor in (x, torch.nn.Parameter(x.detach()).reshape(2, 3).T):
            found = own.array(tensor)
            assert found.dtype == str(x.dtype).removeprefix("torch.")
            expected = tensor.detach().float().numpy()
            np.testing.assert_array_equal(found.numpy().astype(np.float32), expected)


@pytest.mark.parametrize("method", ["as_module", "as_jax"])
def test_models_for_frameworks_do_not_depend_on_what_ran(backend: str, method: str) -> None:
    own = opened(backend, data=2, tensor=2)
    compiled = ml.compile(megatron(), own)
    drawn = ml.compile(megatron(), ml.NumpyBackend(), shapes=INPUTS).randomize_params()
    whole = {name: own.array(x.numpy(), sharding=P()) for name, x in drawn.items()}
    compiled.evaluate(whole, INPUTS, SEED)
    params = compiled.randomize_params()
    assert {name: params[name].sharding.spec for name in WEIGHTS} == WEIGHTS
    if method not in own.interop.model_methods:
        pytest.skip(f"{backend} has no {method}")
    made = getattr(compiled, method)()
    if method == "as_module":
        made(**{name: own.array(x).torch() for name, x in INPUTS.items()})
    else:
        made(params, INPUTS)
    program = compiled.program_for(INPUTS, gradients=False)
    lies = {port.name: port.sharding.spec for port in program.plan.inputs}
    assert {name: lies[name] for name in WEIGHTS} == WEIGHTS
