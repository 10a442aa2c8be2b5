"""Requirements of plugins: PEP 508, judged by what is installed."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from mithril.errors import BackendError
from mithril.plugins.requirements import Requirement

NUMPY = version("numpy")


def install(folder: Path, name: str, number: str, *requires: str) -> None:
    """Write the metadata of a distribution."""
    metadata = folder / f"{name}-{number}.dist-info"
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {number}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


class TestReading:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("jax", "jax"),
            ("  jax >= 0.4.35 ", "jax>=0.4.35"),
            ("jax>=1,<2,!=1.5", "jax!=1.5,<2,>=1"),
            ("jax[cuda12,k8s]==1.*", "jax[cuda12,k8s]==1.*"),
            ("uvloop; sys_platform != 'win32'", 'uvloop; sys_platform != "win32"'),
        ],
    )
    def test_the_forms_of_pep_508(self, text: str, shown: str) -> None:
        assert str(Requirement.parse(text)) == shown

    @pytest.mark.parametrize("text", ["", "jax=>1", "jax>=one", "jax[cuda", "; python_version"])
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(BackendError) as caught:
            Requirement.parse(text)
        assert f"requirement {text!r} is not understood: " in str(caught.value)
        assert str(caught.value).endswith("; write it as PEP 508 does, such as 'jax>=0.8,<1'")

    def test_what_is_no_text_is_refused(self) -> None:
        with pytest.raises(BackendError) as caught:
            Requirement.parse(3)
        assert str(caught.value) == "requirement 3 is no string; write one, such as 'jax>=0.8'"


class TestJudging:
    @pytest.mark.parametrize(
        ("text", "is_met"),
        [
            ("numpy", True),
            ("numpy>=2,<1000", True),
            ("numpy<2", False),
            (f"numpy=={NUMPY}", True),
            (f"numpy!={NUMPY}", False),
            ("acme-nowhere", False),
            ("acme-nowhere; python_version < '3'", True),
            ("acme-nowhere; python_version >= '3'", False),
            ("acme-nowhere; extra == 'gpu'", True),
        ],
    )
    def test_by_version_and_marker(self, text: str, is_met: bool) -> None:
        assert Requirement.parse(text).is_met is is_met

    @pytest.mark.parametrize(
        ("installed", "text", "is_met"),
        [
            ("2.0rc1", "engine>=1", True),
            ("2.0rc1", "engine>=2", False),
            ("2.0.1+cpu", "engine==2.0.1", True),
            ("1.10", "engine>=1.9", True),
            ("2.0", "engine<2", False),
        ],
    )
    def test_by_the_order_of_versions(
        self, installed: str, text: str, is_met: bool, folder: Path
    ) -> None:
        install(folder, "engine", installed)
        assert Requirement.parse(text).is_met is is_met

    def test_an_extra_is_met_if_what_it_requires_is(self, folder: Path) -> None:
        install(
            folder, "engine", "1.0", "numpy", "driver>=3; extra == 'gpu'", "numpy; extra == 'cpu'"
        )
        assert Requirement.parse("engine[cpu]").is_met
        need = Requirement.parse("engine[gpu]>=1")
        unmet = need.find_unmet()
        assert unmet is not None
        assert (unmet.name, unmet.installed) == ("driver", None)
        assert unmet.install_command == "pip install 'driver>=3'"
        install(folder, "driver", "3.1")
        assert need.is_met

    def test_extras_that_name_each_other_come_to_an_end(self, folder: Path) -> None:
        install(folder, "engine", "1.0", "engine[b]; extra == 'a'", "engine[a]; extra == 'b'")
        assert Requirement.parse("engine[a]").is_met

    def test_what_a_user_types(self) -> None:
        assert Requirement.parse("jax").install_command == "pip install jax"
        assert Requirement.parse("jax [cuda12] <1").install_command == "pip install 'jax[cuda12]<1'"
