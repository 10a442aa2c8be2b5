"""`mithril eject`, run as a user runs it; what the files do is tested with their backend."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from mithril.errors import BackendError
from mithril.plugins import BackendSpec
from mithril.plugins.spec import check_specs

from tests.plugin_packages import mithril, write_plugin

WRITER = """
from mithril.engine.interop import Interop
from mithril.engine.numpy_engine import NumpyEngine

def eject(compiled, path, gradients=None):
    ports = compiled.plan.stages[0].program.inputs
    told = [f"{p.name} {p.type} {p.sharding.spec!r}" for p in ports]
    path.write_text("\\n".join([repr(compiled.backend.mesh), f"gradients={gradients}", *told]))
    return path

class Methods(Interop):
    @property
    def model_methods(self):
        return {"eject": eject}

@dataclass(frozen=True)
class Options:
    absent: bool = False

class Engine(NumpyEngine):
    name = "quill"
    interop = Methods()

def open_quill(mesh, options):
    assert options.absent, "the devices are not there"
    return Engine(mesh)

@hookimpl
def mithril_backends():
    planning = {"absent": True}
    return [BackendSpec("quill", open_quill, api=(2, 0), options=Options, planning=planning)]
"""
SCRIPT = """
import argparse, sys
import mithril as ml
from beside import WIDTH

argparse.ArgumentParser().parse_args()  # nothing of mithril eject's own command line
model = ml.Model()
model |= ml.Linear(WIDTH, name="up")(input="x", output="h")
model += ml.Linear(1, name="down")(output="y")
layer = ml.Linear(2)
number = 3
planned = ml.compile(model, ml.NumpyBackend(), shapes={"x": (4, 5)})
if __name__ == "__main__":
    raise SystemExit("training")
