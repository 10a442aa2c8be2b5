"""`collective_ops`: its forms, and what is refused."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.compiler.algorithm_options import read_algorithms
from mithril.mesh import Mesh, P

from tests.conformance.engines import BACKENDS, opened

BOTH = Mesh(data=4, tensor=2)


def read(given: object, mesh: Mesh = BOTH, library: str = "") -> dict[str, dict[str, str]]:
    return dict(read_algorithms(given, mesh, library, "numpy").of)


def test_forms() -> None:
    tree = {"data": "tree", "tensor": "tree"}
    assert read("tree") == dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), tree)
    assert read({"all_gather": "tree"}) == {"all_gather": tree}
    assert read({"all_reduce": {"data": "ring"}}) == {"all_reduce": {"data": "ring"}}
    assert read({"all_to_all": {"data_parallel": "ring", "model_parallel": "direct"}}) == {
        "all_to_all": {"data": "ring", "tensor": "direct"}
    }
    assert read({"all_reduce": {"data": "native"}}) == read("native") == read(None) == {}
    assert read("nccl", library="nccl") == read("ring", library="ring").get("permute", {}) == {}


REFUSED = {
    "nccl": (
        "nccl",
        "collective_ops='nccl' is not available on backend 'numpy', whose devices are those of one "
        "process; leave it out, or name an algorithm: 'native', 'auto', 'ring', 'tree', 'direct', "
        "'recursive_halving', 'hierarchical'",
    ),
    "unknown": (
        "rings",
        "collective_ops='rings' is no algorithm and no library; did you mean 'ring'?; algorithms: "
        "'native', 'auto', 'ring', 'tree', 'direct', 'recursive_halving', 'hierarchical'",
    ),
    "empty": (
        "",
        "collective_ops='' is no algorithm and no library; algorithms: 'native', 'auto', "
        "'ring', 'tree', 'direct', 'recursive_halving', 'hierarchical'",
    ),
    "form": (
        4,
        'collective_ops=4 names no algorithm; give an algorithm, such as "ring", one by kind, '
        'such as {"all_reduce": "ring"}, or by kind and mesh axis, such as {"all_reduce": {"data": '
        '"ring"}}',
    ),
    "kind": (
        {"all_reduc": "ring"},
        "collective_ops names 'all_reduc', which is no kind of collective; did you mean "
        "'all_reduce'?; kinds: 'all_reduce', 'reduce_scatter', 'all_gather', 'all_to_all'",
    ),
    "no axis": (
        {"all_reduce": {}},
        'collective_ops of all_reduce names no algorithm; give an algorithm, such as "ring", one by '
        'kind, such as {"all_reduce": "ring"}, or by kind and mesh axis, such as {"all_reduce": '
        '{"data": "ring"}}',
    ),
    "permute": (
        {"permute": "ring"},
        "collective_ops names 'permute', for which there is no choice of algorithms; kinds: "
        "'all_reduce', 'reduce_scatter', 'all_gather', 'all_to_all'",
    ),
    "misfit": (
        {"all_gather": "recursive_halving"},
        "collective_ops of all_gather is 'recursive_halving', which does no all_gather; it can be "
        "'native', 'auto', 'ring', 'tree', 'direct', 'hierarchical'",
    ),
    "algorithm": (
        {"all_to_all": {"data": "pairwise"}},
        "collective_ops of all_to_all is 'pairwise', which is no algorithm; it can be 'native', "
        "'auto', 'ring', 'direct', 'hierarchical'",
    ),
    "library of a kind": (
        {"all_to_all": "nccl"},
        "collective_ops of all_to_all is 'nccl', a library, which is named for all kinds: "
        "collective_ops='nccl'; or give an algorithm: 'native', 'auto', 'ring', 'direct', "
        "'hierarchical'",
    ),
    "axis": (
        {"all_reduce": {"pod": "ring"}},
        "collective_ops of all_reduce names axis 'pod', which the mesh lacks; axes: 'data', "
        "'tensor'",
    ),
    "axis twice": (
        {"all_reduce": {"data": "ring", "data_parallel": "tree"}},
        "collective_ops of all_reduce names axis 'data' twice; give it one algorithm",
    ),
    "prime": (
        {"all_gather": {"tensor": "hierarchical"}},
        "collective_ops of all_gather is 'hierarchical' over axis 'tensor', whose 2 devices are no "
        "product of two numbers; use another algorithm: 'native', 'auto', 'ring', 'tree', "
        "'direct', 'hierarchical'",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes(mistake: str) -> None:
    given, text = REFUSED[mistake]
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend(BOTH, collective_ops=given)
    assert str(raised.value) == text
    with pytest.raises(ml.OptionError) as raised:
        ml.compile(ml.Linear(3), ml.NumpyBackend(BOTH), collective_ops=given)
    assert str(raised.value) == text


def test_a_library_that_is_not_there() -> None:
    with pytest.raises(ml.OptionError) as raised:
        read_algorithms("nccl", BOTH, "gloo", "torch")
    assert "on backend 'torch', whose devices exchange data by 'gloo'; leave" in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"all_reduce": "ring", "all_gather": "tree", "reduce_scatter": "hierarchical"},
        {
            "all_reduce": {"data_parallel": "ring", "model_parallel": "tree"},
            "all_gather": {"data_parallel": "hierarchical", "model_parallel": "direct"},
        },
    ],
)
def test_the_guides_forms_are_taken_by_backends(given: dict[str, object]) -> None:
    mesh = (4, 2) if isinstance(given["all_reduce"], dict) else (4,)
    backend = ml.NumpyBackend(device_mesh=mesh, collective_ops=given)
    x = backend.array(np.arange(32, dtype=np.float32).reshape(8, 4), sharding=P("data"))
    np.testing.assert_allclose(backend.sum(x, axis=0).numpy(), x.numpy().sum(0), 1e-6)
    function = ml.jit(lambda x: x.sum(0), backend=backend, out_shardings=P())
    rows = function.plan(ml.TensorSpec((8, 4), "float32", P("data"))).collectives()
    assert {row.cause.algorithm.name for row in rows} == {"ring"}


def test_compile_overrides_its_backend() -> None:
    backend = ml.NumpyBackend(Mesh(data=2), collective_ops="ring")
    shapes = {"input": ml.TensorSpec((4, 6), "float32", P(None, "data"))}
    for option, kinds in (
        (None, {"permute"}), ("native", {"all_reduce"}), ({"all_reduce": "tree"}, {"permute"})
    ):  # fmt: skip
        compiled = ml.compile(
            ml.Linear(3), backend, shapes=shapes, inference=True, collective_ops=option
        )
        assert {row.kind for row in compiled.plan.collectives()} == kinds


@pytest.mark.parametrize("is_on", [True, False])
def test_what_stands_for_all_passes_of_a_backend_leaves_algorithms(is_on: bool) -> None:
    """What is given beside it, and what is given to compile after it, goes first."""
    backend = ml.NumpyBackend(
        ml.Mesh(data=4), collective_optimization=is_on, collective_ops="ring" if is_on else None
    )
    options = {} if is_on else {"collective_ops": "ring"}
    model = ml.Model()
    model |= ml.Linear(4, name="f")(input="input", output="y")
    model += ml.MeanSquaredError()(input="y", target="t", output="loss")
    shapes = {n: ml.TensorSpec((8, 4), sharding=P("data")) for n in ("input", "t")}
    step = ml.train_step(model, backend, ml.optim.sgd(0.1), shapes=shapes, **options)
    assert "ring" in step.explain()


def test_functions_are_told_to_ask_their_backend() -> None:
    with pytest.raises(ml.OptionError, match=r"'collective_ops' makes no sense for .*the backend"):
        ml.jit(np.sin, collective_ops="ring")


LIBRARY_OF = {"numpy": "", "jax": "xla", "torch": "gloo", "torch in lockstep": "", "mlx": ""}


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_engines_say_what_carries_their_data(backend: str) -> None:
    assert opened(backend, data=2).engine.library == LIBRARY_OF[backend]
