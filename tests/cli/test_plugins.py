"""`mithril plugins`, commands of plugins, and `--option`, run as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import mithril as ml
import pytest
from mithril.cli.app import app
from mithril.cli.options import read_options
from mithril.errors import OptionError
from mithril.plugins import BackendSpec
from mithril.plugins.launch import Command
from mithril.plugins.launch_options import hand_on, read_handed_on
from typer.testing import CliRunner

from tests.plugin_packages import installed, mithril, python


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed("kinds", "claims", "halves", "good", "broken")


CHOSEN = {"MITHRIL_PLUGIN_ACME": "acme-kinds"}


class TestList:
    @pytest.mark.slow
    def test_it_shows_every_plugin_and_its_state(self, packages: Path) -> None:
        done = mithril("plugins", "list", path=packages, **CHOSEN)
        assert (done.returncode, done.stderr) == (0, "")
        head, *rows, summary = done.stdout.splitlines()
        assert head.split() == ["NAME", "PACKAGE", "STATUS", "BRINGS", "NOTE"]
        assert [" ".join(row.split()) for row in rows] == [
            "acme acme-claims 2.0.0 duplicate ? name also claimed by 'acme-kinds' · "
            "MITHRIL_PLUGIN_ACME=acme-claims selects this one",
            "acme acme-kinds 1.3.0 ready 1 op, 2 layers, 1 schedule, 1 graph pass, 1 program pass, "
            "1 command, 1 kernel, 1 hardware, 2 observers",
            "acme-halves acme-halves 0.2.0 broken ? RuntimeError: no licence found · "
            "mithril plugins info acme-halves",
            "claims acme-claims 2.0.0 ready 1 kernel",
            "halves acme-halves 0.2.0 ready 1 op, 1 kernel, 1 observer",
        ]
        assert summary == "3 ready, 1 broken, 1 duplicate"

    def test_json_has_its_schema(self, packages: Path) -> None:
        done = mithril("plugins", "list", "--json", path=packages, **CHOSEN)
        document = json.loads(done.stdout)
        assert (document["schema"], document["mithril"]) == (1, "0.1.0")
        (acme,) = [row for row in document["plugins"] if row["package"] == "acme-kinds"]
        assert acme["brings"]["layers"] == ["acme.Swish", "acme.SwishGlu"]
        del acme["brings"]
        assert acme == {
            "name": "acme",
            "package": "acme-kinds",
            "package_version": "1.3.0",
            "status": "ready",
            "note": "",
            "entry_point": "acme_kinds.plugin",
        }

    def test_strict_asks_that_all_are_ready(self, packages: Path, tmp_path: Path) -> None:
        assert mithril("plugins", "list", "--strict", path=packages).returncode == 1
        done = mithril("plugins", "list", "--strict", path=tmp_path)
        assert (done.returncode, done.stdout) == (
            0,
            "no plugins are installed; `mithril backends list` shows the backends\n",
        )

    def test_nothing_that_plugins_bring_is_imported(self, packages: Path) -> None:
        code = """