"""

EMBEDDING = """
import mithril as ml
model = ml.Model()
model |= ml.Embedding(7, 3)(input="ids", output="rows")
model |= ml.Multiply()(inputs=["rows", "rate"], output="y")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the backend `quill`, which writes what it is asked for, and a script."""
    write_plugin(tmp_path, "quill", WRITER)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("WIDTH = 6\n")
    return tmp_path


def eject(
    folder: Path, target: str, *arguments: str, allowed: str = "quill,numpy"
) -> CompletedProcess[str]:
    """Run the command where no other backend counts, whatever is installed here."""
    where = f"{folder / 'train.py'}:{target}"
    output = ("-o", str(folder / "out.txt"))
    return mithril("eject", where, *output, *arguments, path=folder, MITHRIL_PLUGINS=allowed)


def written(folder: Path) -> list[str]:
    return (folder / "out.txt").read_text().splitlines()


class TestFiles:
    @pytest.mark.slow
    def test_a_model_on_a_mesh(self, folder: Path) -> None:
        mesh = ("--mesh", "data=2,tensor=3")
        done = eject(folder, "model", *mesh, "--shapes", "x=12x5@data/-")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"wrote {folder / 'out.txt'}\n"
        told, asked, *ports = written(folder)
        assert (told, asked) == ("Mesh(data=2, tensor=3)", "gradients=None")
        assert ports[0] == "x float32[12, 5] P('data', None)"
        assert ports[-1].startswith("output_gradients.y float32[12, 1]")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("text", "port"),
        [
            ("x=4x5", "x float32[4, 5] P(None, None)"),
            ("x=4x5@-/a", "x float32[4, 5] P(None, 'a')"),
            ("x=4x5@a+b", "x float32[4, 5] P(('a', 'b'), None)"),
        ],
    )
    def test_sizes_and_axes(self, folder: Path, text: str, port: str) -> None:
        done = eject(folder, "layer", "--mesh", "a=2,b=2", "--shapes", text.replace("x=", "input="))
        assert (done.returncode, done.stderr) == (0, "")
        assert written(folder)[2] == port.replace("x ", "input ", 1)

    @pytest.mark.slow
    def test_dtypes_and_scalars(self, folder: Path) -> None:
        (folder / "train.py").write_text(EMBEDDING)
        done = eject(folder, "model", "--shapes", "ids=4:int32,rate=:float32")
        assert (done.returncode, done.stderr) == (0, "")
        assert "ids int32[4] P(None)" in written(folder)
        assert "rate float32[] P()" in written(folder)

    @pytest.mark.slow
    def test_outputs_alone(self, folder: Path) -> None:
        done = eject(folder, "model", "--forward", "--shapes", "x=4x5")
        assert done.returncode == 0, done.stderr
        assert written(folder)[1] == "gradients=False"
        assert not any(line.startswith("output_gradients") for line in written(folder))

    @pytest.mark.slow
    def test_the_backend_may_be_named(self, folder: Path) -> None:
        done = eject(folder, "model", "--backend", "quill", "--gradients", "--shapes", "x=4x5")
        assert done.returncode == 0, done.stderr
        assert written(folder)[1] == "gradients=True"


class TestRefusals:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("target", "arguments", "text"),
        [
            ("modl", (), ".py' has no 'modl'; did you mean 'model'?; name a model"),
            ("number", (), ":number' is an int; name a model or a compiled model"),
            ("model", (), "needs the sizes of its inputs; give --shapes x=8x16"),
            ("model", ("--shapes", "x=4xx5"), "--shapes part 'x=4xx5' is no input and its sizes"),
            ("model", ("--shapes", "x=4,x=4"), "--shapes names input 'x' twice; give it one shape"),
            (
                "model",
                ("--shapes", "x=4x5@data+"),
                "'x=4x5@data+' lacks the name of an axis; write - for",
            ),
            ("model", ("--shapes", "x=4x5@/data"), "'x=4x5@/data' lacks the name of an axis"),
            ("model", ("--shapes", "x=4x5@"), "'x=4x5@' lacks the name of an axis"),
            ("model", ("--shapes", "x=4x5@data-", "--mesh", "data=2"), "has no axis 'data-'"),
            ("model", ("--mesh", "data"), "--mesh part 'data' is not an axis and its size"),
            (
                "model",
                ("--backend", "numpy"),
                "writes no files that run without Mithril; those that do: 'quill'",
            ),
            ("planned", ("--mesh", "data=2"), "is compiled, for Mesh(); --mesh and --shapes are"),
            ("planned", ("--backend", "quill"), "--backend quill is not the one of the compiled"),
            ("planned", (), "model is on backend 'numpy', which writes no files; compile it on"),
        ],
    )
    def test_in_one_line(
        self, folder: Path, target: str, arguments: tuple[str, ...], text: str
    ) -> None:
        done = eject(folder, target, *arguments)
        assert done.returncode == 1
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (folder / "out.txt").exists()

    def test_no_backend_writes_files(self, folder: Path) -> None:
        done = eject(folder, "model", allowed="numpy")
        assert "needs one ready backend that writes files; found none; pip install" in done.stderr

    @pytest.mark.slow
    def test_a_target_that_is_none(self, folder: Path) -> None:
        for target, text in (
            ("train.py", "'train.py' names no model; write SCRIPT:NAME, such as train.py:model"),
            ("train.py:a b", "names no model; write SCRIPT:NAME"),
            ("absent.py:model", "script 'absent.py' is no file; give the path of a Python file"),
            (f"{folder / 'notes'}:model", "is no Python file; give one that ends in .py"),
        ):
            (folder / "notes").touch()
            done = mithril("eject", target, "-o", str(folder / "out.txt"), path=folder)
            assert done.returncode == 1
            assert text in done.stderr

    def test_an_error_of_the_script_is_shown_as_python_does(self, folder: Path) -> None:
        (folder / "train.py").write_text("x = 1\nx.y\n")
        done = eject(folder, "model")
        assert done.returncode == 1
        assert 'train.py", line 2' in done.stderr
        assert "AttributeError: 'int' object has no attribute 'y'" in done.stderr

    def test_a_spec_whose_planning_is_no_mapping(self) -> None:
        spec = BackendSpec("x", lambda mesh, options: None, api=(2, 0), planning=["a"])  # type: ignore[arg-type,return-value]
        with pytest.raises(BackendError, match=r"BackendSpec.planning is \['a'\]; give a mapping"):
            check_specs([spec])
