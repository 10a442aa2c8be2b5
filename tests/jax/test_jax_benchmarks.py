"""Both sides of the benchmarks on JAX, tiny, and what is measured of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mithril as ml
import pytest
from mithril.cli.gpt import Sizes

from benchmarks import (
    adamw,
    decoding,
    jax_by_hand,
    jax_depth,
    jax_gpt,
    jax_mlp,
    jax_moe,
    jax_placement,
    jax_sides,
    overheads,
    recompute_llama_jax,
    training_jax,
)
from benchmarks.harness import Limit
from benchmarks.moe import MoeSizes
from benchmarks.training_cases import Case, Ours, check

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=8)
VOCABULARY = 7
pytestmark = (
    pytest.mark.slow
)  # XLA compiles every model twice, and what is tried is no part of Mithril


@pytest.fixture(params=jax_sides.MESHES, ids="{} devices".format)
def mesh(request: pytest.FixtureRequest) -> ml.Mesh:
    return jax_sides.MESHES[request.param]


def test_both_sides_of_the_gpt_agree(mesh: ml.Mesh):
    mithril, by_hand = jax_gpt.contestants(SIZES, VOCABULARY, mesh)
    query = mithril.params["gpt.block0.attn.q.weight"].shards
    assert len(query.sharding.device_set) == mesh.size
    assert query.addressable_shards[0].data.shape == (8 // mesh.sizes.get("tensor", 1), 8)
    assert by_hand.arguments[0]["block0.attn.q.weight"].sharding.is_equivalent_to(query.sharding, 2)


def test_both_sides_of_tiny_layers_agree_and_eager_functions_run():
    backend = ml.open_backend("jax")
    assert len(overheads.contestants(backend)) == 2 * len(overheads.DEPTHS)
    for function in overheads.eager(backend).values():
        function()


def test_both_sides_of_the_mlp_agree(mesh: ml.Mesh):
    jax_mlp.contestants((6, 8, 4, 3), 8, mesh)


@pytest.mark.parametrize("factor", [0.75, None])
@pytest.mark.parametrize("top_k", [1, 2])
def test_both_sides_of_the_mixture_agree(factor: float | None, top_k: int):
    jax_moe.contestants(MoeSizes(4, 6, 8, top_k, factor, batch=2, context=8))


def test_both_sides_of_adamw_agree():
    assert [*adamw.contestants("jax", adamw.llama(1, 12, 7))] == ["mithril", "optax"]


def test_both_sides_of_decoding_agree():
    sides = decoding.contestants(ml.JaxBackend(), context=8)
    assert [*sides] == ["write", "where", "by hand"]


def test_the_bare_call_runs_the_same_program(mesh: ml.Mesh):
    evaluate, bare = jax_mlp.calls(2, mesh).values()
    evaluate()
    bare()


def test_loop_repeat_and_scan_agree():
    jax_depth.contestants(SIZES, VOCABULARY)


def test_sides_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax_by_hand, "cross_entropy", lambda logits, target: logits.mean())
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        jax_gpt.contestants(SIZES, VOCABULARY, ml.Mesh())


def test_gradients_that_lie_differently_are_refused():
    mithril, by_hand = jax_mlp.contestants((6, 8, 4, 3), 8, ml.Mesh(data=4, tensor=2))
    one = jax.devices()[0]
    gathered = jax_sides.ByHand(
        lambda *given: jax.device_put(by_hand.function(*given), one), by_hand.arguments
    )
    with pytest.raises(AssertionError, match=r"layer0.bias: .*SingleDeviceSharding"):
        jax_sides.check_sides(mithril, gathered)


def test_a_first_call_compiles_every_time():
    runs = []
    double = jax.jit(lambda x: 2 * x)
    x = jnp.ones(3)
    times = jax_sides.compile_times({"a": lambda: runs.append(double(x))}, rounds=2)
    assert len(times["a"]) == 2
    assert len(runs) == 3  # one of them to warm up


def test_a_first_call_that_compiles_nothing_is_refused():
    with pytest.raises(AssertionError, match="nothing was compiled"):
        jax_sides.compile_times({"a": lambda: None}, rounds=1)


def test_times_and_memory_become_limits():
    small = jax_mlp.contestants((6, 8, 3), 8, ml.Mesh())
    times, limits = jax_sides.compare("MLP", *small, step_limit=1e6, rounds=2, compiles=1)
    assert [len(samples) for samples in times.values()] == [2, 2, 1, 1]
    step, compiling, memory = limits
    assert step.is_met
    assert step.limit == 1e6
    assert compiling.what == "compile"
    assert memory.estimate.median == small[0].temporary_bytes() / small[1].temporary_bytes()
    assert not Limit("memory", jax_sides.exactly(1.01), 1.0).is_met


def test_overheads_are_differences_within_a_round():
    micro = 1e-6
    further = jax_mlp.FURTHER_LAYERS * jax_mlp.ARRAYS_PER_LAYER
    # The second round is ten times slower, on both sides.
    times = {
        "evaluate": [30 * micro, 210 * micro],
        "bare": [20 * micro, 200 * micro],
        "deep evaluate": [(110 + further) * micro, (1010 + further) * micro],
        "deep bare": [100 * micro, 1000 * micro],
    }
    call, each = jax_mlp.overheads(times)
    assert call.estimate.median == pytest.approx(10)
    assert each.estimate.median == pytest.approx(1)
    assert call.is_met
    assert not each.is_met


def test_both_sides_of_the_placement_agree():
    placed, by_hand = jax_placement.contestants(8, 4)
    kinds = [row.kind for row in placed.compiled.plan.collectives()]
    assert kinds == ["send"] * 2 * (jax_placement.SEGMENTS - 1)
    assert len(by_hand.step()[1]) == jax_placement.SEGMENTS


@pytest.mark.slow
@pytest.mark.parametrize("key_heads", [0, 2])
def test_sides_of_training_agree(key_heads: int):
    sizes = Sizes(layers=2, width=16, heads=4, hidden=12, context=4, batch=8)
    case = Case(sizes, 7, key_heads)
    assert "mithril" in next(iter(training_jax.contestants(case, 8)))


@pytest.mark.parametrize("microbatch", [1, 2])
def test_a_pipeline_by_hand_makes_the_same_steps(microbatch: int):
    sizes = Sizes(layers=4, width=16, heads=4, hidden=12, context=4, batch=8)
    case, mesh = Case(sizes, 8, key_heads=2), ml.Mesh(pipeline=2, data=2, tensor=2)
    assert ml.JaxBackend(mesh).mesh.size == len(jax.devices())
    ours = Ours(ml.NumpyBackend(), case)
    by_hand = recompute_llama_jax.make_by_hand(case, ours.parameters(), mesh, microbatch)
    check(ours.loss, by_hand.loss, "by hand")
    assert by_hand.peak() > 0


@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_ticks_of_two_stages_are_those_of_1f1b(microbatches: int):
    """What a stage takes comes before it is used, and lies there until then."""
    ticks = recompute_llama_jax.make_ticks(microbatches)
    forward, backward = recompute_llama_jax.FORWARD, recompute_llama_jax.BACKWARD
    done: list[tuple[int, int, int]] = []
    inbox: list[object] = [None, None]
    for work, on, takes in zip(*ticks.values(), strict=True):
        has: list[object] = [None, None]
        for stage in (0, 1):
            one = (int(work[stage]), int(on[stage]))
            if one[0] == forward and stage == 1:
                assert inbox[1] == (forward, one[1])
            if one[0] == backward:
                assert (stage, forward, one[1]) in done
                assert stage == 1 or inbox[0] == (backward, one[1])
            if one[0]:
                has[stage] = one
                done.append((stage, *one))
            kept = [
                sum(k == kind for s, k, _ in done if s == stage) for kind in (forward, backward)
            ]
            assert kept[0] - kept[1] <= 2
        for stage in (0, 1):
            if takes[stage]:
                inbox[stage] = has[1 - stage]
    assert len(done) == len({*done}) == 4 * microbatches
