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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mithril.errors import BackendError
from mithril.plugins import Command
from mithril.runtime.launch import Outcome, watchdog

from tests.profiles import quick
from tests.runtime.jobs import (
    CHILD,
    DEAF,
    LONG,
    SHOW,
    SLEEP,
    Run,
    after,
    exists,
    is_alive,
    launcher,
    open_files,
    pids,
    program,
    ranks,
    read_pids,
    ready,
    wait_until,
    watchdog_of,
)


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """After each test this process has no new child: neither rank, watchdog nor zombie."""
    before = children()
    yield
    assert children() <= before


def children() -> set[str]:
    """Return the processes that this one has started and not waited for; others' stay alive."""
    found = subprocess.run(
        ["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return set(found.stdout.split())


def service(code: str) -> Command:
    return Command((sys.executable, "-c", code), service="store")


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


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

    def test_a_service_runs_until_all_ranks_have_ended(self, tmp_path: Path) -> None:
        serves = service(SHOW + ready(tmp_path) + SLEEP)
        run = Run(tmp_path, [serves, *ranks(after(tmp_path, 1), after(tmp_path, 1))])
        assert run.outcome == Outcome(0, "")
        assert run.output.startswith(b"[store] pid ")
        assert not any(map(exists, run.pids))

    def test_a_service_serves_ranks_that_save_what_they_have(self, tmp_path: Path) -> None:
        """They get SIGTERM, and the service nothing until they have ended."""
        told = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: print('told'))\n"
        saves = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), os._exit(0)))\n"
        fails = after(tmp_path, 2) + "exit(3)"
        waits = "import signal, time\n" + saves + ready(tmp_path) + SLEEP
        run = Run(tmp_path, [service(told + ready(tmp_path) + SLEEP), *ranks(fails, waits)], 10)
        assert run.outcome.code == 3
        assert run.outcome.text.endswith("; the other 1 process was stopped")
        assert run.output == b""

    @pytest.mark.parametrize(
        ("end", "code", "how"), [("exit(0)", 1, "exit code 0"), ("exit(4)", 4, "exit code 4")]
    )
    def test_a_job_ends_with_its_service(
        self, end: str, code: int, how: str, tmp_path: Path
    ) -> None:
        run = Run(tmp_path, [service(after(tmp_path, 1) + end), *ranks(ready(tmp_path) + SLEEP)])
        assert run.outcome.code == code
        assert run.outcome.text.startswith(f"store ended with {how} (pid ")
        assert run.outcome.text.endswith("; the other 1 process was stopped")

    @pytest.mark.slow
    def test_last_one_to_fail_leaves_nobody_to_stop(self, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks("", "import time; time.sleep(1); exit(7)"))
        assert run.outcome.code == 7
        assert re.search(r"rank 1 ended with exit code 7 .* after \d+\.\d s$", run.outcome.text)

    @pytest.mark.slow
    def test_those_that_fail_at_once_are_all_named(self, tmp_path: Path) -> None:
        """A launcher that was stopped sees both at one look."""
        dies = "exit({code})"
        file, codes = tmp_path / "go", (3, 4)
        waits = f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)\n"
        with launcher(tmp_path, *[SHOW + waits + dies.format(code=c) for c in codes]) as process:
            found = read_pids(process, 2)
            process.send_signal(signal.SIGSTOP)
            file.touch()
            wait_until(lambda: not any(map(is_alive, found)))
            process.send_signal(signal.SIGCONT)
            _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 3
        assert re.fullmatch(
            r"rank 0 ended with exit code 3 \(pid \d+\) after \d+\.\d s; "
            r"rank 1 ended with exit code 4 \(pid \d+\) after \d+\.\d s\n",
            errors.decode(),
        )

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
        wait_until(lambda: not any(map(is_alive, run.pids)))

    def test_grandchildren_may_clean_up_too(self, tmp_path: Path) -> None:
        saves = (
            "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(print('saved')))\n"
            + ready(tmp_path) + SLEEP
        )  # fmt: skip
        waits = DEAF + CHILD.format(code=saves, options="") + "child.wait(); exit(0)"
        run = Run(tmp_path, ranks(waits, after(tmp_path, 1) + "exit(1)"), grace=LONG)
        assert run.output.endswith(b"[0] saved\n")
        assert run.outcome.text.endswith("; the other 1 process was stopped")

    def test_what_a_rank_leaves_in_its_group_ends_with_it(self, tmp_path: Path) -> None:
        """Not only at the end of the job: the other rank sees it go."""
        leaves = CHILD.format(code=DEAF + SLEEP, options="") + (
            f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{child.pid}} ')"
        )
        waits = f"""
            import os, pathlib, time
            file = pathlib.Path({str(tmp_path / "pid")!r})
            while not file.exists() or not file.read_text().endswith(" "): time.sleep(0.01)
            while True:
                state = pathlib.Path(f"/proc/{{file.read_text().strip()}}/stat")
                if not state.exists() or ") Z " in state.read_text(): break
                time.sleep(0.01)
        """
        if not Path("/proc").is_dir():
            pytest.skip("reads /proc")
        assert Run(tmp_path, ranks(leaves, waits)).outcome == Outcome(0)

    @pytest.mark.parametrize("options", ["", ", start_new_session=True"])
    def test_what_a_good_rank_leaves_behind_ends_too(self, options: str, tmp_path: Path) -> None:
        run = Run(tmp_path, ranks(CHILD.format(code=DEAF + SLEEP, options=options)))
        assert run.outcome == Outcome(0)
        assert len(run.pids) == 1
        wait_until(lambda: not is_alive(run.pids[0]))

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


