"""A collective that a program starts: where the text starts it, and waits for it."""

from __future__ import annotations

import pytest
from mithril import ops
from mithril.ir import Builder, Start, Wait
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, Collective
from mithril.types import DType, TensorType
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.program.module import write

from tests.engine.programs import program_of


def test_work_stands_between_a_start_and_its_wait():
    """The text starts a collective where it is started, and waits before the first use."""
    builder = Builder()
    x = builder.input(TensorType((4, 4), DType.float32), "x")
    pending = builder.apply(Start(AllGather(("a",), 0, 2)), x)
    work = ops.matmul(x, x)
    (whole,) = builder.apply(Wait(), *pending)
    graph = builder.build({"y": ops.matmul(whole, work)})
    text = write(program_of(Mesh(a=2), graph)).text
    started = text.index("= all_gather(group_0, x, dimension=0)")
    done = text.index(".wait()")
    assert text.count(".wait()") == 1
    assert text.count("torch.mm(", started, done) == 1
    assert text.count("torch.mm(", done) == 1


@pytest.mark.parametrize("op", [AllGather(("a",), 0, 2), AllReduce(("a",), "sum")])
def test_a_wait_stands_where_the_program_has_it(op: Collective) -> None:
    """Before work that does not need the result, if the program says so."""
    builder = Builder()
    x = builder.input(TensorType((4, 4), DType.float32), "x")
    pending = builder.apply(Start(op), x)
    (whole,) = builder.apply(Wait(), *pending)
    work = ops.matmul(x, x)
    graph = builder.build({"y": ops.matmul(whole, work), "whole": whole})
    text = write(program_of(Mesh(a=2), graph)).text
    done = text.index(".wait()")
    assert text.count(".wait()") == 1
    assert text.count("torch.mm(", 0, done) == 0
    assert text.count("torch.mm(", done) == 2


@pytest.mark.parametrize("op", [AllGather(("a",), 0, 2), AllReduce(("a",), "sum")])
def test_what_is_compiled_has_its_collectives_where_they_start(op: Collective) -> None:
    builder = Builder()
    x = builder.input(TensorType((4, 4), DType.float32), "x")
    pending = builder.apply(Start(op), x)
    work = ops.matmul(x, x)
    (whole,) = builder.apply(Wait(), *pending)
    graph = builder.build({"y": ops.matmul(whole, work)})
    text = write(program_of(Mesh(a=2), graph), codegen=CodegenOptions(compiled=True)).text
    made = text.index(f"{op.name}_now(")
    assert "wait" not in text
    assert text.count("torch.mm(", 0, made) == 0
    assert text.count("torch.mm(", made) == 2
