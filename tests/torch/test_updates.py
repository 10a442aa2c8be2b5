"""Updates of AdamW on PyTorch: one call for many parameters, in place where that is safe."""

from __future__ import annotations

import re
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.reuse import reuse_donated
from mithril.ir import Builder, Graph, Phase
from mithril.mesh import Mesh
from mithril.ops.collective import AllReduce
from mithril.partition.overlap.defer import defer_uncritical
from mithril.types import DType, TensorType
from mithril_torch.program.gather_updates import AdamWSteps, gather_updates
from mithril_torch.program.module import write
from mithril_torch.program.runtime_library.optimizer import adamw_steps, adamw_steps_by_formula

from tests.engine.programs import program_of
from tests.tolerances import TOLERANCE

SHAPES = {"a": (3, 4), "b": (5,), "c": (), "d": (0, 2), "e": (4, 3)}
STEP = {"b1": 0.8, "b2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
ALL = (0, 2, 3)


def update(p, g, m, v, rate, count, **options):
    made = {n: ops.adamw_step(p[n], g[n], m[n], v[n], rate, count, **STEP | options) for n in p}
    return tuple({n: made[n][i] for n in p} for i in range(3))


def trees(backend: ml.Backend, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {n: backend.array(rng.uniform(0.1, 1, s).astype(np.float32)) for n, s in SHAPES.items()}
        for _ in range(4)
    ]


def text_of(function, *arguments, donate=()) -> str:
    """Return the program of a function as it is written."""
    (stage,) = ml.jit(function).plan(*arguments).stages
    names = [port.name for port in stage.program.inputs]
    given = [i for i, name in enumerate(names) if name.partition(".")[0] in donate]
    return write(reuse_donated(stage.program, given)).text


@pytest.mark.parametrize("number", ["python", "array"])
def test_many_updates_are_one_call(number: str) -> None:
    backend = ml.TorchBackend()
    rate = 0.1 if number == "python" else backend.array(np.float32(0.1))
    text = text_of(update, *trees(backend), rate, 3)
    assert text.count("adamw_steps(") == 1
    assert text.count(".to(") <= 2  # what all have in common is cast once


def test_other_numbers_are_other_calls() -> None:
    def two(p, g, m, v):
        return update(p, g, m, v, 0.1, 1), update(p, g, m, v, 0.2, 1), update(
            p, g, m, v, 0.1, 1, b1=0.5
        )  # fmt: skip

    assert text_of(two, *trees(ml.TorchBackend())).count("adamw_steps(") == 3


def test_an_update_of_an_update_comes_after_it() -> None:
    def twice(p, g, m, v):
        once = update(p, g, m, v, 0.1, 1)
        return update(once[0], g, once[1], once[2], 0.1, 1)

    backend = ml.TorchBackend()
    text = text_of(twice, *trees(backend), donate="pmv")
    assert re.findall(r"own=\([^)]*\)", text) == ["own=(True, True, True)"] * 2
    p, g, m, v = ([x[n].numpy() for n in SHAPES] for x in trees(backend))
    found = ml.jit(twice, backend=backend, donate=(0, 2, 3))(*trees(backend))
    for count in (1, 1):
        p, m, v = by_torch(p, g, m, v, 0.1, count)
    for tree, expected in zip(found, (p, m, v), strict=True):
        for x, y in zip(tree.values(), expected, strict=True):
            np.testing.assert_allclose(x.numpy(), y, *TOLERANCE["float32"])


def by_torch(p, g, m, v, rate, count):
    """Return one update by `torch.optim.AdamW`."""
    made = []
    for tensors in zip(p, g, m, v, strict=True):
        x, grad, first, second = (torch.tensor(t) for t in tensors)
        x.requires_grad_()
        x.grad = grad
        optimizer = torch.optim.AdamW(
            [x], lr=rate, betas=(STEP["b1"], STEP["b2"]), eps=STEP["eps"],
            weight_decay=STEP["weight_decay"], foreach=False, fused=False,
        )  # fmt: skip
        state = {"step": torch.tensor(float(count - 1)), "exp_avg": first, "exp_avg_sq": second}
        optimizer.state[x].update(state)
        optimizer.step()
        made.append((x.detach().numpy(), first.numpy(), second.numpy()))
    return zip(*made, strict=True)


@pytest.mark.parametrize("count", [1, 1000])
def test_it_is_the_update_of_torch(count: int) -> None:
    backend = ml.TorchBackend()
    values = [[x[n].numpy() for n in SHAPES] for x in trees(backend)]
    found = ml.jit(update, backend=backend)(*trees(backend), 0.1, count)
    for tree, expected in zip(found, by_torch(*values, 0.1, count), strict=True):
        for x, y in zip(tree.values(), expected, strict=True):
            np.testing.assert_allclose(x.numpy(), y, *TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_dtypes_that_differ_are_computed_by_the_formula(dtype: str) -> None:
    """Moments in float32 of a parameter in 16 bits keep their digits."""
    rng = np.random.default_rng(1)
    values = [rng.uniform(0.1, 1, 50).astype(np.float32) for _ in range(4)]
    backend = ml.TorchBackend()

    def one(p, g, m, v):
        p = ops.cast(p, dtype)
        return ops.adamw_step(p, g, m, v, 0.1, 3, **STEP)

    found = ml.jit(one, backend=backend)(*map(backend.array, values))
    assert [str(x.dtype) for x in found] == [dtype, "float32", "float32"]
    expected = by_torch(*([x] for x in values), 0.1, 3)
    for x, (y,), digits in zip(found, expected, [dtype, "float32", "float32"], strict=True):
        rtol, atol = TOLERANCE["float32" if digits == "float64" else digits]
        np.testing.assert_allclose(x.numpy().astype(np.float32), y, rtol, atol)


@pytest.mark.parametrize("donated", ["", "p", "mv", "pmv"])
def test_the_memory_is_that_of_what_is_given_up(donated: str) -> None:
    backend = ml.TorchBackend()
    step = ml.jit(update, backend=backend, donate=tuple("pgmv".index(letter) for letter in donated))
    count = backend.array(np.int32(1))
    p, g, m, v = step(*trees(backend), 0.1, count)[:1] + tuple(trees(backend)[1:])
    p, m, v = step(p, g, m, v, 0.1, count)
    names = [name for name, shape in SHAPES.items() if 0 not in shape]
    held = {
        letter: [x[n].shards.data_ptr() for n in names]
        for letter, x in zip("pmv", (p, m, v), strict=True)
    }
    new = dict(zip("pmv", step(p, g, m, v, 0.1, count), strict=True))
    for letter in "pmv":
        pointers = [new[letter][n].shards.data_ptr() for n in names]
        assert (pointers == held[letter]) == (letter in donated), letter


def test_what_is_read_later_is_not_written_over() -> None:
    def reads(p, g, m, v):
        p2, m2, v2 = update(p, g, m, v, 0.1, 1)
        return p2, m2, v2, sum(x.sum() for x in p.values())

    backend = ml.TorchBackend()
    text = text_of(reads, *trees(backend), donate="pmv")
    assert "own=(False, True, True)" in text
    before = sum(float(x.numpy().sum()) for x in trees(backend)[0].values())
    found = ml.jit(reads, backend=backend, donate=(0, 2, 3))(*trees(backend))
    assert found[3].numpy() == pytest.approx(before, rel=1e-5)


def test_what_is_an_output_is_not_written_over() -> None:
    def hands_on(p, g, m, v):
        return *update(p, g, m, v, 0.1, 1), m

    assert "own=(True, False, True)" in text_of(hands_on, *trees(ml.TorchBackend()), donate="pmv")


def node_of(builder: Builder, *operands: Any) -> list[Any]:
    return list(builder.apply(ops.AdamWStep(0.9, 0.99, 1e-8, 0.0, ALL), *operands))


def updates_of(graph: Graph) -> list[AdamWSteps]:
    return [node.op for node in gather_updates(graph).nodes if isinstance(node.op, AdamWSteps)]


def inputs_of(builder: Builder, count: int) -> list[Any]:
    types = [TensorType((4,), DType.float32)] * count + [TensorType((), DType.float32)] * 2
    return [builder.input(type, f"x{i}") for i, type in enumerate(types)]


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_gradient_that_is_a_parameter_of_the_same_call_is_not_written_over(is_apart) -> None:
    """The first update reads what the second one writes over."""
    builder = Builder()
    a, m, v, b, n, w, rate, count = inputs_of(builder, 6)
    first = node_of(builder, b, a, n, w, rate, count)
    gradient = (first[1] if is_apart else m) * 2.0
    second = node_of(builder, a, gradient, m, v, rate, count)
    graph = builder.build({f"y{i}": x for i, x in enumerate([*first, *second])})
    marks = [op.step.in_place for op in updates_of(graph)]
    assert marks == ([ALL, ALL] if is_apart else [(2, 3)])


def test_what_is_put_off_is_not_written_over() -> None:
    """What only waits for a collective is done last: after the update."""
    builder = Builder()
    p, g, m, v, rate, count = inputs_of(builder, 4)
    (total,) = builder.apply(AllReduce(("a",), "sum"), g)
    metric = total * p
    made = node_of(builder, p, g, m, v, rate, count)
    graph = builder.build({"metric": metric, "y": -made[0], "m": made[1], "v": made[2]})
    text = write(program_of(Mesh(a=2), defer_uncritical(graph))).text
    assert text.index("adamw_steps(") < text.index("torch.neg(") < text.index("torch.mul(")
    assert "own=(False, True, True)" in text


def test_updates_wait_for_their_own_gradients() -> None:
    """Of gradients that two sums bring, in the order of these; of one sum there is one call."""
    builder = Builder()
    one = TensorType((3,), DType.float32)
    given = [[builder.input(one, f"{what}{n}") for what in "pgmv"] for n in range(4)]
    rate = builder.input(TensorType((), DType.float32), "rate")
    count = builder.input(TensorType((), DType.int32), "count")
    sums = AllReduce(("a",), "sum")
    late = builder.apply(sums, given[2][1], given[3][1])
    last = builder.apply(sums, given[0][1], given[1][1])
    made = {}
    with builder.at(phase=Phase.update):
        for n, ((p, _, m, v), g) in enumerate(zip(given, [*last, *late], strict=True)):
            made[f"p{n}"] = ops.adamw_step(p, g, m, v, rate, count, **STEP)[0]
    graph = gather_updates(builder.build(made))
    calls = [node for node in graph.nodes if isinstance(node.op, AdamWSteps)]
    names = [[value.name for value in node.inputs[:2]] for node in calls]
    assert names == [["p2", "p3"], ["p0", "p1"]]


LAYOUTS = {
    "plain": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
}


@given(
    st.lists(st.sampled_from([*LAYOUTS]), min_size=8, max_size=8), st.tuples(*[st.booleans()] * 3)
)
def test_tensors_may_lie_in_any_order(layouts: list[str], own: tuple[bool, bool, bool]) -> None:
    """Two parameters, gradients, first and second moments; the fused kernel takes memory as it is."""
    draw = torch.Generator().manual_seed(0)
    plain = [torch.rand(2, 3, 4, 5, generator=draw) for _ in layouts]
    laid = [LAYOUTS[layout](x.clone()) for layout, x in zip(layouts, plain, strict=True)]
    numbers = (torch.tensor(0.1), torch.tensor(3), *STEP.values())

    def in_lists(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        return [tensors[i : i + 2] for i in range(0, 8, 2)]

    expected = adamw_steps_by_formula(*in_lists(plain), *numbers)
    for found, x in zip(adamw_steps(*in_lists(laid), *numbers, own), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), x.numpy(), *TOLERANCE["float32"])
    for i, is_given_up in zip((0, 4, 6), own, strict=True):
        if not is_given_up:
            assert torch.equal(laid[i], plain[i])


@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=str)
def test_each_number_of_a_state_is_a_tensor_of_its_own(mesh: ml.Mesh) -> None:
    """Muon's two learning rates are one constant of the program, and each is given up alone."""
    layer = ml.Linear(3, name="only")
    model = ml.Model()
    model |= layer(input="x", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    batch = {"x": np.ones((4, 2), np.float32), "t": np.zeros((4, 3), np.float32)}
    losses = []
    for backend in (ml.NumpyBackend(), ml.TorchBackend(mesh, device="cpu")):
        step = ml.train_step(model, backend, ml.optim.muon(0.1), shapes=batch)
        state = step.init(seed=0)
        for _ in range(3):
            state, found = step(state, batch)
        losses.append(float(found["loss"].item()))
    np.testing.assert_allclose(*losses, *TOLERANCE["float32"])
