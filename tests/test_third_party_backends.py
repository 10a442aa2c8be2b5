"""Backends of third parties on real libraries, installed with pip, shown right by the kit alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin_packages import installed, mithril, python

NAMES = ("strict", "eager", "dask")


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed(*NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["strict", "eager"])
def test_the_demo_on_four_devices_equals_one(name: str, packages: Path) -> None:
    done = mithril("demo", "--backend", name, "--steps", "3", path=packages)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"step \d  mesh (\S+)  one device (\S+)", done.stdout)
    assert len(losses) == 3
    for mesh, one in losses:
        assert float(mesh) == pytest.approx(float(one), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_steps_of_the_demo_are_those_of_numpy(name: str, packages: Path) -> None:
    """Those of `mithril demo`, without the text that it writes."""
    code = (
        "import mithril as ml\n"
        "from mithril.cli.gpt import Sizes, Trainer, help_text\n"
        f"for name, mesh in (({name!r}, ml.Mesh(data=2, tensor=2)), ('numpy', ml.Mesh())):\n"
        "    trainer = Trainer(help_text(), Sizes(), ml.open_backend(name, mesh))\n"
        "    print(*(trainer.step() for _ in range(2)))\n"
    )
    found, expected = ([*map(float, x.split())] for x in python(code, packages).splitlines())
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("strict", "smoke"),
        ("strict", "full"),
        ("eager", "smoke"),
        ("eager", "basic"),
        ("dask", "smoke"),
    ],
)  # Dask plans each array anew: `basic` takes it a quarter of an hour
def test_the_kit_finds_it_right(name: str, level: str, packages: Path) -> None:
    done = mithril("backends", "check", name, "--level", level, path=packages)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"backend '{name}' is good at level {level}" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_spi_is_imported_from_the_core(name: str) -> None:
    sources = sorted((Path(__file__).parent / "plugins" / name).rglob("*.py"))
    assert len(sources) >= 3
    found = [
        line
        for source in sources
        for line in source.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) mithril", line) and "from mithril.spi import" not in line
    ]
    assert found == []


def test_the_list_imports_neither_library(packages: Path) -> None:
    code = (
        "import sys\n"
        "from mithril.plugins.discover import discover\n"
        "print({entry.name: entry.status.value for entry in discover()})\n"
        "print([name for name in ('dask', 'array_api_strict', 'numpy') if name in sys.modules])\n"
    )
    statuses, imported = python(code, packages).splitlines()
    assert "'dask': 'ready'" in statuses
    assert "'strict': 'ready'" in statuses
    assert imported == "[]"


GUIDES = """
import mithril as ml
import numpy as np

backend = ml.open_backend("strict", device_mesh=(2, 2))
rng = np.random.default_rng(0)
x, w, v = (rng.normal(size=shape).astype(np.float32) for shape in [(16, 8), (12, 8), (4, 12)])
target = rng.normal(size=(16, 4)).astype(np.float32)


def slopes(w, v):
    "The gradients of half the sum of squares, by hand."
    hidden = np.maximum(x @ w.T, 0)
    end = hidden @ v.T - target
    return (end @ v * (hidden > 0)).T @ x, end.T @ hidden


model = ml.Model()
model |= ml.Linear(dimension=12, bias=False, name="up")(input="input", output="hidden")
model += ml.Relu()(input="hidden", output="hidden_act")
model += ml.Linear(dimension=4, bias=False, name="down")(input="hidden_act", output="output")
compiled = ml.compile(model, backend)
inputs = {"input": backend.array(x, device_mesh=(2, 1), tensor_split=(0, None))}
params = {  # replicated, and then split over the other axis of the mesh
    "up.weight": backend.array(w, device_mesh=(1, 2), tensor_split=(None, 0)),
    "down.weight": backend.array(v, device_mesh=(1, 2), tensor_split=(None, 1)),
}
values = {"up.weight": w, "down.weight": v}
for step in range(3):
    output = compiled.evaluate(params, inputs)["output"].numpy()
    outputs, gradients = compiled.evaluate(
        params, inputs, output_gradients={"output": output - target}
    )
    expected = dict(zip(values, slopes(*values.values()), strict=True))
    for name, slope in expected.items():
        np.testing.assert_allclose(gradients[name].numpy(), slope, rtol=1e-4, atol=1e-4)
        params[name] = params[name] - 0.01 * gradients[name]
        values[name] = values[name] - 0.01 * slope
        np.testing.assert_allclose(params[name].numpy(), values[name], rtol=1e-4, atol=1e-4)
kinds = sorted({row.kind for row in compiled.plan.collectives()})
print(backend.mesh.size, params["up.weight"].sharding.spec, kinds)
"""


@pytest.mark.slow
def test_the_guides_of_data_and_tensor_parallelism_run(packages: Path) -> None:
    """Gradients on a mesh of 2 x 2 are those of NumPy by hand, for three steps."""
    assert python(GUIDES, packages) == "4 P('model', None) ['all_reduce']\n"


REFUSED = """
import mithril as ml
import ml_dtypes
import numpy as np

backend = ml.open_backend("strict", device_mesh=(2, 2))
half = ml.TensorSpec((8, 6), "bfloat16")
compiled = ml.compile(ml.Linear(4, name="up"), backend)
x = np.ones((8, 6), ml_dtypes.bfloat16)


@ml.layer
def Narrow(x):
    return ml.ops.cast(x, "bfloat16")


narrow = ml.Model()
narrow |= Narrow(name="narrow")(x="input", output="output")
for make in (
    lambda: ml.open_backend(
        "strict", device_mesh=(4,), compute_dtype="bfloat16", param_dtype="float32"
    ),
    lambda: ml.compile(ml.Linear(4), backend, mixed_precision_policy={"params": "bfloat16"}),
    lambda: compiled.evaluate(compiled.randomize_params(), {"input": x}),
    lambda: ml.compile(ml.Linear(4), backend, shapes={"input": half}),
    lambda: ml.compile(narrow, backend, shapes={"input": (8, 6)}),
):
    try:
        make()
        print("accepted")
    except ml.BackendError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_dtype_that_the_library_lacks_is_refused_by_its_place(packages: Path) -> None:
    """The guides compute in bfloat16, which the standard does not have."""
    option, parameters, given, planned, layer = python(REFUSED, packages).splitlines()
    refused = "backend 'strict' has no dtype bfloat16, needed for "
    assert option == f"{refused}the option 'compute_dtype'; use dtype='float32'"
    assert parameters == f"{refused}the option 'param_dtype'; use dtype='float32'"
    assert given == f"{refused}input 'input'; use dtype='float32'"
    assert re.fullmatch(
        "plan takes 'input' as bfloat16.*'strict' has no dtype bfloat16; it has.*; cast it before",
        planned,
    )
    assert re.fullmatch(
        r"op 'cast' at 'narrow' \(.*\) makes bfloat16\[8, 6\], and backend 'strict' has no dtype "
        r"bfloat16; it has .*; use another dtype or layer there, or another backend",
        layer,
    )
