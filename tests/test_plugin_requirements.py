"""Requirements of plugins: the two forms that are read, and how versions compare."""

from __future__ import annotations

import pytest
from mithril.errors import BackendError
from mithril.plugins.requirements import Requirement, release


class TestRequirements:
    @pytest.mark.parametrize("text", ["jax", "jax>=0.4.35", "  jax >= 0.4.35 ", "a.b-c_d>=1"])
    def test_the_two_forms_are_read(self, text: str) -> None:
        assert str(Requirement.parse(text)) == text.replace(" ", "")

    @pytest.mark.parametrize("text", ["", "jax==1", "jax>=1,<2", "jax>=1.*", "jax[cuda]", 3])
    def test_other_forms_are_refused(self, text: object) -> None:
        with pytest.raises(BackendError, match=r"is not understood; write 'name' or 'name>="):
            Requirement.parse(text)

    @pytest.mark.parametrize(
        ("smaller", "larger"),
        [("0.4.9", "0.4.35"), ("1.9", "1.10"), ("2", "2.0.1"), ("1.0rc1", "1.1")],
    )
    def test_versions_compare_by_numbers(self, smaller: str, larger: str) -> None:
        assert release(smaller) < release(larger)

    def test_trailing_zeros_and_local_parts_do_not_count(self) -> None:
        assert release("2.0") == release("2") == release("2.0.0+cpu")
