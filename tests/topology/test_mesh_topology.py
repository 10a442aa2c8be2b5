"""Topologies that a user states: prices by hand, what they change, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril.cost import SIMULATED, Hardware, Level, collective_seconds
from mithril.cost.topology import link_as
from mithril.mesh import Mesh, P

from tests.tolerances import TOLERANCE

ALPHA, BYTE = 1e-6, 1e-8
LINKED = replace(SIMULATED, levels=(Level("any", None, ALPHA, 1 / BYTE),))
EIGHT = Mesh(data=4, tensor=2)


def price(topology: str, kind: str, axes: tuple[str, ...], mesh: Mesh = EIGHT) -> float:
    return collective_seconds(kind, 1000, axes, mesh, link_as(LINKED, topology, mesh))


# n = 1000 bytes; of a group of p devices each sends (p - 1) / p n in a phase.
@pytest.mark.parametrize(
    ("topology", "kind", "axes", "messages", "sent"),
    [
        ("switch", "all_reduce", ("data",), 4, 1500),  # 2 log2 p
        ("fat_tree", "all_reduce", ("data",), 4, 1500),
        ("torus", "all_reduce", ("data",), 6, 1500),  # 2 (p - 1)
        ("ring", "all_reduce", ("data",), 6, 2 * 1500),  # every second device: two links
        ("ring", "all_reduce", ("tensor",), 2, 1000),  # neighbours
        ("ring", "all_reduce", ("data", "tensor"), 14, 1750),
        ("fully_connected", "all_reduce", ("data",), 2, 1500),
        ("fully_connected", "all_gather", ("data",), 1, 750),
        ("fully_connected", "reduce_scatter", ("data",), 1, 750),
        ("fully_connected", "all_to_all", ("data",), 1, 750),
        ("switch", "all_to_all", ("data",), 3, 750),
        ("ring", "permute", ("data",), 1, 2 * 1000),
    ],
)
def test_prices_are_those_of_the_formulas(
    topology: str, kind: str, axes: tuple[str, ...], messages: int, sent: float
) -> None:
    assert price(topology, kind, axes) == pytest.approx(messages * ALPHA + sent * BYTE)


def test_what_is_sent_in_a_ring_goes_the_shorter_way() -> None:
    ring = link_as(LINKED, "ring", EIGHT)
    assert [ring.link_between((0, n)).distance for n in range(1, 8)] == [1, 2, 3, 4, 3, 2, 1]
    assert link_as(LINKED, "torus", EIGHT).link_between((0, 4)).distance == 1


# ------------------------------------------------------------------ the option


def summed(**options: object) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Linear(4, bias=False, name="down")(input="x", output="y")
    model.shard({"down.weight": P(None, "data")})
    return ml.compile(model, ml.NumpyBackend(device_mesh=(4, 2), **options), shapes={"x": (8, 8)})


TOPOLOGIES = ["ring", "torus", "switch", "fat_tree", "fully_connected"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_plan_has_the_prices_of_the_topology(topology: str) -> None:
    compiled = summed(mesh_topology=topology)
    row = next(row for row in compiled.plan.collectives() if row.axes == ("data",))
    hardware = link_as(SIMULATED, topology, compiled.backend.mesh)
    wanted = collective_seconds(row.kind, row.bytes, row.axes, compiled.backend.mesh, hardware)
    assert row.cause.seconds == pytest.approx(wanted)
    assert f"priced with profile 'simulated, links: {topology}'" in compiled.explain()


def test_results_stay_the_same() -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    for topology in (None, *TOPOLOGIES):
        compiled = summed(mesh_topology=topology)
        params = compiled.randomize_params(seed=0)
        made = compiled.evaluate(params, {"x": x})["y"].numpy()
        wanted = x @ params["down.weight"].numpy().T
        np.testing.assert_allclose(made, wanted, *TOLERANCE["float32"])


def test_a_topology_changes_prices() -> None:
    seconds = {t: price(t, "all_reduce", ("data",)) for t in TOPOLOGIES}
    assert seconds["fully_connected"] < seconds["switch"] < seconds["torus"] < seconds["ring"]
    assert seconds["switch"] == seconds["fat_tree"]


# ------------------------------------------------------------------ what is refused

TWO_LEVELS = replace(
    SIMULATED,
    name="mine",
    levels=(Level("node", 4, 1e-6, 1e9), Level("network", None, 1e-5, 1e8)),
)
A_TORUS = replace(SIMULATED, name="slice", levels=(Level("pod", 64, 1e-6, 1e9, True, "torus"),))


@pytest.mark.parametrize(
    ("shape", "topology", "hardware", "text"),
    [
        (
            (8,),
            "tours",
            None,
            "mesh_topology='tours' does not exist; did you mean 'torus'?; known: 'switch', "
            "'torus', 'ring', 'fat_tree', 'fully_connected'",
        ),
        (
            (8,),
            "torus",
            None,
            "mesh_topology='torus' needs two mesh axes of several devices, which are its "
            "dimensions; Mesh(data=8) has 1; use 'ring', or device_mesh=(4, 2)",
        ),
        (
            (7, 1),
            "torus",
            None,
            "mesh_topology='torus' needs two mesh axes of several devices, which are its "
            "dimensions; Mesh(data=7, model=1) has 1; 7 devices have no factors for a torus; use "
            "'ring'",
        ),
        (
            (8,),
            "ring",
            TWO_LEVELS,
            "mesh_topology='ring' is given for 8 devices of profile 'mine', which are linked on "
            "the levels 'node', 'network'; leave it out, or describe the network in a profile of "
            "one level",
        ),
        (
            (8,),
            "switch",
            A_TORUS,
            "mesh_topology='switch' is given for profile 'slice', whose level 'pod' is a torus; "
            "leave it out, or give mesh_topology='torus'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    shape: tuple[int, ...], topology: str, hardware: Hardware | None, text: str
) -> None:
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend(device_mesh=shape, mesh_topology=topology, hardware=hardware)
    assert str(raised.value) == text


def test_a_node_of_several_may_have_one() -> None:
    backend = ml.NumpyBackend(device_mesh=(4,), mesh_topology="ring", hardware=TWO_LEVELS)
    (level,) = backend.hardware.levels
    assert (level.name, level.devices, level.topology) == ("node", 4, "ring")


def test_a_ring_has_a_size() -> None:
    with pytest.raises(ml.OptionError) as raised:
        Level("any", None, 1e-6, 1e9, topology="ring")
    assert str(raised.value) == (
        "level 'any' is a ring of no known size; say how many devices it links"
    )
