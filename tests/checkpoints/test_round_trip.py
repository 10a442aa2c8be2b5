"""What is saved on one mesh is loaded on another, byte for byte, and no more of it is read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.checkpoints import files
from mithril.mesh import edges
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.conformance.engines import BACKENDS, opened
from tests.mesh.strategies import specs
from tests.profiles import scaled

MESHES = [
    ml.Mesh(), ml.Mesh(a=2), ml.Mesh(a=3), ml.Mesh(a=2, b=2), ml.Mesh(a=4, b=2), ml.Mesh(a=2, b=3),
]  # fmt: skip
DTYPES = ["float32", "bfloat16", "float16", "int32", "int8", "uint16", "bool", "float64"]


def values_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return values all of whose elements differ, where the dtype has so many."""
    made = np.arange(math.prod(shape)).reshape(shape)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return (made % 2 if dtype == "bool" else made % 120).astype(kind)


def bytes_of_parts(x: ml.Array) -> int:
    """Return the bytes of all distinct parts that devices of this process hold."""
    parts = {edges(shard.index): shard.data.nbytes for shard in x.addressable_shards}
    return sum(parts.values())


@pytest.mark.slow
@settings(max_examples=scaled(200))
@given(data=st.data())
def test_any_sharding_is_loaded_as_any_other(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("drawn") / "checkpoint"
    here, there = (data.draw(st.sampled_from(MESHES)) for _ in range(2))
    tree, like = {}, {}
    for name in ("first", "second"):
        shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=3)))
        values = values_of(shape, data.draw(st.sampled_from(DTYPES)))
        spec, other = (data.draw(specs(mesh, len(shape))) for mesh in (here, there))
        tree[name] = ml.NumpyBackend(here).array(values, dtype=values.dtype, sharding=spec)
        like[name] = ml.NumpyBackend(there).zeros(shape, dtype=values.dtype, sharding=other)
    ml.save(path, tree)
    seen: list[int] = []
    found = ml.load(path, like=like, observe=lambda file, name, nbytes: seen.append(nbytes))
    for name, x in found.items():
        assert x.sharding == like[name].sharding
        assert x.dtype == tree[name].dtype
        np.testing.assert_array_equal(x.numpy(), tree[name].numpy())
    assert sum(seen) == sum(map(bytes_of_parts, found.values()))


def test_bytes_that_are_read_are_those_of_the_parts(tmp_path: Path) -> None:
    """Eight devices of which two hold each part: each part is read once, from parts cut otherwise."""
    wide = ml.NumpyBackend(ml.Mesh(data=2, tensor=4))
    x = wide.randn(96, 80, sharding=P("tensor", "data"))
    ml.save(tmp_path, {"x": x})
    read: list[tuple[str, int]] = []
    like = {"x": wide.zeros(96, 80, sharding=P(None, "tensor"))}
    ml.load(tmp_path, like=like, observe=lambda file, name, nbytes: read.append((name, nbytes)))
    assert sum(n for _, n in read) <= 1.05 * 96 * 80 * 4
    whole = 96 // 4 * 80 // 2 * 4
    assert {n for _, n in read} == {whole // 2}, "half of each stored part, twice"
    assert len({name for name, _ in read}) == 8


def test_what_several_devices_hold_is_written_once_and_by_turns(tmp_path: Path) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4, tensor=2))
    tree = {f"w{i}": backend.randn(8, 8, sharding=P("tensor")) for i in range(4)}
    ml.save(tmp_path, tree)
    stored = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert 4 * 8 * 8 * 4 < stored < 4 * 8 * 8 * 4 + 2048
    from mithril.checkpoints.owners import Owners

    owners = Owners()
    writers = [d for x in tree.values() for d in owners.share_out(x.type, x.sharding).values()]
    assert sorted(writers) == list(range(8)), "each device has one of eight parts to write"


@pytest.mark.parametrize("source", ["numpy", *BACKENDS])
@pytest.mark.parametrize("target", ["numpy", *BACKENDS])
def test_every_backend_reads_what_every_other_has_saved(
    source: str, target: str, tmp_path: Path
) -> None:
    saved, loaded = opened(source, data=2, tensor=2), opened(target, data=2)
    values = {name: values_of((5, 6), name) for name in ("float32", "bfloat16", "int32", "bool")}
    tree = {
        n: saved.array(v, dtype=v.dtype, sharding=P("tensor", "data")) for n, v in values.items()
    }
    ml.save(tmp_path, tree)
    like = {n: loaded.zeros(5, 6, dtype=n, sharding=P(None, "data")) for n in values}
    for name, x in ml.load(tmp_path, like=like).items():
        assert x.backend is loaded
        assert x.sharding == like[name].sharding
        np.testing.assert_array_equal(x.numpy(), values[name])


