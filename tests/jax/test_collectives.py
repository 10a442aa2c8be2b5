"""The collectives that XLA compiled are those of the plan."""

from __future__ import annotations

from collections import Counter

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.cli.gpt import transformer_block
from mithril.ir import Builder, Node, Start, Wait
from mithril.ir.rewrite import unroll
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce
from mithril.plan import Plan
from mithril.plan.issued import count_moved_bytes
from mithril.plan.program import Program
from mithril.types import DType, TensorType
from mithril_jax.hlo import UNNAMED, collectives
from mithril_jax.kernels.bucket import SMALL_BYTES, small_operands
from mithril_jax.lower import needs_flag

from tests.engine.programs import program_of
from tests.jax.models import SIZES, small_gpt
from tests.tolerances import TOLERANCE

Rows = Counter[tuple[str, tuple[str, ...], int]]


def promised(plan: Plan) -> Rows:
    """Return what every array that a collective of a plan moves has, loops unrolled."""
    (stage,) = plan.stages
    return Counter(_operands(stage.program, stage.program.graph))


def _operands(program: Program, graph) -> list[tuple[str, tuple[str, ...], int]]:
    found = []
    for node in unroll(graph):
        if node.op.is_collective:
            axes = program.mesh.join_axes(node.op.attributes["axes"])
            if len(node.inputs) == 1 or not isinstance(node.op, AllReduce | AllGather):
                found.append((node.op.name, axes, count_moved_bytes(node)))
            else:
                found += [(node.op.name, axes, size) for size in _travelling(node)]
    return found


def _travelling(node: Node) -> list[int]:
    """Return the bytes of the arrays that the operands of a bucket travel as."""
    types = [value.type for value in node.inputs]
    sizes = [node.op.count_bytes([type]) for type in types]
    small = small_operands(types)
    large = [size for i, size in enumerate(sizes) if i not in small]
    if large and isinstance(node.op, AllGather):
        large = [sum(large)]
    return [*large, sum(sizes[i] for i in small)] if small else large


def compiled_rows(compiled: ml.CompiledModel, inputs: dict, gradient: str = "loss") -> Rows:
    rows: Rows = Counter()
    params = compiled.randomize_params()
    compiled.evaluate(params, inputs, {gradient: 1.0}, observe=lambda told: rows.update([told.row]))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [ml.Mesh(data=4), ml.Mesh(tensor=4), ml.Mesh(data=4, tensor=2)], ids=str
)
def test_of_a_gpt_are_those_of_the_plan(mesh: ml.Mesh) -> None:
    compiled, inputs = small_gpt(ml.JaxBackend(mesh))
    found = compiled_rows(compiled, inputs)
    assert found == promised(compiled.plan)
    assert sum(n for (kind, _, _), n in found.items() if kind == "all_reduce") >= 1


