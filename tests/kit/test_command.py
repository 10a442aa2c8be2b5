"""`mithril backends check`, and the same by pytest: lines, exit codes, gaps, files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.faulty import write_faulty
from tests.plugin_packages import environment, mithril

ON_OPS = ("backends", "check", "faulty", "--level", "smoke", "-k", "ops/t")
WRONG = "wrap('tanh', lambda y: y * 1.01)\n"


@pytest.mark.slow
def test_a_line_for_each_op_and_a_verdict(tmp_path: Path) -> None:
    write_faulty(tmp_path, WRONG + "del KERNELS['triangular_solve']; del KERNELS['gelu']")
    done = mithril(*ON_OPS, path=tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "ops"
    assert "  top_k                    ok        2 cases" in lines
    (wrong,) = [line for line in lines if line.startswith("  tanh")]
    assert wrong.split()[:2] == ["tanh", "wrong"]
    assert "1 of 1 cases: off by 0.00828 at [0, 0]: 0.836785, not 0.8285; " in wrong
    assert "smallest failing case: tanh of float32[1, 1] [[1.18333" in wrong
    (missing,) = [line for line in lines if line.startswith("  triangular_solve")]
    assert "op 'triangular_solve' has no kernel in backend 'faulty' and no expansion" in missing
    assert lines[-1].startswith(
        "backend 'faulty' is NOT GOOD at level smoke: 6 ok, 1 missing, 1 wr"
    )


@pytest.mark.slow
def test_what_layers_need_is_said(tmp_path: Path) -> None:
    write_faulty(tmp_path, "del KERNELS['convolution']; del KERNELS['gelu']")
    done = mithril(*ON_OPS[:-1], "ops/*[nu]", path=tmp_path)
    assert "no expansion; add a kernel; needed by Conv1d, Conv2d, Conv3d" in done.stdout
    assert "  gelu                     expanded  1 case\n" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("gaps", ["spec", "file"])
def test_known_gaps_are_strict_both_ways(gaps: str, tmp_path: Path) -> None:
    def run(fault: str, declared: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        by_spec = gaps == "spec"
        write_faulty(folder, f"{fault}GAPS['{declared}'] = 'a slow chip'" if by_spec else fault)
        file = folder / "gaps.toml"
        file.write_text(f'[known_gaps]\n"{declared}" = "a slow chip"\n')
        return mithril(*ON_OPS, *(() if by_spec else ("--known-gaps", str(file))), path=folder)

    done = run(WRONG, "ops/tanh")
    assert done.returncode == 0, done.stdout
    assert "gap       a slow chip (wrong: 1 of 1 cases: off by" in done.stdout
    assert "is good at level smoke: 7 ok, 1 known gap;" in done.stdout
    done = run("", "ops/tanh")
    assert done.returncode == 1
    assert "passes    declared as a gap (a slow chip) and passes; take it out" in done.stdout
    done = run(WRONG, "ops/tan?")
    assert done.returncode == 0
    done = run(WRONG, "ops/tahn")
    assert done.stderr == (
        "OptionError: known gap 'ops/tahn' names no check; did you mean 'ops/tan'?; take it out, "
        "or mend it\n"
    )


@pytest.mark.slow
def test_json_and_a_page(tmp_path: Path) -> None:
    write_faulty(tmp_path, WRONG)
    done = mithril(*ON_OPS, "--json", "--html", str(tmp_path / "page.html"), path=tmp_path)
    document = json.loads(done.stdout)
    assert (document["backend"], document["level"], document["good"]) == ("faulty", "smoke", False)
    (row,) = [row for row in document["results"] if row["id"] == "ops/tanh"]
    assert (row["status"], row["good"], row["gap"]) == ("wrong", False, None)
    page = (tmp_path / "page.html").read_text()
    assert "<tr class=bad><td>ops</td><td>tanh</td><td>wrong</td>" in page
    assert page.count("<tr class=good>") == len(document["results"]) - 1


MISTAKES = [
    (("--level", "huge"), 1, "OptionError: --level 'huge' is no level; write smoke, basic or full"),
    (("-k", "ops/tahn"), 1, "OptionError: -k 'ops/tahn' chooses no check"),
    (
        ("-k", "layers/L"),
        1,
        "OptionError: -k 'layers/L' chooses 5 checks, none of level basic; give -",
    ),
    (
        ("--option", "fast"),
        1,
        "OptionError: --option 'fast' is not KEY=VALUE; write it like chips=4",
    ),
    (("--option", "a=b"), 1, "OptionError: backend 'faulty' has no option 'a'"),
    (("--known-gaps", "none.toml"), 1, "OptionError: --known-gaps none.toml cannot be read; "),
    (
        ("--known-gaps", "bad.toml"),
        1,
        "OptionError: --known-gaps bad.toml has no table [known_gaps",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "code", "text"), MISTAKES, ids=str)
def test_mistakes_are_one_line(
    options: tuple[str, ...], code: int, text: str, tmp_path: Path
) -> None:
    write_faulty(tmp_path, "")
    (tmp_path / "bad.toml").write_text("known_gaps = 3\n")
    options = tuple(str(tmp_path / o) if o == "bad.toml" else o for o in options)
    done = mithril("backends", "check", "faulty", *options, path=tmp_path)
    assert done.returncode == code
    assert done.stderr.replace(f"{tmp_path}/", "").startswith(text)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_backend_that_does_not_open_has_its_own_exit_code(tmp_path: Path) -> None:
    write_faulty(tmp_path, "open_faulty = lambda mesh, options: 42")
    done = mithril("backends", "check", "faulty", path=tmp_path)
    assert done.returncode == 3
    assert "opens an int, which is no engine" in done.stderr


# ------------------------------------------------------------------ pytest


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder with the plugin of the kit and no other."""
    command = [sys.executable, "-m", "pytest", "-p", "mithril.cli.pytest_plugin", *options]
    variables = environment(folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_every_check_is_an_item_of_pytest(tmp_path: Path) -> None:
    write_faulty(tmp_path, WRONG + "GAPS['ops/trunc'] = 'never'; GAPS['ops/tan'] = 'slow'")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    options = (
        "--mithril-backend",
        "faulty",
        "--mithril-level",
        "smoke",
        "-k",
        "ops/t or own",
        "-v",
    )
    done = run_pytest(tmp_path, *options)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("test_own.py::test_own PASSED") for line in lines)
    assert any(line.startswith("::mithril faulty::ops/take PASSED") for line in lines)
    assert "off by 0.00828 at [0, 0]: 0.836785, not 0.8285" in done.stdout
    assert "declared as a gap (never) and passes" in done.stdout
    assert "3 failed, 6 passed" in done.stdout


