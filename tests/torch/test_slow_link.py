"""The benchmark behind a link: its sides, tiny, its limits, and the link."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from mithril import Hardware
from mithril.cost import Level, Link

from benchmarks import network, slow_link, torch_sides


@pytest.mark.slow
def test_sides_agree_on_two_ranks():
    found = torch_sides.in_job("tests.torch.tiny_slow_link", 2, [])
    times = {name: samples for name, samples in found.items() if "predicted" not in name}
    assert 0.0 < found["predicted share of computing"][0] < 1.0
    assert found["predicted mithril"] < found["predicted mithril, no overlap"]
    assert {"mithril", "DDP", "DDP, 1 MiB", "mithril, 25 MiB", "mithril, no overlap"} < set(times)
    assert {"mithril, fp16", "DDP, fp16 hook", "mithril, zero 3", "FSDP2"} < set(times)
    assert {*slow_link.APART} < set(times)
    assert {len(samples) for samples in times.values()} == {2}
    said = [limit.what for limit in slow_link.limits(times, "200mbit")]
    assert said[0] == "mithril to DDP"
    assert said[-1] == "communication that could be hidden and is not"


def test_limits_are_of_ratios_within_rounds():
    times = {
        "mithril": [0.9], "DDP": [1.0], "DDP, 5 MiB": [0.8], "mithril, 1 MiB": [1.0],
        "mithril, no overlap": [0.9], "mithril, fp16": [0.5], "DDP, fp16 hook": [1.0],
        "computing alone": [0.4], "collectives alone": [0.8],
    }  # fmt: skip
    found = {limit.what: limit for limit in slow_link.limits(times, "200mbit")}
    assert [(round(x.estimate.median, 3), x.is_met) for x in found.values()] == [
        (0.9, True), (1.125, False), (0.5, True), (1.0, True), (0.25, True),
    ]  # fmt: skip
    assert list(found)[3] == "mithril to the best of its own, mithril, no overlap"
    slow = {**times, "mithril": [0.96]}  # 1.067 of the best, where 1.05 is all that is allowed
    assert [x.is_met for x in slow_link.limits(slow, None) if "best" in x.what] == [False]
    *_, shown = slow_link.limits(times, "200mbit", beside=0.8)  # 0.3 hidden, of 0.32 that could be
    assert shown.estimate.median == pytest.approx(1 - 0.3 / 0.32)
    without = slow_link.limits(times, None)
    assert [limit.what for limit in without] == list(found)[:-1]


def test_predicted_gains_are_held_against_measured_ones(capsys: pytest.CaptureFixture[str]):
    times = {"mithril": [2.0, 1.0, 1.0], "mithril, fp16": [0.5], "mithril, 1 MiB": [2.0]}
    predicted = {"mithril": 1.0, "mithril, fp16": 0.6, "mithril, 1 MiB": 2.0}
    (limit,) = slow_link.limit_gains(times, predicted)
    assert limit.estimate.median == pytest.approx(0.1)
    assert "mithril, fp16: 0.500 of mithril's time, predicted 0.600" in capsys.readouterr().out
    assert slow_link.limit_gains(times, {"mithril": 1.0}) == []


def test_a_link_is_set_up_and_taken_away(monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(" ".join(command)))
    with network.limit(None) as inside:
        assert inside == []
    with pytest.raises(KeyError), network.limit("200mbit") as inside:
        assert inside[:3] == ["ip", "netns", "exec"]
        raise KeyError
    assert "tbf rate 200mbit" in ran[3]
    assert [command.split()[:3] for command in ran[::4]] == [
        ["ip", "netns", "add"], ["ip", "netns", "del"],
    ]  # fmt: skip


def test_a_profile_has_the_speed_of_the_link():
    level = Level("node", None, 1e-5, 1e9, collectives={"all_reduce": Link(2e-5, 5e7)})
    slow = network.behind(_profile(level), "1gbit", 2)
    assert slow.levels[0].bandwidth == 62.5e6
    assert slow.levels[0].collectives["all_reduce"] == Link(2e-5, 5e7)
    assert network.behind(_profile(level), None, 2).levels[0].bandwidth == 1e9
    with pytest.raises(ValueError, match="rate '5 MB' has no unit"):
        network.bytes_per_second("5 MB")


def _profile(level: Level) -> Hardware:
    return replace(Hardware.load("cpu"), levels=(level,))
