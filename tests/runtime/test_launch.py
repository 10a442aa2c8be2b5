"""The supervisor of `mithril launch`: real processes, and by their numbers none is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mithril.errors import BackendError
from mithril.plugins import Command
from mithril.runtime.launch import Outcome, supervise
from mithril.runtime.launch.lines import LONGEST, Lines

LONG = 60.0
"""Seconds after which a test gives up; nothing here takes more than a few."""
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SHOW = "import os; print('pid', os.getpid())\n"
CHILD = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {code!r}]{options}); print('pid', child.pid)\n"


def ready(folder: Path) -> str:
    """Return code that tells that its process has come so far."""
    return f"import os; open({str(folder)!r} + f'/{{os.getpid()}}.ready', 'w').close()\n"


def after(folder: Path, count: int) -> str:
    """Return code that waits until so many processes are ready."""
    return (
        "import pathlib, time\n"
        f"while len([*pathlib.Path({str(folder)!r}).glob('*.ready')]) < {count}: time.sleep(0.01)\n"
    )


def ranks(*codes: str) -> list[Command]:
    """Return a command for each piece of code, ranks counted from 0."""
    return [
        Command((sys.executable, "-c", textwrap.dedent(code)), {}, rank)
        for rank, code in enumerate(codes)
    ]


class Run:
    """A supervised job that has ended: its outcome and what the launcher wrote."""

    def __init__(self, folder: Path, commands: list[Command], grace: float = 0.5) -> None:
        files = (folder / "output", folder / "errors")
        targets = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files]
        started = time.monotonic()
        try:
            self.outcome = supervise(commands, grace=grace, output=targets[0], errors=targets[1])
        finally:
            for target in targets:
                os.close(target)
        self.seconds = time.monotonic() - started
        self.output, self.errors = (file.read_bytes() for file in files)

    @property
    def pids(self) -> list[int]:
        return pids(self.output.decode())


def pids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"pid (\d+)", text)]


def exists(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """After each test this process has no child any more: neither rank, watchdog nor zombie."""
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


class TestEnds:
    def test_all_well(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks(SHOW + "print('a')", SHOW + "print('b')"))
        assert run.outcome == Outcome(0, "")
        lines = run.output.decode().splitlines()
        assert sorted(line for line in lines if "pid" not in line) == ["[0] a", "[1] b"]
        assert len(run.pids) == 2
        assert not any(map(exists, run.pids))

    def test_one_that_ends_well_does_not_stop_the_others(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks("", "import time; time.sleep(0.5); print('late')"))
        assert run.outcome == Outcome(0)
        assert run.output == b"[1] late\n"

    def test_killed_one_is_named_and_the_others_stop(self, tmp_path: Path) -> None:
        dies = "import signal; os.kill(os.getpid(), signal.SIGKILL)"
        waits = SHOW + ready(tmp_path) + SLEEP
        run = Run(tmp_path, ranks(waits, SHOW + after(tmp_path, 1) + dies))
        assert run.outcome.code == 128 + signal.SIGKILL
        assert re.fullmatch(
            r"rank 1 ended by SIGKILL \(pid (\d+)\) after \d+\.\d s; the other 1 process was stopped",
            run.outcome.text,
        )
        assert pids(run.outcome.text)[0] in run.pids
        assert len(run.pids) == 2
        assert not any(map(exists, run.pids))
        assert run.seconds < LONG

    def test_exit_code_is_passed_on(self, tmp_path: Path) -> None:
        fails = after(tmp_path, 2) + "import sys; print('why', file=sys.stderr); sys.exit(3)"
        waits = SHOW + ready(tmp_path) + SLEEP
        run = Run(tmp_path, ranks(waits, waits, fails))
        assert run.outcome.code == 3
        assert "rank 2 ended with exit code 3 (pid " in run.outcome.text
        assert run.outcome.text.endswith("; the other 2 processes were stopped")
        assert run.errors == b"[2] why\n"
        assert not any(map(exists, run.pids))

    def test_last_one_to_fail_leaves_nobody_to_stop(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks("", "import time; time.sleep(1); exit(7)"))
        assert run.outcome.code == 7
        assert re.search(r"rank 1 ended with exit code 7 .* after \d+\.\d s$", run.outcome.text)

    def test_signals_without_a_name(self, tmp_path: Path) -> None:
        number = signal.SIGRTMIN + 3
        run = Run(tmp_path, ranks(f"import os; os.kill(os.getpid(), {number})"))
        assert run.outcome.code == 128 + number
        assert f"rank 0 ended by signal {number} (pid " in run.outcome.text

    def test_who_ignores_sigterm_is_killed_after_the_grace(self, tmp_path: Path) -> None:
        deaf = DEAF + SHOW + ready(tmp_path) + SLEEP
        run = Run(tmp_path, ranks(deaf, after(tmp_path, 1) + "exit(1)"), grace=0.3)
        assert run.outcome.code == 1
        assert run.outcome.text.endswith("the other 1 process was stopped, rank 0 with SIGKILL")
        assert run.seconds > 0.3
        assert not any(map(exists, run.pids))

    def test_who_heeds_sigterm_can_clean_up(self, tmp_path: Path) -> None:
        saves = """
            import signal, sys, time
            def save(*_):
                time.sleep(0.2)
                print("saved")
                sys.exit(0)
            signal.signal(signal.SIGTERM, save)
        """
        saves = textwrap.dedent(saves) + ready(tmp_path) + SLEEP
        run = Run(tmp_path, ranks(saves, after(tmp_path, 1) + "exit(1)"), grace=LONG)
        assert run.output == b"[0] saved\n"
        assert run.seconds < LONG / 2, "the grace ends when all have ended"

    def test_grandchildren_end_too(self, tmp_path: Path) -> None:
        own_session = CHILD.format(code=DEAF + SLEEP, options=", start_new_session=True")
        same_group = CHILD.format(code=DEAF + SLEEP, options="")
        waits = SHOW + ready(tmp_path) + SLEEP
        fails = after(tmp_path, 2) + "exit(1)"
        run = Run(tmp_path, ranks(own_session + waits, same_group + waits, fails), grace=0.2)
        assert len(run.pids) == 4
        wait_until(lambda: not any(map(_is_alive, run.pids)))

    @pytest.mark.parametrize("options", ["", ", start_new_session=True"])
    def test_what_a_good_rank_leaves_behind_ends_too(self, options: str, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks(CHILD.format(code=DEAF + SLEEP, options=options)))
        assert run.outcome == Outcome(0)
        assert len(run.pids) == 1
        wait_until(lambda: not _is_alive(run.pids[0]))

    def test_ports_are_free_again(self, tmp_path: Path) -> None:
        listens = """
            import socket, time
            listener = socket.create_server(("127.0.0.1", 0))
            print("port", listener.getsockname()[1])
        """
        listens = textwrap.dedent(listens) + ready(tmp_path) + SLEEP
        run = Run(tmp_path, ranks(listens, after(tmp_path, 1) + "exit(1)"))
        port = int(re.findall(rb"port (\d+)", run.output)[0])
        socket.create_server(("127.0.0.1", port)).close()

    def test_a_command_that_cannot_start_stops_those_before_it(self, tmp_path: Path) -> None:
        absent = Command(("no-such-program", "x"), {}, rank=1)
        text = "rank 1 cannot be started; no-such-program: No such file or directory"
        with pytest.raises(BackendError, match=text):
            Run(tmp_path, [*ranks(SHOW + SLEEP), absent])

    def test_variables_arrive_beside_those_there_are(self, tmp_path: Path) -> None:
        code = "import os; print(os.environ['WORLD'], 'PATH' in os.environ)"
        run = Run(tmp_path, [Command((sys.executable, "-c", code), {"WORLD": "2"}, rank=0)])
        assert run.output == b"[0] 2 True\n"


def _is_alive(pid: int) -> bool:
    """Whether a process runs: one that nobody here can reap may still be a zombie."""
    if not Path("/proc").is_dir():
        return exists(pid)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestOutput:
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

    def test_a_slow_reader_that_does_not_block(self, tmp_path: Path) -> None:
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        reader = subprocess.Popen(
            [sys.executable, "-c", "import sys, time; time.sleep(1); print(len(sys.stdin.read()))"],
            stdin=ours,
            stdout=subprocess.PIPE,
        )
        os.close(ours)
        outcome = supervise(ranks("print('x' * 1_000_000)"), output=theirs)
        os.close(theirs)
        assert outcome == Outcome(0)
        assert reader.communicate(timeout=LONG)[0] == b"1000005\n"

    def test_a_reader_that_goes_away_stops_all(self, tmp_path: Path) -> None:
        ours, theirs = os.pipe()
        os.close(ours)
        code = "import time\nwhile True: print('x'); time.sleep(0.01)"
        outcome = supervise(ranks(code, code), output=theirs)
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


def program(folder: Path, *codes: str, grace: float = 0.5) -> Path:
    """Write a program that supervises ranks with the given code, as the command does."""
    file = folder / "launcher.py"
    file.write_text(f"""