@pytest.mark.slow
def test_pytest_refuses_what_the_command_refuses(tmp_path: Path) -> None:
    write_faulty(tmp_path, "")
    done = run_pytest(tmp_path, "--mithril-backend", "fualty")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--mithril-backend fualty: backend 'fualty' does not exist; installed:" in done.stderr


def test_pytest_without_the_option_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\ndef test_own(): assert 'mithril.testing.run' not in sys.modules\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_nothing_of_the_kit_imports_pytest() -> None:
    code = "import mithril.testing.run, sys; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_checks_are_listed_and_left_out(tmp_path: Path) -> None:
    write_faulty(tmp_path, WRONG)
    done = mithril(*ON_OPS, "--list", "--exclude", "tan", path=tmp_path)
    listed = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert {"ops/take", "ops/top_k", "ops/transpose"} <= set(listed)
    assert not {"ops/tan", "ops/tanh"} & set(listed)
    done = mithril(*ON_OPS, "--exclude", "ops/ta*", path=tmp_path)
    assert done.returncode == 0, done.stdout
    done = mithril(*ON_OPS, "--exclude", "ops", path=tmp_path)
    assert "--exclude 'ops' leaves none of 8 checks; choose others by -k" in done.stderr


@pytest.mark.slow
def test_patterns_begin_a_group_or_a_name_and_one_of_several_is_enough(tmp_path: Path) -> None:
    def choose(*options: str) -> list[str]:
        asked = ("backends", "check", "numpy", "--list", "--level", "full", *options)
        done = mithril(*asked, path=tmp_path)
        return done.stdout.splitlines() or done.stderr.splitlines()

    assert {one.partition("/")[0] for one in choose("-k", "ops/")} == {"ops"}
    softmax = choose("-k", "softmax")
    assert {"ops/softmax", "gradients/softmax", "ops/softmax_gradient"} <= set(softmax)
    assert "ops/log_softmax" not in softmax
    assert "ops/log_softmax" in choose("-k", "*softmax*")
    either = choose("-k", "loops/", "-k", "ops/tanh")
    assert either == ["ops/tanh", *choose("-k", "loops/")]
    assert choose("-k", "loops", "--exclude", "scan", "--exclude", "loops/nothing") == [
        "loops/Repeat"
    ]
    (refused,) = choose("-k", "ops/tanh", "-k", "oops/")
    assert refused.startswith("OptionError: -k 'oops/' chooses no check")


STOPS = """
def stop(x):
    import os, signal
    os.kill(os.getpid(), signal.SIGNAL)
    return np.tanh(x)
replace('tanh', stop); wrap('tan', lambda y: y * 1.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_run_that_is_interrupted_says_what_it_has_found(
    name: str, code: int, tmp_path: Path
) -> None:
    write_faulty(tmp_path, STOPS.replace("SIGNAL", name))
    done = mithril(*ON_OPS, path=tmp_path)
    assert done.returncode == code, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(
        "backend 'faulty' was stopped after 3 of 8 checks at level smoke: 2 ok, 1 wrong; mesh"
    )


@pytest.mark.slow
def test_smoke_finds_one_buffer_for_all_results_and_a_transfer_that_changes(tmp_path: Path) -> None:
    def check(fault: str, pattern: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        write_faulty(folder, fault)
        asked = ("backends", "check", "faulty", "--level", "smoke", "-k", pattern)
        done = mithril(*asked, path=folder)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    assert "tanh' of backend 'faulty' writes into a result that it returned" in check(
        ONE_BUFFER, "ops/tanh"
    )
    assert "a transfer of backend 'faulty' brings device" in check(DOUBLES, "stages/")


ONE_BUFFER = """
def one_buffer(op, types):
    buffer = np.empty(types[0].shape, types[0].dtype.numpy)
    return lambda x: np.tanh(x, out=buffer)
KERNELS['tanh'] = one_buffer
"""
DOUBLES = """
def lower_transfer(self, transfer):
    carry_out = NumpyEngine.lower_transfer(self, transfer)
    return lambda shards: [None if x is None else x * 2 for x in carry_out(shards)]
Faulty.lower_transfer = lower_transfer
"""
