"""The line of the user's code: that which called into Mithril."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
from mithril.cli.app import app
from mithril.ir import Source
from mithril.spi import hookimpl, register_plugin, unregister_plugin
from typer.testing import CliRunner

FOUND: list[Source | None] = []


def find_sources() -> set[Source | None]:
    """Return where the nodes of a plan come from."""
    compiled = ml.compile(ml.Relu(), ml.NumpyBackend(), inference=True)
    plan = compiled.plan_for({"input": (2,)}, gradients=False)
    return {node.source for stage in plan.stages for node in stage.program.graph.nodes}


def test_it_is_the_line_that_made_the_layer() -> None:
    (source,) = find_sources()
    assert source is not None
    assert str(source).startswith("test_source.py:")


def test_a_command_of_a_plugin_is_the_users_code() -> None:
    def inspect() -> None:
        FOUND.extend(find_sources())

    @hookimpl
    def mithril_commands() -> dict[str, Callable[[], None]]:
        return {"inspect": inspect}

    register_plugin("acme", mithril_commands)
    try:
        done = CliRunner().invoke(app, ["acme", "inspect"])
    finally:
        unregister_plugin("acme")
    assert done.exit_code == 0, done.output
    (own,) = FOUND
    assert own is not None
    assert str(own).startswith("test_source.py:")