def test_small_gradients_travel_as_one_array() -> None:
    """Large ones go as they are: a copy of them would take as much memory again."""
    backend = ml.JaxBackend(ml.Mesh(data=4))
    width = 80
    assert 4 * width * width > SMALL_BYTES
    model = ml.Model()
    model |= ml.Linear(width, name="up")(input="x", output="h")
    model += ml.Linear(width, name="down")(output="y")
    model += ml.MeanSquaredError()(input="y", target="target", output="loss")
    x = backend.array(np.ones((8, width), np.float32), sharding=P("data"))
    inputs = {"x": x, "target": x}
    found = compiled_rows(ml.compile(model, backend, shapes=inputs), inputs)
    weight, biases = 4 * width * width, 2 * 4 * width + 4  # and the loss
    assert found[("all_reduce", ("data",), weight)] == 2
    assert found[("all_reduce", ("data",), biases)] == 1
    assert found[("all_reduce", ("data",), biases // 2)] == 0


def test_small_parts_are_gathered_without_large_ones() -> None:
    """They would keep the whole array for as long as somebody reads them."""
    mesh, dtype = Mesh(data=2), DType.float32
    builder = Builder()
    types = {"statistics": TensorType((8,), dtype), "weight": TensorType((64, 128), dtype),
             "gain": TensorType((4,), dtype), "other": TensorType((96, 64), dtype)}  # fmt: skip
    inputs = [builder.input(type, name) for name, type in types.items()]
    assert small_operands([*types.values()]) == [0, 2]
    made = builder.apply(AllGather(("data",), 0, 2), *inputs)
    program = program_of(mesh, builder.build(dict(zip(types, made, strict=True))))
    engine = ml.JaxBackend(ml.Mesh(data=2)).engine
    executable = engine.lower(program)
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal((2 * t.shape[0], *t.shape[1:]), "float32") for t in types.values()]
    given = [
        engine.put(port.type, port.sharding, lambda box, x=x: x[box])
        for port, x in zip(program.inputs, whole, strict=True)
    ]
    rows = Counter(told.row for told in executable.collectives(given))
    assert rows == Counter(_operands(program, program.graph))
    assert sorted(size for _, _, size in rows) == [2 * 4 * 12, 2 * 4 * (64 * 128 + 96 * 64)]


def looped(backend: ml.Backend) -> tuple[ml.CompiledModel, dict[str, ml.Array]]:
    model = ml.Model()
    block = transformer_block(SIZES, "block")
    model |= ml.Repeat(block, 3, name="blocks")(input="x", output="y")
    model += ml.MeanSquaredError()(input="y", target="target", output="loss")
    model.shard({"*.attn.[qkv].weight": P(None, "tensor", None)})
    model.shard({"*.attn.o.weight": P(None, None, "tensor")})
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((2, 4, 8, SIZES.width)).astype(np.float32)
    inputs = {"x": backend.array(x, sharding=P("data")), "target": backend.array(target)}
    return ml.compile(model, backend, shapes=inputs), inputs


@pytest.mark.slow
def test_in_a_loop_count_once_an_iteration() -> None:
    compiled, inputs = looped(ml.JaxBackend(ml.Mesh(data=2, tensor=2)))
    found = compiled_rows(compiled, inputs)
    assert found == promised(compiled.plan)
    assert any(n % 3 == 0 for n in found.values())


def test_other_kinds() -> None:
    """At rest: gathered for each use anew, though XLA would see the same gather twice."""
    backend = ml.JaxBackend(ml.Mesh(data=4))
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="x", output="h")
    model += ml.Linear(8, name="down")(output="y")
    model += ml.MeanSquaredError()(input="y", target="target", output="loss")
    model.at_rest({"*": P("data")})
    x = backend.array(np.ones((8, 8), np.float32), sharding=P("data"))
    inputs = {"x": x, "target": x}
    compiled = ml.compile(model, backend, shapes=inputs)
    found = compiled_rows(compiled, inputs)
    assert found == promised(compiled.plan)
    assert {kind for kind, _, _ in found} == {"all_gather", "reduce_scatter", "all_reduce"}


@ml.layer
def merge(x):
    """Return [batch * rows, columns]."""
    return x.reshape(-1, x.shape[-1])


def test_a_merge_of_a_split_minor_dimension_exchanges() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=4), hardware="simulated")
    compiled = ml.compile(merge(), backend)
    given = backend.ones(8, 16, 64, sharding=P(None, "data"))
    rows: Rows = Counter()
    compiled.evaluate({}, {"x": given}, observe=lambda told: rows.update([told.row]))
    assert rows == promised(compiled.plan)
    assert [kind for kind, _, _ in rows] == ["all_to_all"]


@pytest.mark.slow
def test_gspmd_gives_the_same_numbers_with_collectives_of_its_own() -> None:
    mesh = ml.Mesh(data=4, tensor=2)
    compiled, inputs = small_gpt(ml.JaxBackend(mesh))
    other, _ = small_gpt(backend := ml.JaxBackend(mesh, pjit_lowering_strategy="gspmd"))
    moved = {name: backend.array(x.jax()) for name, x in inputs.items()}
    expected, slopes = compiled.evaluate(compiled.randomize_params(), inputs, {"loss": 1.0})
    rows: list[object] = []
    found, theirs = other.evaluate(
        other.randomize_params(), moved, {"loss": 1.0}, observe=lambda told: rows.append(told.row)
    )
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    for name, slope in slopes.items():
        np.testing.assert_allclose(theirs[name], slope, rtol=1e-4, atol=5e-5, err_msg=name)
    assert rows
    assert Counter(rows) != promised(other.plan), "XLA chose otherwise, or this tests nothing"


