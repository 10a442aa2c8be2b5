"""What cannot be saved or loaded is refused with names, numbers and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P


def refuses(
    text: str, call: Callable[[], object], error: type[Exception] = ml.CheckpointError
) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    backend = ml.NumpyBackend(ml.Mesh(a=2))
    tree = {"w": backend.ones(4, 6, sharding=P("a")), "n": np.arange(3), "step": 3, "name": "x"}
    ml.save(tmp_path, tree)
    return tmp_path


# ------------------------------------------------------------------ what is saved


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": {"b": 1}, "a/b": 2}, "name 'a/b' stands for two leaves; give a key of the tree ano"),
        ({1: 1, "1": 2}, "name '1' stands for two leaves"),
        ({"__metadata__": 1}, "name '__metadata__' is kept for safetensors; give a key"),
        (
            {"a": {(1, 2): 1}},
            r"tree has the key \(1, 2\) at 'a', which is a tuple; keys are texts or",
        ),
        ({True: 1}, "tree has the key True at '/', which is a bool"),
        ({"a\ud800": 1}, r"tree has the key 'a\\ud800' at '/'; keys are printable texts"),
        (
            {"f": [print]},
            "leaf 'f/0' is a builtin_function_or_method, which is not saved; leaves ar",
        ),
        ({"m": np.ma.ones(2)}, "leaf 'm' is a masked array of NumPy, whose mask would be lost"),
        (
            {"c": np.ones(2, complex)},
            "leaf 'c' is no array that a checkpoint holds; dtype 'complex128' is not supported",
        ),
        ({"o": np.array([{}])}, "leaf 'o' is no array that a checkpoint holds; dtype 'object' is"),
        ({"t": np.array(["x"])}, "leaf 't' is no array that a checkpoint holds; dtype 'str32' is"),
    ],
)
def test_leaves_and_keys_that_are_not_saved(tree: Any, text: str, tmp_path: Path) -> None:
    ml.NumpyBackend()
    refuses(text, lambda: ml.save(tmp_path / "new", tree))
    assert not (tmp_path / "new").exists()


def test_parameters_without_a_size(tmp_path: Path) -> None:
    params = ml.compile(ml.Linear(3), ml.NumpyBackend()).randomize_params()
    refuses(
        "parameter 'weight' has no size yet", lambda: ml.save(tmp_path, params), ml.BackendError
    )


def test_paths(saved: Path, tmp_path: Path) -> None:
    other = saved / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    refuses(
        r"directory '.*other' holds 1 files that are no checkpoint: 'notes.txt'; give a path of its",
        lambda: ml.save(other, {}),
    )
    assert (other / "notes.txt").read_text() == "mine"
    file = saved / "index.json"
    refuses(
        r"path '.*index.json' is a file; a checkpoint is a directory", lambda: ml.save(file, {})
    )
    refuses(r"index.json' is a file; a checkpoint is a direc", lambda: ml.load(file))
    refuses("path '' names no directory; give one, such as 'run'", lambda: ml.save("", {"step": 1}))
    refuses("names no directory", lambda: ml.load("a\0b"))
    long = f"{tmp_path}/{'a' * 300}"
    for call in (lambda: ml.save(long, {}), lambda: ml.load(long)):
        refuses(r"path '.*a' cannot be looked at; .*; give another path", call)
    refuses("path is an int; give a text or a pathlib.Path", lambda: ml.save(3, {}))
    refuses(r"directory '/proc/x' cannot be made; ", lambda: ml.save("/proc/x", {}))
    refuses(
        r"checkpoint '.*none' has no file '.*none/index.json'; nothing was saved there, or the save",
        lambda: ml.load(tmp_path / "none"),
    )


def test_other_files_beside_a_checkpoint_stay(saved: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    ml.save(saved, {"w": np.ones(2)})
    assert (saved / "notes.txt").read_text() == "mine"
    assert len(list(saved.iterdir())) == 3


def test_a_leaf_of_jax_without_a_dtype_of_ours_is_named(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    backend = ml.JaxBackend()
    ml.save(tmp_path, {"a": {"x": np.ones(2)}})
    for leaf in (jax.random.key(0), jax.numpy.ones(2, "complex64")):
        tree = {"a": {"x": leaf}}
        text = "leaf 'a/x' is no array that a checkpoint holds; dtype '.*' is not supported"
        refuses(text, lambda tree=tree: ml.save(tmp_path, tree))
        refuses(text, lambda tree=tree: ml.load(tmp_path, like=tree))
    assert backend.name == "jax", "it is open: that is how its arrays are known"


def test_options(saved: Path) -> None:
    compiled = ml.compile(ml.Linear(3), ml.NumpyBackend())
    both = r"load\(\) is given like= and compiled=; give one of them"
    refuses(both, lambda: ml.load(saved, like={}, compiled=compiled), ml.OptionError)
    wrong = r"compiled is a dict; give what ml.compile\(…\) returns"
    refuses(wrong, lambda: ml.load(saved, compiled={}), ml.OptionError)
    refuses(
        "not known before the shapes",
        lambda: ml.load(saved, compiled=compiled),
        ml.PlanError,
    )
    model = ml.Model()
    model |= ml.Linear(3)(input="x", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    shapes = {"x": (2, 4), "t": (2, 3)}
    step = ml.train_step(model, ml.NumpyBackend(), ml.optim.sgd(0.1), shapes=shapes)
    refuses(
        "those of a train step are those of step.init",
        lambda: ml.load(saved, compiled=step.compiled),
        ml.PlanError,
    )
    uncallable = "observe=3 cannot be called; give a function of file, name and nbytes"
    refuses(uncallable, lambda: ml.load(saved, observe=3), ml.OptionError)
    refuses(r"save\(\) has no option 'pth'", lambda: ml.save(pth=saved, tree={}), ml.OptionError)


# ------------------------------------------------------------------ what does not fit


def test_all_that_does_not_fit_is_listed_at_once(saved: Path) -> None:
    zeros = ml.NumpyBackend().zeros
    like = {"v": zeros(2), "nn": zeros(3), "w": zeros(4, 5), "step": "text"}
    with pytest.raises(ml.CheckpointError) as found:
        ml.load(saved, like=like)
    assert str(found.value) == (
        f"checkpoint '{saved}' lacks 'v', 'nn' (did you mean 'n'?); holds 'n', 'name' besides; differs: "
        f"'w' is float32[4, 6] there and float32[4, 5] here, 'step' is a number there and a text "
        f"here; load it into a tree of the form that was saved, or give subtree= for a part of it"
    )


@pytest.mark.parametrize(
    ("name", "leaf", "text"),
    [
        ("n", np.zeros(3, np.int32), r"'n' is int64\[3\] there and int32\[3\] here"),
        ("n", np.zeros(3), r"'n' is int64\[3\] there and float64\[3\] here"),
        ("w", np.zeros((4, 6), int), r"'w' is float32\[4, 6\] there and int64\[4, 6\] here"),
        ("step", np.int64(3), "'step' is a number there and an array here"),
        ("n", 3, "'n' is an array there and a number here"),
        ("name", 3, "'name' is a text there and a number here"),
    ],
)
def test_what_differs(name: str, leaf: Any, text: str, saved: Path) -> None:
    like = {**ml.load(saved), name: leaf}
    refuses(text, lambda: ml.load(saved, like=like))


def test_a_near_name_is_told_and_many_are_not(tmp_path: Path) -> None:
    ml.save(tmp_path, {"layer.weight": np.ones(2), **{f"a{i}": i for i in range(20)}})
    like = {"layer.wieght": np.ones(2)}
    refuses(
        r"lacks 'layer.wieght' \(did you mean 'layer.weight'\?\)",
        lambda: ml.load(tmp_path, like=like),
    )
    refuses("'a10' and 9 more besides", lambda: ml.load(tmp_path, like=like))


def test_a_tensor_of_another_class(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    backend = ml.TorchBackend()
    weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert backend.name == "torch", "it is open: that is how tensors are known"
    ml.save(tmp_path, [weight])
    refuses(
        "leaf '0' is a torch.Parameter, and backend 'torch' gives out a torch.Tensor; have an array of",
        lambda: ml.load(tmp_path, like=[weight]),
    )


# ------------------------------------------------------------------ damaged files


def test_a_file_that_is_cut_off_or_gone(saved: Path) -> None:
    (file,) = saved.glob("*.safetensors")
    whole = file.read_bytes()
    for held in (whole[:-3], whole[:4], b"", b"\xff" * 100):
        file.write_bytes(held)
        refuses(rf"file '{file}' is damaged; .*; take another checkpoint", lambda: ml.load(saved))
    file.unlink()
    refuses(rf"has no file '{file}', which its index names; take", lambda: ml.load(saved))


def test_values_that_have_changed(saved: Path) -> None:
    (file,) = saved.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    refuses(r"is damaged; the checksum of '.*' is another one", lambda: ml.load(saved))


def test_a_file_of_another_checkpoint(
    saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    ml.save(other, {"n": np.arange(4.0), "w": np.ones(4)})
    (file,), (wrong,) = saved.glob("*.safetensors"), other.glob("*.safetensors")
    file.write_bytes(wrong.read_bytes())
    refuses(r"file '.*' is damaged; ", lambda: ml.load(saved))
    index = json.loads((saved / "index.json").read_text())
    del index["tensors"]["w"], index["tree"]["dict"][0]
    (saved / "index.json").write_text(json.dumps(index))
    refuses(
        r"damaged; 'n' gives float64\[4\] where the index says int64\[3\]", lambda: ml.load(saved)
    )


def change(path: Path, edit: Callable[[Any], object]) -> None:
    index = json.loads((path / "index.json").read_text())
    edit(index)
    (path / "index.json").write_text(json.dumps(index))


PART = ("tensors", "w", "parts", 0)


def put(*keys: Any, value: Any) -> Callable[[Any], None]:
    def edit(index: Any) -> None:
        for key in keys[:-1]:
            index = index[key]
        index[keys[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda index: index.clear(), "KeyError: 'format'"),
        (put("format", value="zip"), "ValueError: the format is 'zip'"),
        (put("version", value="1"), "ValueError: the version is '1'"),
        (put("save", value=-1), "ValueError: -1 is no integer of 0 or more"),
        (put("tensors", value=[]), "AttributeError: 'list' object has no attribute 'items'"),
        (put("tensors", "w", "dtype", value="f3"), "ShapeError: dtype 'f3' is not supported"),
        (
            put("tensors", "w", "parts", value=[]),
            "ValueError: 'w' has 24 elements, and its parts 0",
        ),
        (put(*PART, "box", value=[[0, 9], [0, 6]]), r"ValueError: a part of 'w' \(4, 6\) lies at "),
        (put(*PART, "file", value="../x"), "ValueError: a part is in file '../x' under the name"),
        (put("tree", value={"set": []}), "ValueError: {'set': ..} is no part of a tree"),
        (put("tree", value={"dict": [[1.5, {"value": 1}]]}), "ValueError: 1.5 is no key"),
        (put("tree", value={"tensor": "z"}), "ValueError: {'tensor': 'z'} is no part of a tree"),
    ],
)
def test_a_damaged_index(edit: Callable[[Any], object], text: str, saved: Path) -> None:
    change(saved, edit)
    refuses(
        rf"file '{saved}/index.json' is damaged; {text}.*; take another", lambda: ml.load(saved)
    )
    refuses("is damaged", lambda: ml.save(saved, {}))


def test_an_index_that_is_no_json(saved: Path) -> None:
    for text in ("", "{", "[" * 100_000, "\xff"):
        (saved / "index.json").write_bytes(text.encode("latin-1"))
        refuses(rf"file '{saved}/index.json' is damaged; ", lambda: ml.load(saved))


def test_a_later_version_and_keys_of_one(saved: Path) -> None:
    change(saved, put("made_by", value="a later Mithril"))
    assert ml.load(saved)["step"] == 3
    change(saved, put("version", value=2))
    refuses(
        r"has version 2 of the format, and this Mithril reads up to 1; install a later one",
        lambda: ml.load(saved),
    )


def test_parts_that_overlap_and_leave_a_gap(saved: Path) -> None:
    change(saved, put(*PART, "box", value=[[2, 4], [0, 6]]))
    refuses("ValueError: parts of 'w' overlap; take another", lambda: ml.load(saved))


def test_an_old_file_that_cannot_be_removed(tmp_path: Path) -> None:
    ml.save(tmp_path, {"step": 1})
    (tmp_path / "000001-00000-00009.safetensors").mkdir()  # as a file of a save is called
    refuses(
        r"directory '.*' keeps files of another save; .*; remove what 'index.json' does not name",
        lambda: ml.save(tmp_path, {"step": 2}),
    )


def test_an_index_that_cannot_be_read(saved: Path) -> None:
    (saved / "index.json").unlink()
    (saved / "index.json").mkdir()
    refuses(r"index.json' cannot be read; .*; check the path", lambda: ml.load(saved))