import sys
from mithril.cli.app import app
app(["plugins", "list", "--json"], standalone_mode=False)
print(*sorted(name for name in sys.modules if name.startswith("acme_")), file=sys.stderr)
assert not {"acme_kinds.ops", "acme_kinds.commands", "numpy", "jax"} & set(sys.modules)
"""
        assert json.loads(python(code, packages, **CHOSEN))["schema"] == 1

    def test_a_requirement_that_is_not_met(self, tmp_path: Path) -> None:
        for name, need in (
            ("old", "mithril-core<0.1"),
            ("poor", "acme-nowhere>=3; python_version>'3'"),
        ):
            write_metadata(tmp_path, name, need)
        done = mithril("plugins", "list", path=tmp_path)
        first, second = (" ".join(row.split()) for row in done.stdout.splitlines()[1:3])
        assert first == (
            "old acme-old 1.0 incompatible ? needs mithril-core<0.1, this mithril is 0.1.0 · "
            "pip install 'mithril-core<0.1'"
        )
        assert second.startswith("poor acme-poor 1.0 missing ? needs acme-nowhere>=3")

    @pytest.mark.slow
    def test_a_requirement_that_cannot_be_read_harms_no_other(self, tmp_path: Path) -> None:
        write_metadata(tmp_path, "odd", "numpy>=>2")
        write_metadata(tmp_path, "plain")
        done = mithril("plugins", "list", path=tmp_path)
        first, second = (" ".join(row.split()) for row in done.stdout.splitlines()[1:3])
        assert first.startswith(
            "odd acme-odd 1.0 broken ? BackendError: requirement 'numpy>=>2' is not understood: "
        )
        assert second == "plain acme-plain 1.0 ready nothing"
        code = "import mithril as ml; print(ml.NumpyBackend().name)"
        assert python(code, tmp_path) == "numpy\n"

    def test_a_name_that_is_not_of_the_distribution(self, tmp_path: Path) -> None:
        write_metadata(tmp_path, "theirs", point="jax")
        done = mithril("plugins", "list", path=tmp_path)
        assert (
            "broken  ?       BackendError: entry point 'jax' is no part of the name of its "
            "distribution, 'acme-theirs'; names of what it brings begin with it: call it "
            "'acme_theirs' or 'acme' · mithril plugins info jax"
        ) in done.stdout


def write_metadata(folder: Path, name: str, *needs: str, point: str = "") -> None:
    """Write the distribution `acme-NAME` with one plugin."""
    (folder / f"acme_{name}.py").write_text("", encoding="utf-8")
    metadata = folder / f"acme_{name}-1.0.dist-info"
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: acme-{name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        f"[mithril.plugins]\n{point or name} = acme_{name}\n", encoding="utf-8"
    )


class TestInfo:
    def test_it_names_all_that_a_plugin_brings(self, packages: Path) -> None:
        done = mithril("plugins", "info", "acme", path=packages, **CHOSEN)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[:4] == [
            "acme   acme-kinds 1.3.0   (acme_kinds.plugin)",
            "  status          ready",
            "  ops             acme.swish",
            "  layers          acme.Swish, acme.SwishGlu",
        ]

    def test_a_broken_one_shows_where_it_broke(self, packages: Path) -> None:
        done = mithril("plugins", "info", "acme-halves", path=packages)
        assert done.returncode == 3
        assert "Traceback inside acme_halves.raising (last 5 frames at most):" in done.stderr
        assert done.stderr.splitlines()[-1].startswith(
            "BackendError: plugin 'acme-halves' of acme-"
        )

    def test_as_json_and_one_that_does_not_exist(self, packages: Path) -> None:
        done = mithril("plugins", "info", "halves", "--json", path=packages)
        assert json.loads(done.stdout)["brings"] == {
            "ops": ["halves.half"],
            "kernels": ["erf on numpy"],
            "observers": ["evaluated"],
        }
        absent = mithril("plugins", "info", "halfs", path=packages)
        assert (absent.returncode, absent.stdout) == (3, "")
        assert absent.stderr.endswith("; did you mean 'halves'?\n")


class TestCommands:
    @pytest.mark.slow
    def test_a_command_runs(self, packages: Path) -> None:
        done = mithril(
            "acme",
            "count",
            "Sigmoid",
            "--size",
            "3",
            path=packages,
            **CHOSEN,
            MITHRIL_PLUGINS="acme,numpy",
        )
        assert (done.stdout, done.stderr) == ("Sigmoid of 3 elements: 1 nodes\n", "")

    def test_help_lists_it_beside_the_cores(self, packages: Path) -> None:
        every = mithril("--help", path=packages, **CHOSEN).stdout
        assert every.splitlines()[-1] == "  acme       Commands of the plugin acme-kinds 1.3.0."
        assert "Count the nodes" in mithril("acme", "-h", path=packages, **CHOSEN).stdout

    def test_faults_are_one_line(self, packages: Path) -> None:
        twice = mithril("acme", "count", path=packages)
        assert (twice.returncode, twice.stdout) == (1, "")
        assert twice.stderr.startswith("BackendError: plugin 'acme' of acme-claims 2.0.0 is duplic")
        none = mithril("halves", path=packages)
        assert none.stderr == (
            "OptionError: plugin 'halves' of acme-halves 0.2.0 brings no commands; `mithril "
            "plugins info halves` shows what it brings\n"
        )

    @pytest.mark.slow
    def test_only_the_plugin_asked_for_is_loaded(self, packages: Path) -> None:
        code = """
import sys
from mithril.cli.app import app
app(["schedule", "gpipe", "--table"], standalone_mode=False)
assert not [name for name in sys.modules if name.startswith("acme_")]
app(["acme", "--help"], standalone_mode=False)
assert not [name for name in sys.modules if name.startswith(("acme_halves", "acme_claims"))]
"""
        assert "Count the nodes" in python(code, packages, **CHOSEN)


WRONG = """
from mithril.spi import hookimpl

def say(): print("said")
def take(x: int | str = 1): pass

@hookimpl
def mithril_commands():
    return {"absent": "acme_wrong_commands:run", "number": 7, "odd": take, "say": say}
