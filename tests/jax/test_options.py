"""Options of the JAX backend: each has an effect that is seen here, or is refused with a reason."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import mithril as ml
import pytest
from mithril import P
from mithril.cli.gpt import Sizes, gpt, with_loss

REFUSED = {
    "xmap": (
        {"xmap_mesh": True},
        r"xmap_mesh=True is not available; JAX has removed xmap; use False",
    ),
    "no pjit": ({"pjit_mesh": False}, r"pjit_mesh=False is not available; programs always run"),
    "no spmd": ({"spmd_mode": False}, r"spmd_mode=False is not available; every device runs"),
    "context": ({"mesh_context": "mpmd"}, r"mesh_context='mpmd' is not available"),
    "strategy": (
        {"pjit_lowering_strategy": "gspdm"},
        r"pjit_lowering_strategy='gspdm' does not exist; did you mean 'gspmd'\?; known: 'auto'",
    ),
    "platform": ({"platform": "tpv"}, r"platform='tpv' does not exist; did you mean 'tpu'"),
    "two platforms": (
        {"platform": "cpu", "backend": "tpu"},
        r"platform='cpu' and backend='tpu' are two names of one option and differ",
    ),
    "mesh shape": (
        {"spmd_mesh_shape": (4, 1)},
        r"spmd_mesh_shape=\(4, 1\) differs from device_mesh=\(2, 2\)",
    ),
    "no shape": (
        {"spmd_mesh_shape": 4},
        r"spmd_mesh_shape=4 is not a tuple of sizes; give that of device_mesh, such as \(4, 2\)",
    ),
    "mesh dimensions": ({"spmd_partition_dims": 1}, r"spmd_partition_dims=1 differs from the 2"),
    "topology": ({"topology": "2x4x8"}, r"topology='2x4x8' describes a TPU slice; .* 'cpu'"),
    "timeout": ({"timeout": True}, r"timeout=True is no number of seconds above 0; give one"),
    "memory": ({"memory_optimization": "yes"}, r"memory_optimization='yes' is neither True nor"),
    "collectives": (
        {"collective_ops": "nccl"},
        r"collective_ops='nccl' is not available on backend 'jax', .* exchange data by 'xla'",
    ),
    "unknown": ({"pjit_msh": True}, r"no option 'pjit_msh'.*did you mean 'pjit_mesh'"),
    "later": (
        {"executor": "pool"},
        r"option executor='pool' of backend 'jax' is not available yet; leave it out",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_has_no_effect_is_refused(mistake: str) -> None:
    options, text = REFUSED[mistake]
    with pytest.raises(ml.OptionError, match=text):
        ml.JaxBackend(device_mesh=(2, 2), **options)


@pytest.mark.parametrize("topology", ["", "2x", "2×4", "0x4", "-2x4", "2 x 4", "v5e-8", 8, (2, 4)])
def test_a_topology_has_to_be_sizes(topology: object) -> None:
    with pytest.raises(ml.OptionError, match=r"is not written as sizes; write them as topology="):
        ml.JaxBackend(topology=topology)


class TestSlice:
    """TPUs as JAX describes them: a slice that lies somewhere in its pod."""

    @pytest.fixture(autouse=True)
    def _tpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [
            SimpleNamespace(
                platform="tpu",
                device_kind="TPU v4",
                process_index=0,
                coords=(x, y, 1),
                core_on_chip=core,
            )
            for y in range(4, 8)
            for x in range(2)
            for core in range(2)
        ]
        monkeypatch.setattr(jax, "devices", lambda platform: found)

    @pytest.mark.parametrize("topology", ["2x4", "2x4x1", None])
    def test_its_sizes_may_be_said(self, topology: str | None) -> None:
        assert ml.JaxBackend(topology=topology).engine.platform == "tpu"

    @pytest.mark.parametrize("topology", ["4x2", "2x4x2", "2", "16", "2x4x1x2"])
    def test_others_are_refused(self, topology: str) -> None:
        text = f"topology='{topology}' differs from the slice of 2x4x1 that JAX has; give that, or"
        with pytest.raises(ml.OptionError, match=text):
            ml.JaxBackend(topology=topology)

    def test_options_of_cpus_are_refused(self) -> None:
        with pytest.raises(
            ml.OptionError, match="is available on CPU only; on 'tpu' XLA schedules"
        ):
            ml.JaxBackend(memory_optimization=True)


def test_hardware_that_is_not_there_is_named() -> None:
    with pytest.raises(ml.BackendError, match=r"platform 'tpu' is not available to JAX; it has"):
        ml.JaxBackend(device_mesh=(2, 4), backend="tpu")


def test_what_always_holds_may_be_said() -> None:
    backend = ml.JaxBackend(
        device_mesh=(2, 2),
        platform="cpu",
        pjit_mesh=True,
        spmd_mode=True,
        xmap_mesh=False,
        mesh_context="spmd",
        spmd_mesh_shape=(2, 2),
        spmd_partition_dims=2,
        pjit_lowering_strategy="auto",
    )
    assert backend.engine.platform == "cpu"


def temporary_bytes(**options: object) -> int:
    """Return how much memory a training step of a GPT takes besides its arrays."""
    sizes = Sizes(layers=4, width=256, heads=4, hidden=1024, context=128, batch=8)
    compiled = ml.compile(with_loss(gpt(256, sizes)), ml.JaxBackend(**options))
    tokens = ml.TensorSpec((8, 128), "int32")
    program = compiled.program_for({"tokens": tokens, "target": tokens}, gradients=True)
    executable = program.executable
    types = [
        jax.ShapeDtypeStruct(port.type.shape, port.type.dtype.numpy) for port in program.plan.inputs
    ]
    return executable.jitted.lower(*types).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_optimization_takes_less_memory() -> None:
    assert temporary_bytes(memory_optimization=True) < temporary_bytes()


def test_bfloat16_is_what_arrays_and_models_get() -> None:
    backend = ml.JaxBackend(device_mesh=(2,), dtype="bfloat16")
    x = backend.ones(4, 4, sharding=P("data"))
    assert str((x @ x).jax().dtype) == "bfloat16"
