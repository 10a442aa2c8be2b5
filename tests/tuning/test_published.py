"""What is found for a published run takes no longer than how it was split, both priced alike.

Sources of the settings stand in `benchmarks.published_strategies`. Searches take a minute of the
processor, so that they run with `--all`.
"""

from __future__ import annotations

import mithril as ml
import pytest
from mithril.runtime.strategy.difference import list_changes
from mithril.tuning.config import Role
from mithril.tuning.recipes import make_by_recipe
from mithril.tuning.space import list_configs

from benchmarks.published_strategies import PUBLISHED


@pytest.mark.slow
def test_gpt_3_takes_no_longer_than_as_it_was_split() -> None:
    """Sums of a tensor axis and idle stages cost more than to gather weights: fewer share a layer."""
    run = PUBLISHED["gpt3-175b"]()
    published, cost = run.find_strategy()
    assert cost.fits
    found = run.tune()
    assert found.findings.seconds <= cost.seconds
    assert found.findings.memory <= run.tuned.hardware.memory_bytes
    changes = {row.what: (row.before, row.after) for row in list_changes(published, found)}
    assert changes["found seconds"] == (str(cost.seconds), str(found.findings.seconds))
    assert "mesh" in changes


def test_the_published_split_of_gpt_3_is_the_recipe_of_its_mesh() -> None:
    """Families of dimensions give what Megatron-LM's authors wrote by hand."""
    run = PUBLISHED["gpt3-175b"]()
    mesh = ml.Mesh(**run.said["mesh"])
    roles = {"pipeline": Role.pipeline, "data": Role.data, "tensor": Role.tensor}
    config = next(
        config
        for config in list_configs(run.tuned, "mixed_parallel", mesh)
        if {axis.name: axis.role for axis in config.axes} == roles and config.chunks == 1
    )
    made = make_by_recipe(run.tuned, config)
    said = {name: str(spec) for name, spec in run.said["shardings"].items()}

    def drop_ends(spec: str) -> str:
        return spec.replace(", None)", ")")

    assert {n: drop_ends(str(s)) for n, s in made.shardings.items()} == {
        n: drop_ends(s) for n, s in said.items()
    }
    assert dict(made.stages) == run.said["stages"]
