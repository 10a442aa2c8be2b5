"""Plans of several stages as text, in files and modules, and under the options of the backend."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P
from mithril.errors import BackendError

from tests.pipeline.models import FEATURES, classifier, compared, samples
from tests.tolerances import TOLERANCE
from tests.torch.ejected import run_alone

MESH = ml.Mesh(data=2, pipeline=2)


def opened(mesh: ml.Mesh = MESH, **options: Any) -> ml.Backend:
    return ml.TorchBackend(mesh, device="cpu", **options)


def test_the_text_has_a_function_for_each_stage_and_a_run_for_each_rank() -> None:
    compiled = ml.compile(
        classifier(2, microbatch_size=1), opened(), pipeline_schedule="1f1b", shapes=samples(4)
    )
    text = compiled.code()
    assert text.startswith("# Forward and backward, on each of 4 devices (data=2, pipeline=2)\n")
    assert text.count("def stage_") == len(compiled.plan.stages)
    for rank in range(4):
        assert f"if rank == {rank}:\n" in text
    assert "# stage 1 forward, on devices 1, 3\nif rank in (1, 3):\n" in text
    first, second = text.index("if rank == 0:"), text.index("if rank == 1:")
    mine = text[first:second]
    order = [line.split()[1] for line in mine.splitlines() if ", stage 0" in line]
    assert order == ["0F0,", "0F1,", "0B0,", "0F2,", "0B1,", "0F3,", "0B2,", "0B3,"]
    assert mine.index(".wait()") > mine.index("0F1"), "it goes on while its message is under way"


@pytest.mark.slow
def test_a_file_runs_without_mithril(tmp_path: Path) -> None:
    backend, inputs = opened(), samples(8)
    compiled = ml.compile(classifier(2, microbatch_size=2), backend)
    params = compiled.randomize_params()
    placed = {name: backend.array(x, sharding=P("data")) for name, x in inputs.items()}
    outputs, gradients = compiled.evaluate(params, placed, {"loss": 2.0})
    wholes = {name: x.numpy() for name, x in {**params, **placed}.items()}
    wholes["output_gradients.loss"] = np.float32(2.0)
    torch.save({name: torch.tensor(x) for name, x in wholes.items()}, tmp_path / "in.pt")
    path = compiled.eject(tmp_path / "step.py")
    files = ["--tensors", str(tmp_path / "in.pt"), "--save", str(tmp_path / "out.pt")]
    done = run_alone(str(path), *files, ranks=4)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    expected = dict(outputs) | {f"gradients.{name}": x for name, x in gradients.items()}
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name].numpy(), x.numpy(), *TOLERANCE["float32"])


def test_a_module_of_stages_is_trained_in_a_script() -> None:
    backend = opened(ml.Mesh(pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=2), backend, shapes=samples(4))
    params, inputs = compiled.randomize_params(), samples(4)
    _, gradients = compiled.evaluate(params, inputs, {"loss": 1.0})
    module = compiled.as_module(params)
    loss = module(torch.tensor(inputs["input"]), torch.tensor(inputs["targets"]))
    loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        wanted = gradients[name].numpy()
        np.testing.assert_allclose(parameter.grad.numpy(), wanted, *TOLERANCE["float32"])
    name = next(n for n, x in params.items() if x.sharding.mesh.flat == (1,))
    assert torch.equal(params[name].torch(), module.get_parameter(name))


@pytest.mark.parametrize(
    "options",
    [
        {"use_module_hooks": True},
        {"allow_tf32": False},
        {"gradient_as_bucket_view": False},
        pytest.param({"jit": True}, marks=pytest.mark.slow),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_backend(options: dict[str, Any]) -> None:
    backend = opened(**options)
    compiled = compared(classifier(2, microbatch_size=2), backend, samples(8), spec=P("data"))
    text = compiled.code()
    (name,) = options
    if name == "use_module_hooks":
        assert "with record_function(\"send of 0F0 of 'pipeline_0.stage_0" in text
        assert "with record_function('0F0, stage 0 forward'):" in text
    if name == "allow_tf32":
        assert "stage_1 = float32_products('ieee', stage_1)" in text
    if name == "jit":
        assert "stage_1 = torch.compile(stage_1, fullgraph=True)" in text


def test_layers_in_ranges_of_the_profiler() -> None:
    compiled = compared(
        classifier(2, microbatch_size=2), opened(), samples(8), spec=P("data"), partition_hooks=True
    )
    assert "with record_function('forward: pipeline_0.stage_0.layer_norm_0" in compiled.code()


def test_images_of_placed_convolutions_lie_with_their_channels_last() -> None:
    model = ml.Model()
    model += ml.Conv2d(4, kernel_size=3, device_id=0)
    model += ml.Relu(device_id=1)
    model += ml.Conv2d(2, kernel_size=3, device_id=1)
    image = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    backend = opened(ml.Mesh(data=2), memory_format="channels_last")
    compiled = compared(model, backend, {"input": image})
    assert "images(" in compiled.code()


def test_what_is_sent_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    backend = opened(ml.Mesh(data=2), trace_module_partitioning=True)
    model = ml.Model()
    model += ml.Linear(FEATURES, device_id=0, name="first")
    model += ml.Linear(FEATURES, device_id=1, name="second")
    with caplog.at_level(logging.INFO, "mithril.torch"):
        compiled = ml.compile(model, backend)
        compiled.evaluate(compiled.randomize_params(), {"input": np.ones((2, FEATURES), "f")})
    sent = [text for text in caplog.messages if text.startswith("send: first")]
    assert sent == [
        "send: first, P(None, None) on device 0 -> P(None, None) on device 1 for second.einsum"
    ]


def test_stages_with_kernels_of_users_need_this_process() -> None:
    double = ml.define_op(
        "stages.double",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"torch": lambda x: x * 2, "numpy": lambda x: x * 2},
    )

    @ml.layer
    def Double(x):  # noqa: N802
        return double(x)

    model = ml.Model()
    model |= ml.Linear(FEATURES, device_id=0)(input="input", output="h")
    model |= Double(device_id=1)(x="h", output="output")
    x = {"input": np.ones((2, 3), np.float32)}
    compiled = ml.compile(model, opened(ml.Mesh(data=2)))
    with pytest.raises(BackendError, match=r"ops 'stages\.double' have kernels"):
        compiled.evaluate(compiled.randomize_params(), x)
    compared(model, opened(ml.Mesh(data=2), executor="lockstep"), x, gradients={})
