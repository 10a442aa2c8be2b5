"""Plugins: found one by one, judged without harm to each other, opened with checked options."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from runpy import run_path

import mithril as ml
import mithril.backends
import numpy as np
import pytest
from mithril.errors import BackendError, MeshError, OptionError
from mithril.mesh import Mesh
from mithril.plugins import hookspecs
from mithril.plugins.discover import Status, discover, find
from mithril.plugins.opening import open_engine

from tests.plugin_packages import ALONE, FAULTY, installed, python, write_plugin

Install = Callable[..., None]

SPEC = "@hookimpl\ndef mithril_backends():\n    return [BackendSpec({})]\n"
GOOD_FIELDS = "name='x', open=never, api=(2, 0)"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MITHRIL_PLUGINS", "MITHRIL_STRICT", "MITHRIL_BACKEND_NUMPY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def no_packages_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See what `sitecustomize` lets a process see that it starts in.

    The path differs from that of other tests, which must not find the entry points read here.
    """
    monkeypatch.syspath_prepend(tmp_path)
    hiding = run_path(str(ALONE / "sitecustomize.py"))
    monkeypatch.setattr(importlib.metadata, "entry_points", hiding["_every"])
    monkeypatch.setattr("mithril.plugins.discover.entry_points", hiding["entry_points"])


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a plugin written in a test on the path of this process."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield lambda name, source: write_plugin(tmp_path, name, source)
    for module in set(sys.modules) - before:
        if module.startswith("acme_"):
            del sys.modules[module]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the third-party packages of tests/plugins for this process."""
    monkeypatch.syspath_prepend(installed("good", *FAULTY))
    before = set(sys.modules)
    yield
    for module in set(sys.modules) - before:
        if module.startswith("acme_"):
            del sys.modules[module]


def test_a_hook_specification_does_nothing() -> None:
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("mithril_")}
    assert len(hooks) == 11
    for hook in hooks.values():
        arguments = [None] * hook.__code__.co_argcount
        with pytest.raises(NotImplementedError, match=r"^a hook specification is not called; im"):
            hook(*arguments)


@pytest.mark.usefixtures("packages")
class TestInstalledPackages:
    @pytest.mark.slow
    def test_each_has_its_status(self) -> None:
        found = {(entry.name, entry.package): entry.status for entry in discover()}
        assert found == {
            ("fpga", "acme-broken"): Status.broken,
            ("npu", "acme-incompatible"): Status.incompatible,
            ("numpy", "acme-duplicate"): Status.duplicate,
            ("numpy", "mithril-core"): Status.ready,
            ("quantum", "acme-missing"): Status.missing,
            ("tpu-sim", "acme-good"): Status.ready,
        }

    def test_numpy_opens_beside_them(self) -> None:
        engine = open_engine("numpy", Mesh(data=2), {})
        assert (engine.name, len(engine.devices)) == ("numpy", 2)

    def test_a_good_one_opens_with_its_options(self) -> None:
        assert open_engine("tpu-sim", Mesh(data=4), {"chips": 4}).name == "tpu-sim"

    def test_a_good_one_computes_on_its_mesh(self) -> None:
        backend = ml.open_backend("tpu-sim", (4,), chips=4)
        x = backend.array(np.arange(8.0, dtype=np.float32), sharding=ml.P("data"))
        assert [shard.data.shape for shard in x.addressable_shards] == [(2,)] * 4
        assert (x * x + 1).numpy().tolist() == [1, 2, 5, 10, 17, 26, 37, 50]

    def test_its_own_refusal_is_the_cause(self) -> None:
        with pytest.raises(BackendError) as caught:
            ml.open_backend("tpu-sim", (4,), chips=2)
        assert str(caught.value) == (
            "backend 'tpu-sim' failed to open on Mesh(data=4); RuntimeError: Mesh(data=4) needs "
            "4 chips, the machine has 2; see `mithril backends info tpu-sim`"
        )
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_a_broken_one_raises_with_its_cause(self) -> None:
        text = (
            "backend 'fpga' is broken; RuntimeError: no board answered in 8 slots; is the driver loaded?; "
            "mithril backends info fpga"
        )
        with pytest.raises(BackendError) as caught:
            open_engine("fpga", Mesh(), {})
        assert str(caught.value) == text
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_strict_raises_the_plugins_own_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MITHRIL_STRICT", "1")
        with pytest.raises(RuntimeError, match="no board answered"):
            discover()

    def test_only_the_plugin_asked_for_is_loaded(self) -> None:
        code = """
