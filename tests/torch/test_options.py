"""Options of the PyTorch backend: each has an effect that is seen here, or is refused."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P
from mithril_torch.options import TorchOptions
from torch.profiler import profile

from tests.runtime.scripts import lines_of
from tests.torch.jobs import launch, script

REFUSED = {
    "device": ({"device": "cdua"}, r"device='cdua' does not exist; did you mean 'cuda'\?; known:"),
    "executor": ({"executor": "lockstpe"}, r"executor='lockstpe' does not exist; did you mean"),
    "format": (
        {"memory_format": "channels"},
        r"memory_format='channels' does not exist; did you mean 'channel_last'\?; known:",
    ),
    "flag": ({"jit": "yes"}, r"jit='yes' is neither True, False nor 'auto'; give one of them"),
    "memory": ({"cross_memory": "auto"}, r"cross_memory='auto' is neither True nor False"),
    "tf32": ({"allow_tf32": 1}, r"allow_tf32=1 is neither True nor False"),
    "timeout": ({"timeout": 0}, r"timeout=0 is no number of seconds above 0; give one, such as"),
    "endless timeout": (
        {"timeout": float("inf")},
        r"timeout=inf is longer than can be waited for; the most is 2000000 seconds, 23 days; give",
    ),
    "long timeout": ({"timeout": 10**400}, r"is longer than can be waited for"),
    "unused": (
        {"find_unused_parameters": True},
        r"find_unused_parameters=True is not available; a plan knows which parameters are used",
    ),
    "policy": (
        {"partition_policy": "modules"},
        r"partition_policy='modules' is not available; tensors without a sharding follow",
    ),
    "library": (
        {"distributed_backend": "mpi"},
        r"distributed_backend='mpi' is not available on device 'cpu'; there it is 'gloo'",
    ),
    "ranges of torch.compile": (
        {"use_module_hooks": True, "jit": True},
        r"use_module_hooks=True does not go with jit=True; torch.compile leaves no ranges",
    ),
    "buckets of torch.compile": (
        {"gradient_as_bucket_view": False, "jit": True},
        r"gradient_as_bucket_view=False does not go with jit=True; .* no buckets of its own",
    ),
    "a number": ({"jit": 1}, r"jit=1 is neither True, False nor 'auto'"),
    "fusions in lockstep": (
        {"jit": "auto", "executor": "lockstep"},
        r"jit='auto' does not go with executor='lockstep', which runs ops one by one",
    ),
    "graphs of fusions": (
        {"cuda_graphs": True, "jit": "auto"},
        r"jit='auto' does not go with cuda_graphs=True; a graph has no more than its launches",
    ),
    "unknown": ({"find_unused": True}, r"no option 'find_unused'.*find_unused_parameters"),
    "compression": ({"gradient_compression": "zip"}, r"gradient_compression='zip' does not exist"),
}
EXPRESSIONS = {
    "jit": True, "use_module_hooks": True, "allow_tf32": False, "gradient_as_bucket_view": False,
    "distributed_backend": "gloo", "memory_format": "channels_last",
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_has_no_effect_is_refused(mistake: str) -> None:
    options, text = REFUSED[mistake]
    with pytest.raises(ml.OptionError, match=text):
        ml.TorchBackend(**{"device": "cpu", **options})


@pytest.mark.parametrize("jit", [True, "auto"])
def test_a_compiler_that_is_missing_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, jit: bool | str
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        ml.BackendError,
        match=r"needs a C\+\+ compiler, and 'no-such-compiler' is not on this machine; install it",
    ):
        ml.TorchBackend(device="cpu", jit=jit)
    ml.TorchBackend(device="cpu")


@pytest.mark.parametrize("seconds", [np.int64(7), np.float32(7), 7])
def test_a_timeout_may_be_a_number_of_numpy(seconds: object) -> None:
    assert TorchOptions(timeout=seconds).timeout == 7.0


@pytest.mark.parametrize("option", EXPRESSIONS)
def test_lockstep_writes_no_programs(option: str) -> None:
    value = EXPRESSIONS[option]
    text = re.escape(f"{option}={value!r} does not go with executor='lockstep'")
    with pytest.raises(ml.OptionError, match=text):
        ml.TorchBackend(device_mesh=(2,), executor="lockstep", **{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")
class TestWithoutCuda:
    def test_nccl_names_what_it_needs_and_what_there_is(self) -> None:
        text = "'nccl' needs CUDA devices and is not available on device 'cpu'; there it is 'gloo'"
        with pytest.raises(ml.OptionError, match=text):
            ml.TorchBackend(device_mesh=(4,), distributed_backend="nccl")

    def test_cuda_names_what_there_is(self) -> None:
        text = "mesh needs 4 CUDA devices on this machine; PyTorch finds 0; use a smaller mesh"
        with pytest.raises(ml.BackendError, match=text):
            ml.TorchBackend(device_mesh=(4,), device="cuda")


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(6, name="up")(input="input", output="hidden")
    model += ml.Relu(name="act")(input="hidden", output="active")
    model += ml.Linear(4, name="down")(input="active", output="output")
    return model


def code_of(hooks: bool = False, **options: object) -> str:
    """Return the program of a training step on two workers, which must have run."""
    backend = ml.TorchBackend(device_mesh=(2,), device="cpu", **options)
    compiled = ml.compile(mlp(), backend, partition_hooks=hooks)
    x = backend.ones(8, 5, sharding=P("data"))
    _, gradients = compiled.evaluate(compiled.randomize_params(), {"input": x}, {"output": ONES})
    for name, expected in EXPECTED.items():
        np.testing.assert_allclose(gradients[name].numpy(), expected, rtol=1e-5, atol=1e-6)
    return compiled.code()


ONES = np.ones((8, 4), np.float32)
_single = ml.compile(mlp(), ml.NumpyBackend())
_, _gradients = _single.evaluate(
    _single.randomize_params(), {"input": np.ones((8, 5), np.float32)}, {"output": ONES}
)
EXPECTED = {name: x.numpy() for name, x in _gradients.items()}


class TestPool:
    """What programs on a pool look like; that they run is seen by their results."""

    def test_what_always_holds_may_be_said(self) -> None:
        said = code_of(
            distributed_backend="gloo", find_unused_parameters=False, gradient_as_bucket_view=True,
            partition_policy="parameters", use_module_hooks=False, trace_module_partitioning=False,
            jit=False,
        )  # fmt: skip
        assert said == code_of()

    def test_gradients_get_memory_of_their_own(self) -> None:
        assert "gradients_up_bias = gradients_up_bias.clone()" in code_of(
            gradient_as_bucket_view=False
        )
        assert "clone" not in code_of()

    def test_collectives_stand_in_ranges(self) -> None:
        label = "all_reduce over 'data' of 4 gradients, 'down.bias' to 'up.weight'"
        code = code_of(use_module_hooks=True)
        assert f'with record_function("{label}"):' in code
        assert f'with record_function("end of {label}"):' in code
        assert "record_function" not in code_of()

    def test_layers_stand_in_ranges(self) -> None:
        code = code_of(hooks=True)
        for layer in ("forward: up", "forward: act", "backward: down"):
            assert f"with record_function('{layer} (test_options.py:" in code
        assert 'with record_function("all_reduce over ' in code

    def test_products_of_float32_may_be_coarser(self) -> None:
        assert code_of(allow_tf32=True).endswith("run = float32_products('tf32', run)\n")
        assert code_of(allow_tf32=False).endswith("run = float32_products('ieee', run)\n")


def test_layers_in_the_profiler() -> None:
    backend = ml.TorchBackend(device="cpu")
    compiled = ml.compile(mlp(), backend, partition_hooks=True)
    params = compiled.randomize_params()
    compiled.evaluate(params, {"input": backend.ones(8, 5)}, {"output": ONES})
    with profile() as profiled:
        compiled.evaluate(params, {"input": backend.ones(8, 5)}, {"output": ONES})
    ranges = {event.key for event in profiled.key_averages()}
    for layer in ("forward: up", "forward: act", "backward: act", "backward: down"):
        assert any(name.startswith(f"{layer} (test_options.py:") for name in ranges)


@pytest.mark.parametrize(
    ("open_", "text"),
    [
        (
            ml.NumpyBackend,
            "partition_hooks=True is not available on backend 'numpy'; its programs "
            "have no ranges for a profiler",
        ),
        (
            lambda: ml.TorchBackend(device_mesh=(2,), executor="lockstep"),
            "partition_hooks=True does not go with executor='lockstep', which runs ops one by one",
        ),
        (
            lambda: ml.TorchBackend(device="cpu", jit=True),
            "partition_hooks=True does not go with jit=True",
        ),
    ],
)
def test_where_there_are_no_ranges_of_layers(open_, text: str) -> None:
    with pytest.raises(ml.OptionError, match=re.escape(text)):
        ml.compile(mlp(), open_(), partition_hooks=True)


def test_partition_hooks_is_a_flag() -> None:
    text = "partition_hooks='layers' is neither True nor False; give one of them"
    with pytest.raises(ml.OptionError, match=text):
        ml.compile(mlp(), ml.NumpyBackend(), partition_hooks="layers")


def test_how_tensors_lie_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mithril.torch"):
        code_of()
        assert not caplog.messages
        code_of(trace_module_partitioning=True)
    assert caplog.messages[0] == "program on Mesh(data=2)"
    assert "input input: float32[8, 5], P('data', None): [4, 5] here" in caplog.messages
    assert "output gradients.up.weight: float32[6, 5]" in caplog.messages
    (moved,) = [text for text in caplog.messages if "all_reduce" in text]
    assert "all_reduce over data: 4 gradients, P(None) partial sum over data -> P(None)" in moved


@pytest.mark.parametrize(("allowed", "inside"), [(True, "tf32"), (False, "ieee"), (None, "none")])
def test_precision_is_that_of_the_option_while_a_program_runs(
    allowed: bool | None, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def relu(x: torch.Tensor) -> torch.Tensor:
        seen.append(precisions())
        return x.clamp_(min=0)

    def precisions() -> tuple[str, str]:
        backends = torch.backends
        return backends.mkldnn.matmul.fp32_precision, backends.cuda.matmul.fp32_precision

    monkeypatch.setattr(torch, "relu_", relu)
    before = precisions()
    backend = ml.TorchBackend(device="cpu", allow_tf32=allowed)
    compiled = ml.compile(mlp(), backend)
    compiled.evaluate(compiled.randomize_params(), {"input": np.ones((8, 5), np.float32)})
    assert seen == [(inside, inside)]
    assert precisions() == before


RANKS = """
import json
from torch.profiler import profile