def test_other_tools_read_the_files(tmp_path: Path) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    whole = backend.randn(3, 4)
    split = backend.randn(4, dtype="bfloat16", sharding=P("data"))
    ml.save(tmp_path, {"layer.weight": whole, "layer.bias": split})
    (file,) = tmp_path.glob("*.safetensors")
    found = load_file(file)
    assert sorted(found) == ["layer.bias[0:2]", "layer.bias[2:4]", "layer.weight"]
    np.testing.assert_array_equal(found["layer.weight"], whole.numpy())
    np.testing.assert_array_equal(found["layer.bias[2:4]"], split.numpy()[2:])
    with safe_open(file, framework="np") as opened_:
        assert opened_.metadata() == {"format": "pt"}
    index = json.loads((tmp_path / "index.json").read_text())
    assert (index["format"], index["version"]) == ("mithril-checkpoint", 1)
    bias = index["tensors"]["layer.bias"]
    assert (bias["shape"], bias["dtype"]) == ([4], "bfloat16")
    assert [part["box"] for part in bias["parts"]] == [[[0, 2]], [[2, 4]]]
    assert {part["file"] for part in bias["parts"]} == {file.name}


def test_pytorch_reads_the_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    ml.save(tmp_path, {"w": ml.NumpyBackend().randn(3, dtype="bfloat16", seed=1)})
    (file,) = tmp_path.glob("*.safetensors")
    found = load_torch(file)["w"]
    assert found.dtype == torch.bfloat16
    expected = ml.NumpyBackend().randn(3, dtype="bfloat16", seed=1).numpy()
    np.testing.assert_array_equal(found.float().numpy(), expected.astype(np.float32))


def test_files_are_closed_before_they_grow_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    tree = {
        "a": np.arange(20.0),
        "b": np.arange(10, dtype=np.int32),
        "c": np.arange(12, dtype=np.int32),
    }
    ml.save(tmp_path, tree)
    sizes = [sorted(load_file(file)) for file in sorted(tmp_path.glob("*.safetensors"))]
    assert sizes == [["a"], ["b", "c"]]
    for name, values in ml.load(tmp_path).items():
        np.testing.assert_array_equal(values, tree[name])


def test_a_part_and_an_array_may_have_one_name_in_files(tmp_path: Path) -> None:
    backend = ml.NumpyBackend(ml.Mesh(a=2))
    tree = {"w": backend.arange(4.0, sharding=P("a")), "w[0:2]": backend.ones(3)}
    ml.save(tmp_path, tree)
    found = ml.load(tmp_path)
    assert found["w"].tolist() == [0, 1, 2, 3]
    assert found["w[0:2]"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("stored", "wanted"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float64", "float16")]
)
def test_floats_are_rounded_to_the_dtype_that_is_wanted(
    stored: str, wanted: str, tmp_path: Path
) -> None:
    backend = ml.NumpyBackend(ml.Mesh(a=2))
    x = backend.randn(6, dtype=stored, sharding=P("a"))
    ml.save(tmp_path, [x])
    (found,) = ml.load(tmp_path, like=[backend.zeros(6, dtype=wanted, sharding=P("a"))])
    assert found.dtype == wanted
    np.testing.assert_array_equal(found.numpy(), x.astype(wanted).numpy())


def test_arrays_on_parts_of_a_mesh_and_finer_axes(tmp_path: Path) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    stage = ml.Sharding.of(backend.mesh.part({"pipeline": 1}), P("data"), 1)
    fine = ml.NumpyBackend(4)
    tree = {
        "stage": backend.reshard(backend.arange(6.0), stage),
        "fine": fine.array(np.arange(8.0), device_mesh=(2, 2), tensor_split=(None, 0)),
    }
    ml.save(tmp_path, tree)
    for name, x in ml.load(tmp_path, like=tree).items():
        assert x.sharding == tree[name].sharding
        np.testing.assert_array_equal(x.numpy(), tree[name].numpy())
