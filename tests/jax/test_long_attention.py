"""Attention over long sequences: in parts, with the same results, and never all scores at once."""

from __future__ import annotations

import jax.numpy as jnp
import mithril as ml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.cost.liveness import Liveness
from mithril.ir import Builder, Graph
from mithril.mesh import Mesh
from mithril.ops import query_rows
from mithril.ops.attention import Attention
from mithril.testing.arrays import floats
from mithril.testing.evaluate import assert_close, differentiable, seeds
from mithril.testing.running import run_graph
from mithril.transform import cotangent_name, differentiate
from mithril.types import DType, TensorType
from mithril_jax.kernels import attention as kernels

from tests.engine.programs import program_of
from tests.profiles import scaled

MASKS = (None, "full", "row", "column", "added")


def graph_of(shapes: dict[str, tuple[int, ...]], causal: bool, mask: str | None) -> Graph:
    builder = Builder()
    q, k, v = (builder.input(TensorType(shapes[n], DType.float32), n) for n in "qkv")
    (b, s, h, _), t = shapes["q"], shapes["k"][1]
    sizes = {"full": (b, h, s, t), "row": (b, 1, s, 1), "column": (1, h, 1, t)}.get(mask or "")
    masks = []
    if mask == "added":
        masks = [builder.input(TensorType((1, 1, s, t), DType.float32), "added")]
    elif sizes:
        masks = [builder.input(TensorType(sizes, DType.bool_), "mask")]
    op = Attention(causal=causal, scale=0.5)
    return builder.build({"y": builder.apply(op, q, k, v, *masks)[0]})


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.AT_ONCE, "cpu", 1 << 9)
    monkeypatch.setattr(query_rows, "FEWEST_ROWS", 4)


@settings(max_examples=scaled(24), deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 40), st.integers(0, 9), st.sampled_from([(2, 2), (4, 2)]),
    st.booleans(), st.sampled_from(MASKS),
)  # fmt: skip
def test_parts_make_what_numpy_makes(
    batch: int, length: int, more: int, heads: tuple[int, int], causal: bool, mask: str | None
) -> None:
    many, few = heads
    shapes = {
        "q": (batch, length, many, 4),
        "k": (batch, length + more, few, 4),
        "v": (batch, length + more, few, 6),
    }
    graph = graph_of(shapes, causal, mask)
    values = {
        v.name: floats(*v.type.shape, seed=i).astype(v.type.dtype.numpy)
        if v.type.dtype.is_float
        else floats(*v.type.shape, seed=i) > -0.5
        for i, v in enumerate(graph.inputs)
    }
    given = {cotangent_name(name): seed for name, seed in seeds(graph).items()}
    joint = differentiate(graph, *differentiable(graph))
    found = run_graph(ml.JaxBackend().engine, joint, {**values, **given})
    expected = run_graph(ml.NumpyBackend().engine, joint, {**values, **given})
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert_close(found[name], array)


@pytest.mark.parametrize("causal", [False, True])
def test_a_long_sequence_never_has_all_scores(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    length, heads = 2048, 4
    shape = (1, length, heads, 8)
    graph = graph_of(dict.fromkeys("qkv", shape), causal, None)
    joint = differentiate(graph, *differentiable(graph))
    engine = ml.JaxBackend().engine
    executable = engine.lower(program_of(Mesh(), joint))
    given = [jnp.zeros(v.type.shape, v.type.dtype.numpy) for v in joint.inputs]
    scores = 4 * heads * length**2
    assert executable.memory(given).temp_size_in_bytes < 0.4 * scores


@pytest.mark.parametrize("has_gradients", [False, True])
def test_its_memory_is_predicted(has_gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    length, heads = 2048, 4
    scores = 4 * heads * length**2
    backend = ml.JaxBackend()
    shapes = {"input": (1, length, 32)}
    model = ml.Model()
    model |= ml.MultiHeadAttention(heads, causal=True, name="attend")(input="input", output="y")
    compiled = ml.compile(model, backend, shapes=shapes)
    params, x = compiled.randomize_params(0), {"input": backend.zeros(*shapes["input"])}
    seeds = {"y": backend.ones(shapes["input"])} if has_gradients else None
    compiled.evaluate(params, x, seeds)
    assert 0.1 * scores < compiled.plan.memory().peak < 0.5 * scores


def test_few_queries_of_a_large_batch_are_predicted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many scores there are: kernels and predictions go by one rule."""
    monkeypatch.undo()
    shape = (512, 48, 4, 8)
    graph = graph_of(dict.fromkeys("qkv", shape), causal=False, mask=None)
    execution = ml.JaxBackend().engine.execution
    kind = graph.inputs[0].type
    assert query_rows.count_rows_at_once(kind, kind, execution.scores_at_once) == 48
    assert Liveness(execution).measure(graph).peak >= 4 * 512 * 4 * 48**2
