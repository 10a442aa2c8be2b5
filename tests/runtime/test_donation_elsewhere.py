"""Donated arrays of which this process has no part, as those of another stage under torchrun."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from mithril.errors import BackendError
from mithril.runtime.donation import check_donated


def make(shards: object) -> Any:
    return cast(Any, SimpleNamespace(shards=shards, type="float32[4]"))


def test_what_lies_on_devices_of_others_is_not_one_array() -> None:
    held = [None, None, object()]
    check_donated(list(map(make, held)), held, ["a", "b", "c"], [0, 1])


def test_one_memory_at_two_places_is_refused_beside_it() -> None:
    here = object()
    held = [None, here, here]
    with pytest.raises(BackendError, match="is donated as 'b' and also passed as 'c'"):
        check_donated(list(map(make, held)), held, ["a", "b", "c"], [0, 1])
