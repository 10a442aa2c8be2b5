"""Shared pytest set-up: the profiles of `tests/profiles.py`, a limit on time, and golden files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.folders import base_folder
from tests.profiles import EXAMPLES, PROFILE, Part, is_slow, runs_all

__all__ = ["base_folder"]

GOLDEN = Path(__file__).parent / "golden"
CACHE = Path(__file__).parent.parent / ".cache/xla"
MAY_TAKE_LONG = ("may take long", True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all, --part, --longest and --update-golden."""
    parser.addoption("--all", action="store_true", help="run slow tests, too, and all examples")
    parser.addoption("--part", metavar="K/N", help="run one of N parts, of 0/N to N-1/N")
    parser.addoption(
        "--longest", type=float, metavar="SECONDS", help="fail if a test not marked slow takes more"
    )
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile before modules of tests are imported, which ask for it."""
    _hear_signals()
    if config.getoption("--part"):  # before workers are started, whose errors nobody reads
        _read_part(config.getoption("--part"))
    if config.getoption("--all"):
        os.environ[PROFILE] = "all"
    if not runs_all():
        _let_xla_hurry()
    name, is_ci = ("all" if runs_all() else "quick"), bool(os.environ.get("CI"))
    settings.register_profile(name, derandomize=is_ci, deadline=None, max_examples=EXAMPLES[name])
    settings.load_profile(name)
    if config.getoption("--longest") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TimeLimit(config.getoption("--longest")))


def _hear_signals() -> None:
    """Undo what a shell sets for jobs in the background, and `nohup`: processes inherit it.

    Tests send these signals to processes that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _let_xla_hurry() -> None:
    """Set what JAX reads here and in processes that tests start: its time goes into compilation.

    Compiled programs are kept from run to run, apart for each process of pytest-xdist, since JAX
    does not write them at one blow. A program is found by its text, its options and the version.
    """
    name = "JAX_COMPILATION_CACHE_DIR"
    if os.environ.get(name, str(CACHE)).startswith(str(CACHE)):  # the user may have chosen one
        os.environ[name] = str(CACHE / os.environ.get("PYTEST_XDIST_WORKER", "alone"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    # XLA's older way to make kernels takes half the time. JAX_DISABLE_MOST_OPTIMIZATIONS would save
    # more, but at level 0 what XLA computes twice it rounds differently nearly each time: no element
    # may equal the maximum then, and its gradient is infinite.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests to `--all`, and those of other parts to these."""
    part = config.getoption("--part") and _read_part(config.getoption("--part"))
    left = {
        item
        for item in items
        if (isinstance(item, pytest.Function) and not runs_all() and is_slow(item))
        or (part and not part.has(item.nodeid))
    }
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


def _read_part(text: str) -> Part:
    try:
        return Part.read(text)
    except ValueError as error:
        raise pytest.UsageError(f"--part: {error}") from None


@pytest.fixture(scope="session", autouse=True)
def data_folder(base_folder: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have Mithril keep its data in a new folder, here and in processes that tests start."""
    os.environ["MITHRIL_DATA_DIR"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", autouse=True)
def devices_of_jax(base_folder: None) -> None:
    """Have JAX start with devices for meshes, whichever test is the first to start it."""
    if importlib.util.find_spec("jax") is not None:
        jax = importlib.import_module("jax")
        jax.config.update("jax_num_cpu_devices", 8)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note of a test that it is slow, or that it draws all of its examples now."""
    report = yield
    draws_all = runs_all() and is_hypothesis_test(getattr(item, "obj", None))
    is_long = isinstance(item, pytest.Function) and is_slow(item)
    if is_long or draws_all:
        report.user_properties.append(MAY_TAKE_LONG)
    return report


class TimeLimit:
    """Fails a session in which a quick test takes too long: it is to be cut, or marked slow."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.broken: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at a test's call; what several tests share is set up before it."""
        is_call = report.when == "call" and MAY_TAKE_LONG not in map(tuple, report.user_properties)
        if is_call and report.duration > self.seconds:
            self.broken.append(f"{report.duration:.1f} s {report.nodeid}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail."""
        if self.broken and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the tests."""
        for test in self.broken:
            terminalreporter.write_line(f"longer than {self.seconds:g} s: {test}", red=True)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME, or rewrite that file under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text + "\n"

    return check
