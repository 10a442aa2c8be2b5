"""Under `mithril launch` a line of a rank comes out whole, however it is written."""

from __future__ import annotations

import io
import time
from pathlib import Path
from threading import Event, Thread

import pytest
from mithril_torch.launch.whole_lines import LONGEST, follow

from tests.runtime.jobs import wait_until
from tests.torch.jobs import launch, script


def test_half_a_line_waits_for_the_rest(tmp_path: Path) -> None:
    file, shown, finished = tmp_path / "0.log", io.StringIO(), Event()
    reader = Thread(target=follow, args=("[0] ", str(file), shown, finished, 0.01))
    reader.start()
    with file.open("wb", buffering=0) as written:
        written.write("one\nhalf ä".encode()[:-1])
        wait_until(lambda: shown.getvalue() == "[0] one\n")
        time.sleep(0.05)
        written.write("ä".encode()[-1:] + b" whole\r\n10%\r20%\rend")
        wait_until(lambda: "20%" in shown.getvalue())
    finished.set()
    reader.join()
    assert shown.getvalue() == "[0] one\n[0] half ä whole\n[0] 10%\n[0] 20%\n[0] end\n"


def test_what_never_ends_is_passed_on_in_pieces(tmp_path: Path) -> None:
    file, shown, finished = tmp_path / "0.log", io.StringIO(), Event()
    file.write_bytes(b"x" * (LONGEST + 1))
    finished.set()
    follow("> ", str(file), shown, finished, 0.01)
    assert shown.getvalue() == f"> {'x' * LONGEST}\n> x\n"
    follow("> ", str(tmp_path / "none"), shown, finished, 0.01)


@pytest.mark.slow
def test_lines_of_ranks_are_not_mixed(tmp_path: Path) -> None:
    code = """
import time
for i in range(40):
    for part in ("one", " two", " three", "\\n"):
        sys.stdout.write(part)
        sys.stdout.flush()
        time.sleep(0.005)
"""
    done = launch(2, script(tmp_path, code))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{n}] one two three" for n in (0, 1) for _ in range(40)
    ]
