"""Devices and programs in a process of its own: how many there are, queues, caches, start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import mithril as ml
import pytest
from mithril_jax.devices import find_devices

ROOT = Path(__file__).parent.parent.parent


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python, which has not met JAX."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=240,
    )


def printed(code: str, **variables: str) -> list[str]:
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_notebook_may_ask_for_a_larger_mesh_later() -> None:
    code = """
import mithril as ml
for shape in ((2, 2), (4, 2), (3,)):
    backend = ml.JaxBackend(device_mesh=shape)
    axis = backend.mesh.names[0]
    print(backend.ones(12, sharding=ml.P(axis)).addressable_shards[0].data.shape)
print(len(backend.engine.opened.flat), backend.engine.devices[0])
"""
    assert printed(code) == ["(6,)", "(3,)", "(4,)", "3 cpu:0"]


@pytest.mark.slow
def test_too_late_says_how() -> None:
    code = "import jax; jax.devices()\nimport mithril as ml\nml.JaxBackend(device_mesh=(4,))"
    done = python(code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "mithril.errors.BackendError: mesh needs 4 devices; JAX has started with 1 CPU devices "
        "already, and their number is fixed from then on; open the backend before the first JAX "
        "array or jax.devices(), or set the environment variable JAX_NUM_CPU_DEVICES=4 before "
        "Python starts"
    )
    assert printed(code, JAX_NUM_CPU_DEVICES="4") == []


def test_too_few_devices_of_other_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda platform: [SimpleNamespace(platform="gpu")])
    text = "mesh needs 2 devices; JAX has 1 of platform 'gpu'; use a smaller mesh, or platform="
    with pytest.raises(ml.BackendError, match=text):
        find_devices(2, "gpu")


@pytest.mark.slow
def test_a_mesh_of_more_than_eight() -> None:
    code = "import mithril as ml\nprint(ml.JaxBackend(device_mesh=(4, 3)).ones(12).shape)"
    assert printed(code) == ["(12,)"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["1", "3", "12"])
def test_a_number_the_user_chose_stays(chosen: str) -> None:
    code = "import mithril as ml, jax\nml.JaxBackend()\nprint(len(jax.devices()))"
    assert printed(code, JAX_NUM_CPU_DEVICES=chosen) == [chosen]


@pytest.mark.slow
def test_a_mesh_of_more_than_the_user_chose() -> None:
    code = "import mithril as ml\nprint(ml.JaxBackend(device_mesh=(3,)).ones(6).shape)"
    assert printed(code, JAX_NUM_CPU_DEVICES="2") == ["(6,)"]


@pytest.mark.slow
def test_a_thousand_steps_may_be_queued() -> None:
    code = """
import mithril as ml
from mithril import P
backend = ml.JaxBackend(ml.Mesh(data=8))
compiled = ml.compile(ml.Linear(64), backend)
x = {"input": backend.ones(64, 64, sharding=P("data"))}
params = compiled.randomize_params()
for _ in range(1000):
    outputs, gradients = compiled.evaluate(params, x, {"output": backend.ones(64, 64)})
print(float(gradients["bias"].numpy()[0]))
"""
    assert printed(code) == ["64.0"]


@pytest.mark.slow
def test_the_compilation_cache_is_used(tmp_path: Path) -> None:
    code = """
import jax
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
import mithril as ml
compiled = ml.compile(ml.Linear(64, name="one"), ml.JaxBackend(ml.Mesh(data=2)))
compiled.evaluate(compiled.randomize_params(), {"input": compiled.backend.ones(4, 8)})
print(hits.count("/jax/compilation_cache/cache_hits"), compiled.recompiles)
"""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    assert printed(code, **cache) == ["0 1"]
    files = set(tmp_path.iterdir())
    (second,) = printed(code, **cache)
    assert int(second.split()[0]) > 0
    assert set(tmp_path.iterdir()) == files


def test_naming_the_backend_imports_no_jax() -> None:
    code = """
import sys
from mithril.cli.backend_rows import print_loaded
print_loaded()
assert "mithril_jax.plugin" in sys.modules
print("jax" in sys.modules)
"""
    assert printed(code)[-1] == "False"


def test_recompiles_are_counted() -> None:
    backend = ml.JaxBackend()
    compiled = ml.compile(ml.Linear(3), backend)
    params = compiled.randomize_params()
    for batch in (2, 2, 3, 2):
        compiled.evaluate(params, {"input": backend.ones(batch, 4)})
    assert compiled.recompiles == 2


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=4,tensor=2"])
def test_the_demo_runs(mesh: str) -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("mithril")),
            *("demo", "--backend", "jax", "--mesh", mesh, "--steps", "8"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "jax" in done.stdout