class TestWatchdog:
    """The file itself, told of groups and of a mark that no process has."""

    @pytest.mark.parametrize(("lines", "ends"), [("+{0}\n", True), ("+{0}\n-{0}\n", False)])
    def test_groups_it_was_told_of_end_with_the_pipe(self, lines: str, ends: bool) -> None:
        command = [sys.executable, "-I", "-S", watchdog.__file__, "no process has this mark"]
        with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as sleeper:
            subprocess.run(
                command, input=lines.format(sleeper.pid), text=True, check=True, timeout=LONG
            )
            sleeper.send_signal(signal.SIGTERM)  # the first signal is the one that counts
            assert sleeper.wait(LONG) == -(signal.SIGKILL if ends else signal.SIGTERM)

    def test_it_waits_for_the_end_of_the_pipe(self) -> None:
        command = [sys.executable, "-I", "-S", watchdog.__file__, "no process has this mark"]
        with subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True) as sleeper:
            guard = subprocess.Popen(command, stdin=subprocess.PIPE)
            with guard:
                assert guard.stdin is not None
                guard.stdin.write(f"+{sleeper.pid}\n".encode())
                guard.stdin.flush()
                time.sleep(0.5)
                assert sleeper.poll() is None
            assert sleeper.wait(LONG) == -signal.SIGKILL


class TestLauncherStops:
    @quick(lambda number: number == signal.SIGINT)
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

    @pytest.mark.slow
    def test_a_second_signal_does_not_wait(self, tmp_path: Path) -> None:
        with launcher(tmp_path, DEAF + SHOW + SLEEP, grace=2 * LONG) as process:
            found = read_pids(process, 1)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LONG)
        assert process.returncode == 130
        assert not any(map(exists, found))

    @pytest.mark.slow
    def test_what_is_ignored_stays_ignored(self, tmp_path: Path) -> None:
        """As under nohup: a launcher that was started deaf to SIGHUP goes on."""
        waits = SHOW + "import time; time.sleep(1); print('done')"
        with ignored(signal.SIGHUP), launcher(tmp_path, waits) as process:
            read_pids(process, 1)
            process.send_signal(signal.SIGHUP)
            output, _ = process.communicate(timeout=LONG)
        assert (process.returncode, output) == (0, b"[0] done\n")

    @pytest.mark.slow
    def test_a_killed_launcher_takes_all_along(self, tmp_path: Path) -> None:
        nested = CHILD.format(code=DEAF + SLEEP, options=", start_new_session=True")
        # Computes without end in one call that holds the interpreter lock.
        blocked = DEAF + SHOW + "sum(range(10**15))"
        with launcher(tmp_path, nested + DEAF + SHOW + SLEEP, blocked) as process:
            found = read_pids(process, 3)
            process.kill()
            process.wait(LONG)
            wait_until(lambda: not any(map(is_alive, found)))

    @pytest.mark.slow
    def test_a_killed_watchdog_ends_the_launch(self, tmp_path: Path) -> None:
        nested = CHILD.format(code=DEAF + SLEEP, options=", start_new_session=True")
        with launcher(tmp_path, nested + SHOW + SLEEP) as process:
            found = read_pids(process, 2)
            os.kill(watchdog_of(process), signal.SIGKILL)
            _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 1
        assert b"the watchdog of this launch was killed after" in errors
        wait_until(lambda: not any(map(is_alive, found)))

    @pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
    def test_nothing_listens(self, tmp_path: Path) -> None:
        """Neither launcher nor watchdog has a socket; those of the ranks are the backend's."""
        with launcher(tmp_path, SHOW + SLEEP) as process:
            read_pids(process, 1)
            files = [
                file for pid in (process.pid, watchdog_of(process)) for file in open_files(pid)
            ]
            process.terminate()
            process.communicate(timeout=LONG)
        assert len(files) > 6
        assert not [file for file in files if file.startswith("socket:")]

    @pytest.mark.slow
    def test_a_launch_inside_a_launch_ends_with_it(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        file = str(program(inner, DEAF + SHOW + SLEEP))
        runs = f"import subprocess, sys; subprocess.run([sys.executable, {file!r}])"
        with launcher(tmp_path, SHOW + runs) as process:
            found = read_pids(process, 2)
            process.kill()
            process.wait(LONG)
            wait_until(lambda: not any(map(is_alive, found)))