import sys
from mithril.mesh import Mesh
from mithril.plugins.opening import open_engine
open_engine("tpu-sim", Mesh(), {})
print(*sorted(name for name in sys.modules if name.startswith("acme_")))
"""
        loaded = python(code, installed("good", *FAULTY)).split()
        assert loaded == ["acme_good", "acme_good.framework", "acme_good.plugin"]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (
                "npu",
                "backend 'npu' is incompatible; speaks backend API 3.0, this mithril 2.5; "
                "pip install -U mithril-core",
            ),
            (
                "quantum",
                "backend 'quantum' is missing; needs acme-quantum-framework>=3.1; "
                "pip install 'acme-quantum-framework>=3.1'",
            ),
            ("torch", "backend 'torch' is not installed; pip install mithril-torch"),
            ("jax", "backend 'jax' is not installed; pip install mithril-jax"),
            ("mlx", "backend 'mlx' is not installed; pip install mithril-mlx"),
            (
                "tpusim",
                "backend 'tpusim' does not exist; installed: 'fpga', 'npu', 'numpy', 'quantum', "
                "'tpu-sim'; did you mean 'tpu-sim'?",
            ),
            (
                "torhc",
                "installed: 'fpga', 'npu', 'numpy', 'quantum', 'tpu-sim'; did you mean 'torch'?",
            ),
        ],
    )
    def test_others_say_why_not(self, name: str, text: str) -> None:
        with pytest.raises(BackendError) as caught:
            open_engine(name, Mesh(), {})
        assert str(caught.value).endswith(text)


class TestDuplicates:
    @pytest.mark.slow
    def test_between_strangers_none_is_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(installed("good"))
        monkeypatch.syspath_prepend(installed("rival"))
        entries = [entry for entry in discover() if entry.name == "tpu-sim"]
        assert [entry.status for entry in entries] == [Status.duplicate] * 2
        with pytest.raises(BackendError) as caught:
            open_engine("tpu-sim", Mesh(), {})
        assert str(caught.value) == (
            "backend 'tpu-sim' is duplicate; name also claimed by 'acme-rival'; "
            "MITHRIL_BACKEND_TPU_SIM=acme-good selects this one"
        )

    def test_the_user_settles_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(installed("good"))
        monkeypatch.syspath_prepend(installed("rival"))
        monkeypatch.setenv("MITHRIL_BACKEND_TPU_SIM", "Acme_Rival")
        entry = find("tpu-sim")
        assert entry is not None
        assert (entry.package, entry.status) == ("acme-rival", Status.ready)

    @pytest.mark.usefixtures("packages")
    def test_the_user_may_replace_a_core_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MITHRIL_BACKEND_NUMPY", "acme-duplicate")
        entry = find("numpy")
        assert entry is not None
        assert (entry.package, entry.status) == ("acme-duplicate", Status.ready)


class TestAllowList:
    def test_it_blocks_the_others_unloaded(
        self, install: Install, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install("x", "raise RuntimeError('loaded')")
        monkeypatch.setenv("MITHRIL_PLUGINS", "numpy, jax")
        assert [entry.status for entry in discover()] == [Status.ready, Status.blocked]
        assert "acme_x" not in sys.modules
        with pytest.raises(BackendError) as caught:
            open_engine("x", Mesh(), {})
        assert str(caught.value) == (
            "backend 'x' is blocked; MITHRIL_PLUGINS allows 'numpy', 'jax'; "
            "add x to MITHRIL_PLUGINS"
        )

    def test_an_empty_one_allows_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MITHRIL_PLUGINS", "")
        assert {entry.status for entry in discover()} == {Status.blocked}


BROKEN = {
    "misspelt hook": (
        "@hookimpl\ndef mithril_backend():\n    return []",
        "PluginValidationError: unknown hook 'mithril_backend' in plugin",
    ),
    "unknown argument": ("@hookimpl\ndef mithril_backends(app):\n    return []", "{'app'}"),
    "hook raises": ("@hookimpl\ndef mithril_backends():\n    1 / 0", "ZeroDivisionError: division"),
    "syntax": ("def (", "SyntaxError: invalid syntax"),
    "no hook": ("", "entry point 'x' offers none; implement mithril_backends so that it returns"),
    "other name": (
        SPEC.format("name='y', open=never, api=(2, 0)"),
        "entry point 'x' offers 'y'; implement mithril_backends so that it returns a BackendSpec "
        "named 'x'",
    ),
    "no list": (
        f"@hookimpl\ndef mithril_backends():\n    return BackendSpec({GOOD_FIELDS})",
        "BackendError: mithril_backends returned a BackendSpec; return a list of BackendSpec",
    ),
    "no spec": (
        "@hookimpl\ndef mithril_backends():\n    return ['x']",
        "BackendError: mithril_backends offers a str; return a list of BackendSpec",
    ),
    "open": (
        SPEC.format("name='x', open='numpy', api=(2, 0)"),
        "BackendSpec.open is 'numpy'; give a function (mesh, options)",
    ),
    "api": (
        SPEC.format("name='x', open=never, api='1.0'"),
        "BackendSpec.api is '1.0'; give two integers, such as (2, 0)",
    ),
    "options": (
        SPEC.format(f"{GOOD_FIELDS}, options=dict"),
        "BackendSpec.options is <class 'dict'>; give a dataclass, or None",
    ),
    "requires": (
        SPEC.format(f"{GOOD_FIELDS}, requires='jax'"),
        "BackendSpec.requires is 'jax'; give a tuple of strings",
    ),
    "methods": (
        SPEC.format(f"{GOOD_FIELDS}, methods='npu'"),
        "BackendSpec.methods is 'npu'; give a tuple of names",
    ),
    "requirement": (
        SPEC.format(f"{GOOD_FIELDS}, requires=('jax[cuda==1',)"),
        "requirement 'jax[cuda==1' is not understood: ",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_faulty_plugin_is_broken(fault: str, install: Install) -> None:
    source, text = BROKEN[fault]
    install("x", source)
    entry = find("x")
    assert entry is not None
    assert entry.status is Status.broken
    assert text in entry.fact
    assert entry.error is not None


@pytest.mark.parametrize(
    ("fields", "status", "fact", "remedy"),
    [
        (
            "api=(1, 9)",
            Status.incompatible,
            "speaks backend API 1.9, this mithril 2.5",
            "pip install -U acme-x",
        ),
        (
            "api=(2, 6)",
            Status.incompatible,
            "speaks backend API 2.6, this mithril 2.5",
            "pip install -U mithril-core",
        ),
        (
            "api=(2, 0), requires=('numpy>=99',)",
            Status.missing,
            f"needs numpy>=99, found {version('numpy')}",
            "pip install 'numpy>=99'",
        ),
        (
            "api=(2, 0), requires=('numpy', 'no-such-package')",
            Status.missing,
            "needs no-such-package",
            "pip install no-such-package",
        ),
        ("api=(2, 0), requires=('numpy>=1.26',)", Status.ready, "", ""),
    ],
)
def test_api_and_requirements_are_judged(
    fields: str, status: Status, fact: str, remedy: str, install: Install
) -> None:
    install("x", SPEC.format(f"name='x', open=never, {fields}"))
    entry = find("x")
    assert entry is not None
    assert (entry.status, entry.fact, entry.remedy) == (status, fact, remedy)


OPENING = """
@dataclass(frozen=True)
class Options:
    board: str
    streams: int = 1

    def __post_init__(self):
        if self.streams < 1:
            raise ValueError("streams is 0; give at least 1")