"""


class TestWrongCommands:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        write_metadata(tmp_path, "wrong")
        (tmp_path / "acme_wrong.py").write_text(WRONG, encoding="utf-8")
        return tmp_path

    def test_they_harm_no_other(self, folder: Path) -> None:
        every = mithril("--help", path=folder).stdout
        assert every.splitlines()[-1] == "  wrong      Commands of the plugin acme-wrong 1.0."
        listed = mithril("wrong", "--help", path=folder).stdout.splitlines()
        at = listed.index("Commands:")
        assert [line.split()[0] for line in listed[at + 1 :]] == ["absent", "number", "odd", "say"]
        assert "  absent  Cannot be used: 'wrong.absent' of acme-wrong 1.0 cannot" in listed[at + 1]
        assert mithril("wrong", "say", path=folder).stdout == "said\n"

    @pytest.mark.parametrize(
        ("command", "said"),
        [
            ("absent", "'wrong.absent' of acme-wrong 1.0 cannot be imported from 'acme_wrong_comm"),
            (
                "number",
                "command 'wrong.number' of acme-wrong 1.0 is an int; the plugin has to return a",
            ),
            (
                "odd",
                "command 'wrong.odd' of acme-wrong 1.0 is no function that Typer can read; Ass",
            ),
        ],
    )
    def test_one_says_what_it_is(self, command: str, said: str, folder: Path) -> None:
        done = mithril("wrong", command, "--size", "3", path=folder)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"BackendError: {said}")
        assert len(done.stderr.splitlines()) == 1
        strict = mithril("wrong", "--help", path=folder, MITHRIL_STRICT="1")
        assert (strict.returncode, strict.stdout) == (1, "")


class TestOptions:
    def test_values_are_read(self) -> None:
        texts = ["chips=4", "x=1.5", "jit=True", "no=none", "mode=lockstep", "shape=(2, 3)"]
        assert read_options(texts, None) == {
            "chips": 4, "x": 1.5, "jit": True, "no": None, "mode": "lockstep", "shape": (2, 3),
        }  # fmt: skip
        assert read_options(["x={[]}"], None) == {"x": "{[]}"}

    def test_what_is_declared_as_text_stays_text(self) -> None:
        from dataclasses import dataclass

        @dataclass
        class Options:
            name: str = ""
            count: int = 1

        spec = BackendSpec("x", open=lambda mesh, options: None, api=(2, 0), options=Options)
        assert read_options(["name=3", "count=3"], spec) == {"name": "3", "count": 3}

    @pytest.mark.parametrize(
        ("texts", "said"),
        [
            (["chips"], "--option 'chips' is not KEY=VALUE; write it like chips=4"),
            (["a=1", "a=2"], "--option gives 'a' twice; give it once"),
        ],
    )
    def test_slips(self, texts: list[str], said: str) -> None:
        with pytest.raises(OptionError) as caught:
            read_options(texts, None)
        assert str(caught.value) == said

    @pytest.mark.slow
    def test_info_opens_with_them(self, packages: Path) -> None:
        assert (
            mithril(
                "backends",
                "info",
                "tpu-sim",
                "--option",
                "chips=2",
                path=packages,
                MITHRIL_PLUGINS="tpu-sim",
            ).returncode
            == 0
        )
        done = mithril(
            "backends",
            "info",
            "tpu-sim",
            "--option",
            "chips=0",
            path=packages,
            MITHRIL_PLUGINS="tpu-sim",
        )
        assert done.returncode == 3
        assert done.stderr.endswith(
            "OptionError: backend 'tpu-sim' refuses its options; chips is 0; give at least 1\n"
        )

    @pytest.mark.slow
    def test_the_demo_opens_with_them(self, packages: Path) -> None:
        done = mithril(
            "demo", "--backend", "tpu-sim", "--steps", "1", "--option", "chips=3", path=packages,
            MITHRIL_PLUGINS="tpu-sim",
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.endswith(
            "needs 4 chips, the machine has 3; see `mithril backends info tpu-sim`\n"
        )

    @pytest.mark.slow
    def test_launch_hands_them_on_to_the_script(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import mithril as ml\n"
            "opened = ml.open_backend('torch', 1)\n"
            "print(opened.engine.options.trace_module_partitioning)\n"
            "opened = ml.open_backend('torch', 1, trace_module_partitioning=False)\n"
            "print(opened.engine.options.trace_module_partitioning)\n",
            encoding="utf-8",
        )
        arguments = ["launch", "--backend", "torch", "--option", "trace_module_partitioning=true"]
        import subprocess
        import sys

        done = subprocess.run(
            [sys.executable, "-m", "mithril", *arguments, str(script)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [line.split()[-1] for line in done.stdout.splitlines()] == ["True", "False"]

    def test_what_cannot_be_handed_on(self) -> None:
        said = r"options \{'x': \{1\}\} of backend 'numpy' cannot be handed on to processes; Object"
        with pytest.raises(OptionError, match=said):
            hand_on(Command(("python",)), "numpy", {"x": {1}})

    def test_launch_takes_those_of_the_backend_alone(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.touch()
        done = CliRunner().invoke(
            app, ["launch", "--backend", "torch", "--option", "dtype=bfloat16", str(script)]
        )
        assert isinstance(done.exception, OptionError)
        assert str(done.exception).startswith(
            "--option 'dtype' of mithril launch is no option of backend 'torch' itself; it has "
        )

    @pytest.mark.parametrize("text", ["{", "[1]", '{"numpy": 3}'])
    def test_a_variable_that_holds_something_else(
        self, text: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MITHRIL_OPTIONS", text)
        with pytest.raises(OptionError, match=r"which holds no options of backends; unset it"):
            ml.NumpyBackend()
        monkeypatch.setenv("MITHRIL_OPTIONS", '{"jax": {"a": 1}}')
        assert read_handed_on("numpy") == {}