model = ml.Model()
model |= ml.Linear(6, name="up")(input="input", output="hidden")
model += ml.Linear(4, name="down")(input="hidden", output="output")

def gradients(**options):
    backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", **options)
    compiled = ml.compile(model, backend)
    x = backend.ones(8, 5, sharding=P("data"))
    _, found = compiled.evaluate(compiled.randomize_params(), {"input": x}, {"output": backend.ones(8, 4)})
    return found

def memories(found):
    return len({x.shards.untyped_storage().data_ptr() for x in found.values()})

gradients(use_module_hooks=True)
with profile() as profiled:
    gradients(use_module_hooks=True)
print(json.dumps({
    "views": memories(gradients()),
    "own": memories(gradients(gradient_as_bucket_view=False)),
    "ranges": [e.key for e in profiled.key_averages() if "all_reduce over" in e.key],
}))
"""


@pytest.mark.slow
def test_effects_in_the_ranks_of_a_job(tmp_path: Path) -> None:
    done = launch(2, script(tmp_path, RANKS))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        (line,) = lines_of(rank, done.stdout)
        found = json.loads(line)
        assert found["views"] == 1, "all four gradients lie in one buffer"
        assert found["own"] == 4
        label = "all_reduce over 'data' of 4 gradients, 'down.bias' to 'up.weight'"
        assert sorted(found["ranges"]) == [label, f"end of {label}"]


def test_a_mesh_far_larger_than_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    text = (
        "mesh needs 64 processes, and this machine has 2 cores; simulate it with "
        'executor="lockstep", or start them nevertheless with executor="workers"'
    )
    with pytest.raises(ml.BackendError, match=re.escape(text)):
        ml.TorchBackend(ml.Mesh(data=64), device="cpu")
    assert ml.TorchBackend(ml.Mesh(data=64), executor="lockstep").mesh.size == 64
