"""What the processes of a launch print arrives by whole lines, named, whatever bytes it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mithril.plugins import Command
from mithril.runtime.launch import Outcome, supervise
from mithril.runtime.launch.lines import LONGEST, Lines

from tests.runtime.jobs import LONG, Run, launcher, ranks


class TestOutput:
    @pytest.mark.slow
    def test_a_line_shows_before_the_process_ends(self, tmp_path: Path) -> None:
        """Python itself holds lines back where its output is no terminal."""
        done = tmp_path / "done"
        waits = f"""
            import os, time
            print("loss 2.3")
            while not os.path.exists({str(done)!r}): time.sleep(0.01)
        """
        with launcher(tmp_path, waits) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"[0] loss 2.3\n"
            done.touch()
            assert process.wait(LONG) == 0

    def test_last_line_without_newline(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks("import sys; sys.stdout.write('a\\nend')"))
        assert run.output == b"[0] a\n[0] end\n"

    def test_binary_garbage_passes(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks(r"import os; os.write(1, b'\xff\x00\xfe\n\x80')"))
        assert run.output == b"[0] \xff\x00\xfe\n[0] \x80\n"

    def test_much_output_of_many_keeps_its_lines(self, tmp_path: Path) -> None:
        code = "import sys\nfor i in range(10_000): print(i, {rank} * 100, file=sys.{stream})"
        pairs = [("'a'", "stdout"), ("'b'", "stdout"), ("'c'", "stderr")]
        run = Run(tmp_path, ranks(*[code.format(rank=r, stream=s) for r, s in pairs]))
        assert run.outcome == Outcome(0)
        expected = [[f"[{n}] {i} {c * 100}" for i in range(10_000)] for n, c in enumerate("abc")]
        lines = run.output.decode().splitlines()
        assert [line for line in lines if line.startswith("[0]")] == expected[0]
        assert [line for line in lines if line.startswith("[1]")] == expected[1]
        assert len(lines) == 20_000
        assert run.errors.decode().splitlines() == expected[2]

    def test_a_megabyte_in_one_line(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks(f"print('x' * {LONGEST})", "print('y')"))
        assert sorted(run.output.splitlines()) == [b"[0] " + b"x" * LONGEST, b"[1] y"]

    def test_output_is_read_after_stdout_is_closed(self, tmp_path: Path) -> None:
        code = "import os, time; os.close(1); time.sleep(0.3); os.write(2, b'still here')"
        assert Run(tmp_path, ranks(code)).errors == b"[0] still here\n"

    def test_a_command_without_rank_has_no_prefix(self, tmp_path: Path) -> None:
        run = Run(tmp_path, [Command((sys.executable, "-c", "print('own prefix'); exit(2)"))])
        assert run.output == b"own prefix\n"
        assert run.outcome.text.startswith(f"'{sys.executable}' ended with exit code 2")

    @pytest.mark.slow
    def test_a_slow_reader_that_does_not_block(self, tmp_path: Path) -> None:
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        reader = subprocess.Popen(
            [sys.executable, "-c", "import sys, time; time.sleep(1); print(len(sys.stdin.read()))"],
            stdin=ours,
            stdout=subprocess.PIPE,
        )
        os.close(ours)
        outcome = supervise(ranks("print('x' * 1_000_000)"), grace=2.0, output=theirs)
        os.close(theirs)
        assert outcome == Outcome(0)
        assert reader.communicate(timeout=LONG)[0] == b"1000005\n"

    def test_a_reader_that_goes_away_stops_all(self, tmp_path: Path) -> None:
        ours, theirs = os.pipe()
        os.close(ours)
        code = "import time\nwhile True: print('x'); time.sleep(0.01)"
        outcome = supervise(ranks(code, code), grace=2.0, output=theirs)
        os.close(theirs)
        assert outcome.code == 128 + signal.SIGPIPE
        assert re.fullmatch(
            r"nobody reads the output any more, after .* s; the other 2 processes were stopped",
            outcome.text,
        )


class TestLines:
    def test_carriage_returns_end_lines(self) -> None:
        lines = Lines(b"> ")
        assert lines.add(b"\r10%\r20%") == b"> 10%\n"
        assert lines.add(b"\r") == b""
        assert lines.add(b"\n\nx\r\r\n") == b"> 20%\n> \n> x\n> \n"
        assert lines.rest() == b""

    def test_a_carriage_return_may_be_half_of_an_end(self) -> None:
        lines = Lines(b"> ")
        assert lines.add(b"a\r") == b""
        assert lines.add(b"\nb\r") == b"> a\n"
        assert lines.add(b"c") == b"> b\n"
        assert lines.rest() == b"> c\n"

    def test_every_way_to_cut_gives_the_same(self) -> None:
        data = b"one\r\ntwo\rthree\n\nfour\r\r\nfive"
        whole = Lines(b"")
        expected = whole.add(data) + whole.rest()
        for cut in range(len(data)):
            lines = Lines(b"")
            assert lines.add(data[:cut]) + lines.add(data[cut:]) + lines.rest() == expected

    def test_what_never_ends_is_passed_on_in_pieces(self) -> None:
        lines = Lines(b"> ")
        assert lines.add(b"x" * (2 * LONGEST + 1)) == 2 * (b"> " + b"x" * LONGEST + b"\n")
        assert lines.rest() == b"> x\n"
