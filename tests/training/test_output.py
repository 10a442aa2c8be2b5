"""What a training shows and writes: CSV files, event files, lines, a bar."""

from __future__ import annotations

import csv
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mithril as ml
import pytest

from tests.runtime.scripts import script
from tests.runtime.test_profiling import records
from tests.training.test_loop import add, make

# ---------------------------------------------------------------------- logs


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_log(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"

    def evaluate(state: float) -> dict[str, float]:
        return {"error": state / 3}

    options = {"log": path, "log_every": 2, "evaluate": evaluate, "evaluate_every": 3}
    _, history = ml.train(add, 0.0, [1] * 6, steps=6, **options, progress=False)
    rows = rows_of(path)
    assert [row["step"] for row in rows] == ["2", "3", "4", "6"]
    assert [row["loss"] for row in rows] == ["1", "", "2", "3"]
    assert [row["evaluate/error"] for row in rows] == ["", "1", "", "2"]
    assert [float(row["seconds"]) for row in rows] == pytest.approx([*history["seconds"].values()])
    ml.train(add, 0.0, [1] * 8, steps=8, start=4, **options, progress=False)
    assert [row["step"] for row in rows_of(path)] == ["2", "3", "4", "6", "8"]
    assert rows_of(path)[-1]["loss"] == "2", "rows behind the start are those of the new training"
    ml.train(add, 0.0, [1] * 2, **options, progress=False)
    assert [row["step"] for row in rows_of(path)] == ["2"]


def test_rows_are_there_when_a_training_fails(tmp_path: Path) -> None:
    def step(state: int, batch: int) -> tuple[int, dict[str, float]]:
        return state, {"loss": 1 / batch}

    with pytest.raises(ZeroDivisionError):
        ml.train(step, 0, [2, 4, 0], log=tmp_path / "a.csv", log_every=1, progress=False)
    assert [row["loss"] for row in rows_of(tmp_path / "a.csv")] == ["0.5", "0.25"]


def test_a_log_for_tensorboard(tmp_path: Path) -> None:
    logs = [f"{tmp_path}/runs/one/", str(tmp_path / "run.csv")]
    ml.train(add, 0.0, [1] * 4, log=logs, log_every=2, progress=False)
    (path,) = (tmp_path / "runs/one").glob("events.out.tfevents.*")
    first, *events = records(path.read_bytes())
    assert b"brain.Event:2" in first
    found = []
    for event in events:
        assert event[9:10] == b"\x10"
        at = event.index(b"loss") + len(b"loss")
        found.append((event[10], *struct.unpack("<f", event[at + 1 : at + 5])))
    assert found == [(2, 1.0), (4, 2.0)]
    assert len(rows_of(tmp_path / "run.csv")) == 2


# ---------------------------------------------------------------------- progress


def test_plain_lines_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    def step(state: int, batch: Any) -> tuple[int, dict[str, float]]:
        time.sleep(0.01)
        return state + 1, {"loss": 2.0, "rate": 0.001}

    ml.train(step, 0, make(), steps=4, log_every=2)
    lines = capsys.readouterr().out.splitlines()
    pattern = r"step {}/4  loss 2  rate 0\.001  \d+ samples/s{}"
    assert len(lines) == 2
    for line, found in zip(lines, ((2, "  0:00:00 left"), (4, "")), strict=True):
        assert re.fullmatch(pattern.format(*found), line), line
    ml.train(step, 0, iter([1, 1]), log_every=2)
    assert capsys.readouterr().out == "step 2  loss 2  rate 0.001\n"
    ml.train(step, 0, [1, 1], progress=False)
    assert capsys.readouterr().out == ""


def test_predicted_time_is_that_of_the_steps_that_are_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mithril.training import timing

    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def step(state: int, batch: Any) -> tuple[int, dict[str, float]]:
        now[0] += 100 if state == 0 else 2
        return state + 1, {"loss": 2.0}

    def evaluate(state: int) -> dict[str, float]:
        now[0] += 1
        return {"loss": 1.0}

    _, history = ml.train(
        step, 0, make(epochs=None), steps=51, log_every=10, evaluate=evaluate, evaluate_every=1
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if "samples/s" in line]
    assert {*history["samples_per_second"].values()} == {2.0}, "4 samples in 2 s of a step"
    # Each further step takes 3 s with what is between it and the next.
    assert lines[1] == "step 20/51  loss 2  evaluate/loss 1  2 samples/s  0:01:33 left"


TERMINAL = """
import pty, select
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    import time
    def step(state, batch):
        time.sleep(0.02)
        return state + 1, {"loss": 1.5}
    ml.train(step, 0, [np.ones(4)] * 20, steps=20, log_every=5)
    os._exit(0)
seen = b""
while True:
    try:
        part = os.read(fd, 4096)
    except OSError:
        break
    if not part:
        break
    seen += part
os.waitpid(pid, 0)
sys.stdout.write(seen.decode())
"""


@pytest.mark.slow
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("pty")
    done = subprocess.run(
        [sys.executable, script(tmp_path, TERMINAL)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    states = [line for line in re.split(r"[\r\n]+", plain) if "/20" in line]
    assert len(states) > 2, "it redraws itself"
    assert re.search(r"20/20 ━+ loss 1\.5  \d+ samples/s", states[-1]), states[-1]


@pytest.mark.slow
def test_training_brings_no_rich_and_no_framework_to_the_import(tmp_path: Path) -> None:
    code = """
ml.train(lambda s, b: (s + b, {"loss": 0}), 0, iter([1, 2]), log_every=1)
print(sorted({"rich", "jax", "torch", "mlx"} & {name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, script(tmp_path, code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "step 1  loss 0\nstep 2  loss 0\n[]\n"


def test_a_file_that_is_no_log_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ml.OptionError, match="is no log of a training: it has no column 'step'"):
        ml.train(add, 0.0, [1, 2], log=path, start=1, progress=False)
    assert path.read_text() == "a,b\n1,2\n"


def test_no_file_that_is_no_log_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    for held, why in ((b"a,b\n1,2\n", "it has no column 'step'"), (b"\xff\xfe1", "'utf-8' codec")):
        path.write_bytes(held)
        with pytest.raises(ml.OptionError, match=f"is no log of a training: {why}.*; give another"):
            ml.train(add, 0.0, [1, 2], log=path, progress=False)
        assert path.read_bytes() == held


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("2,1,0.2,9", "has 4 fields in line 3, and 3 columns; mend the line, or give another name"),
        (",1,0.2", "has step '' in line 3; mend the line, or give another name"),
        ("1.0,1,0.2", "has step '1.0' in line 3; mend the line"),
        ("2,1,x", "has seconds 'x' in line 3; mend the line"),
    ],
)
def test_a_line_that_is_no_row_is_told(line: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"step,loss,seconds\n1,0,0.1\n{line}\n")
    with pytest.raises(ml.OptionError, match=re.escape(f"log '{path}' {text}")):
        ml.train(add, 0.0, [1], log=path, start=4, progress=False)


def test_what_a_crash_leaves_of_a_row_is_left_out_and_seconds_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    for rest in ("3,", "3,2,0.3", "3\0\0"):
        path.write_text(f"step,loss,seconds\r\n1,0,0.1\r\n\r\n2,1,500.25\r\n{rest}")
        ml.train(add, 0.0, [1], log=path, start=4, progress=False)
        rows = rows_of(path)
        assert [row["step"] for row in rows] == ["1", "2", "5"]
        assert 500.25 <= float(rows[-1]["seconds"]) < 600
    assert [file.name for file in tmp_path.iterdir()] == ["run.csv"]


def test_large_steps_are_whole_in_a_log(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    for start in (1_234_567_890, 1_234_567_891):
        ml.train(add, 0.0, [1], log=path, start=start, progress=False)
    assert [row["step"] for row in rows_of(path)] == ["1234567891", "1234567892"]


def test_rows_stay_where_a_log_cannot_be_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.csv"
    ml.train(add, 0.0, [1, 1], log=path, log_every=1, progress=False)
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(ml.OptionError, match="cannot be written"):
        patch.setattr("os.replace", lambda *given: (_ for _ in ()).throw(OSError(28, "full")))
        ml.train(add, 0.0, [1], log=path, start=2, progress=False)
    assert path.read_bytes() == before


def test_viewers_leave_out_events_behind_the_start(tmp_path: Path) -> None:
    ml.train(add, 0.0, [1] * 2, log=f"{tmp_path}/", start=4, log_every=1, progress=False)
    (path,) = tmp_path.glob("events.out.tfevents.*")
    version, begin, *events = records(path.read_bytes())
    assert b"brain.Event:2" in version
    assert begin[9:] == b"\x10\x05\x3a\x02\x08\x01", "a session starts with step 5"
    assert [event[10] for event in events] == [5, 6]


def test_a_checkpoint_beside_event_files(tmp_path: Path) -> None:
    ml.train(add, 0.0, [1], log=f"{tmp_path}/", save=tmp_path / "checkpoint", progress=False)
    assert ml.load(tmp_path / "checkpoint")["step"] == 1