def fail(mesh, options):
    if options.board == "absent":
        raise OSError("no such board")
    raise MeshError("mesh is too large; 8 chips; use fewer")

"""


class TestOpening:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (
                {"board": "a", "stream": 2},
                "backend 'x' has no option 'stream'; did you mean 'streams'?; options: 'board', "
                "'streams'",
            ),
            ({}, "backend 'x' needs option 'board'; give it a value"),
            (
                {"board": "a", "streams": 0},
                "backend 'x' refuses its options; streams is 0; give at least 1",
            ),
        ],
    )
    def test_options_are_checked(
        self, options: dict[str, object], text: str, install: Install
    ) -> None:
        install("x", OPENING + SPEC.format("name='x', open=fail, api=(2, 0), options=Options"))
        with pytest.raises(OptionError) as caught:
            open_engine("x", Mesh(), options)
        assert str(caught.value) == text

    def test_a_backend_without_options_has_none(self) -> None:
        with pytest.raises(
            OptionError, match=r"backend 'numpy' has no option 'gpu'; options: none$"
        ):
            open_engine("numpy", Mesh(), {"gpu": True})

    def test_what_open_raises_is_the_cause(self, install: Install) -> None:
        install("x", OPENING + SPEC.format("name='x', open=fail, api=(2, 0), options=Options"))
        with pytest.raises(BackendError) as caught:
            open_engine("x", Mesh(data=2), {"board": "absent"})
        assert str(caught.value) == (
            "backend 'x' failed to open on Mesh(data=2); OSError: no such board; "
            "see `mithril backends info x`"
        )
        assert isinstance(caught.value.__cause__, OSError)

    @pytest.mark.parametrize(
        ("raised", "arrives"),
        [("SystemExit", BackendError), ("KeyboardInterrupt", KeyboardInterrupt)],
    )
    def test_one_that_ends_the_process_as_it_opens(
        self, install: Install, raised: str, arrives: type[BaseException]
    ) -> None:
        opening = OPENING.replace("OSError", raised)
        install("x", opening + SPEC.format("name='x', open=fail, api=(2, 0), options=Options"))
        with pytest.raises(arrives, match="no such board"):
            open_engine("x", Mesh(data=2), {"board": "absent"})

    def test_what_is_no_engine_is_refused(self, install: Install) -> None:
        opens_list = "def opens_list(mesh, options):\n    return [mesh]\n\n"
        install("x", opens_list + SPEC.format("name='x', open=opens_list, api=(2, 0)"))
        with pytest.raises(BackendError) as caught:
            open_engine("x", Mesh(), {})
        assert str(caught.value) == (
            "backend 'x' opens a list, which is no engine; have BackendSpec.open return a "
            "mithril.spi.Engine"
        )

    def test_an_error_of_mithrils_own_kind_passes(self, install: Install) -> None:
        install("x", OPENING + SPEC.format("name='x', open=fail, api=(2, 0), options=Options"))
        with pytest.raises(MeshError, match="mesh is too large; 8 chips; use fewer"):
            open_engine("x", Mesh(data=16), {"board": "a"})


class TestOpeners:
    def test_every_installed_backend_has_one(self, install: Install) -> None:
        source = "raise AssertionError('loaded')"
        install("npu", source)
        install("tpu-sim", source)
        assert {"NpuBackend", "TpuSimBackend", "NumpyBackend"} <= set(dir(ml))
        assert {"NpuBackend", "JaxBackend", "open_backend"} - {"open_backend"} <= set(
            dir(mithril.backends)
        )
        assert "acme_npu" not in sys.modules

    @pytest.mark.usefixtures("packages")
    def test_it_opens_the_backend(self) -> None:
        opened = ml.TpuSimBackend((2,), chips=4)
        assert (opened.name, opened.mesh.size) == ("tpu-sim", 2)
        assert ml.TpuSimBackend.__name__ == "TpuSimBackend"
        with pytest.raises(OptionError, match=r"^backend 'tpu-sim' has no option 'chip'; did you"):
            ml.TpuSimBackend(chip=3)

    def test_one_that_is_not_installed(self, install: Install) -> None:
        install("npu", "")
        with pytest.raises(AttributeError) as caught:
            ml.NppuBackend  # noqa: B018
        assert str(caught.value) == (
            "mithril has no 'NppuBackend': no installed backend is called so; did you mean "
            "'NpuBackend'?; installed: 'NpuBackend', 'NumpyBackend'"
        )
        with pytest.raises(AttributeError, match=r"^mithril.backends has no 'open'; dir\(\) lists"):
            mithril.backends.open  # noqa: B018

    def test_two_of_one_name(self, install: Install) -> None:
        install("a_b", "")
        install("a-b", "")
        with pytest.raises(AttributeError) as caught:
            ml.ABBackend  # noqa: B018
        assert str(caught.value) == (
            "'ABBackend' may open 'a-b', 'a_b'; open one by its name, such as "
            "ml.open_backend('a-b')"
        )