@pytest.mark.parametrize(
    "option",
    [
        {"collective_ops": {"all_reduce": "ring"}},
        {"communication_overlap_strategy": "decompose", "all_reduce_fusion": False},
    ],
)
def test_gspmd_refuses_algorithms(option: dict[str, object]) -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2), pjit_lowering_strategy="gspmd", **option)
    out = P("data") if "communication_overlap_strategy" in option else None
    compiled = ml.compile(ml.Linear(3), backend, out_shardings=out)
    given = backend.array(np.ones((4, 6), np.float32), sharding=P(None, "data"))
    with pytest.raises(ml.OptionError) as raised:
        compiled.evaluate(compiled.randomize_params(), {"input": given})
    assert str(raised.value) == (
        "backend 'jax' has pjit_lowering_strategy='gspmd', by which XLA places collectives by "
        "itself; collective_ops, communication_overlap_strategy='decompose', "
        "pipeline_communication and what stands for all of them have no effect with "
        "it; leave out either"
    )


HLO = """HloModule jit_f

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %r = f32[8]{0} all-reduce(%x), replica_groups=[2,2]<=[4], to_apply=%add
  ROOT %t = (s32[], f32[8]) tuple(%i, %r)
}

ENTRY %main (a: f32[8], b: bf16[2,4]) -> f32[8] {
  %w = (s32[], f32[8]) while(%a), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %m = (f32[8]{0}, bf16[2,4]{1,0}) all-reduce(%a, %b), replica_groups={{0,2},{1,3}}, to_apply=%add
  %g = f32[16]{0} all-gather(%a), replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}
  %s = f32[4]{0} reduce-scatter(%a), replica_groups={{0,1},{2,3}}, dimensions={0}, to_apply=%add
  %v = (f32[4]{0}, f32[4]{0}) all-to-all(%a, %b), replica_groups={{0,1},{2,3}}
  %q = f32[8]{0} collective-permute(%a), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  ROOT %o = pred[8]{0} all-reduce(%z), replica_groups={{0,3},{1,2}}, to_apply=%or
}
"""


def test_the_text_of_a_program_is_read() -> None:
    assert [issued.row for issued in collectives(HLO, ml.Mesh(a=2, b=2))] == [
        *[("all_reduce", ("b",), 32)] * 3,
        ("all_reduce", ("a",), 32),
        ("all_reduce", ("a",), 16),
        ("all_gather", ("a",), 64),
        ("reduce_scatter", ("b",), 32),
        ("all_to_all", ("b",), 32),
        ("permute", ("b",), 32),
        ("all_reduce", UNNAMED, 8),
    ]


def test_a_gather_is_issued_again_whether_it_is_started_or_not() -> None:
    """XLA would see one computation, so a program with both takes the flag that keeps them apart."""
    builder, gather = Builder(), AllGather(("a",), 0, 2)
    x = builder.input(TensorType((2,), DType.float32), "x")
    (first,) = builder.apply(gather, x)
    (second,) = builder.apply(Wait(), *builder.apply(Start(gather), ops.sin(first)[:2]))
    once = program_of(Mesh(a=2), builder.build({"y": second}))
    (third,) = builder.apply(Wait(), *builder.apply(Start(gather), x))
    again = program_of(Mesh(a=2), builder.build({"y": second + third}))
    assert not needs_flag(once, "cpu")
    assert needs_flag(again, "cpu")
    assert not needs_flag(again, "gpu")


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("abcd,ycxb->yxcad", (3, 3, 4, 7), (1, 4, 5, 3)),
        ("abc,yb->yca", (3, 2, 5), (1, 2)),
        ("ab,yb->ya", (5, 3), (1, 3)),
        ("abc,byc->yabc", (3, 3, 2), (3, 1, 2)),
        ("abcd,yb->ydac", (4, 3, 2, 3), (3, 3)),
    ],
)
def test_padding_is_exchanged_in_any_layout(
    equation: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    """XLA refused pieces of padding that lay otherwise than those of data."""
    backend = ml.JaxBackend(ml.Mesh(y=2))
    function = ml.jit(
        lambda a, c: ops.einsum(equation, a, c),
        in_shardings=(P("y"), P()),
        out_shardings=P("y"),
    )
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (left, right))
    arrays = backend.array(x), backend.array(w)
    assert [row.kind for row in function.plan(*arrays).collectives()] == ["all_to_all"]
    rtol, atol = TOLERANCE["float32"]
    found = function(*arrays).numpy()
    np.testing.assert_allclose(found, np.einsum(equation, x, w), rtol=rtol, atol=atol)