import sys
from mithril.plugins import Command
from mithril.runtime.launch import supervise
codes = {[textwrap.dedent(code) for code in codes]!r}
commands = [Command((sys.executable, "-c", c), {{}}, rank) for rank, c in enumerate(codes)]
outcome = supervise(commands, grace={grace})
print(outcome.text, file=sys.stderr)
sys.exit(outcome.code)
""")
    return file


def launcher(folder: Path, *codes: str, grace: float = 0.5) -> subprocess.Popen[bytes]:
    """Start a process that supervises ranks with the given code."""
    return subprocess.Popen(
        [sys.executable, str(program(folder, *codes, grace=grace))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read_pids(process: subprocess.Popen[bytes], count: int) -> list[int]:
    """Return the numbers that the first lines of a launcher tell."""
    assert process.stdout is not None
    return [pids(process.stdout.readline().decode())[0] for _ in range(count)]


class TestLauncherStops:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_stops_all(self, number: signal.Signals, tmp_path: Path) -> None:
        with launcher(tmp_path, SHOW + SLEEP, DEAF + SHOW + SLEEP) as process:
            found = read_pids(process, 2)
            process.send_signal(number)
            _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 128 + number
        assert re.fullmatch(
            rf"{number.name} ended the launch after \d+\.\d s; "
            r"the other 2 processes were stopped, rank 1 with SIGKILL\n",
            errors.decode(),
        )
        assert not any(map(exists, found))

    def test_a_second_signal_does_not_wait(self, tmp_path: Path) -> None:
        with launcher(tmp_path, DEAF + SHOW + SLEEP, grace=2 * LONG) as process:
            found = read_pids(process, 1)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LONG)
        assert process.returncode == 130
        assert not any(map(exists, found))

    def test_what_is_ignored_stays_ignored(self, tmp_path: Path) -> None:
        """As under nohup: a launcher that was started deaf to SIGHUP goes on."""
        waits = SHOW + "import time; time.sleep(1); print('done')"
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            process = launcher(tmp_path, waits)
        finally:
            signal.signal(signal.SIGHUP, before)
        with process:
            read_pids(process, 1)
            process.send_signal(signal.SIGHUP)
            output, _ = process.communicate(timeout=LONG)
        assert (process.returncode, output) == (0, b"[0] done\n")

    def test_a_killed_launcher_takes_all_along(self, tmp_path: Path) -> None:
        nested = CHILD.format(code=DEAF + SLEEP, options=", start_new_session=True")
        # Computes without end in one call that holds the interpreter lock.
        blocked = DEAF + SHOW + "sum(range(10**15))"
        with launcher(tmp_path, nested + DEAF + SHOW + SLEEP, blocked) as process:
            found = read_pids(process, 3)
            process.kill()
            process.wait(LONG)
            wait_until(lambda: not any(map(_is_alive, found)))

    def test_a_killed_watchdog_ends_the_launch(self, tmp_path: Path) -> None:
        with launcher(tmp_path, SHOW + SLEEP) as process:
            found = read_pids(process, 1)
            listed = subprocess.run(
                ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
            ).stdout
            pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
            (watchdog,) = [
                pid for pid, parent in pairs if parent == process.pid and pid not in found
            ]
            os.kill(watchdog, signal.SIGKILL)
            _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 1
        assert b"the watchdog of this launch was killed after" in errors
        assert not any(map(exists, found))

    def test_a_launch_inside_a_launch_ends_with_it(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        file = str(program(inner, DEAF + SHOW + SLEEP))
        runs = f"import subprocess, sys; subprocess.run([sys.executable, {file!r}])"
        with launcher(tmp_path, SHOW + runs) as process:
            found = read_pids(process, 2)
            process.kill()
            process.wait(LONG)
            wait_until(lambda: not any(map(_is_alive, found)))
