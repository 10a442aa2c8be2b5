"""What waits for a collective, and nothing else for it, is done last."""

from __future__ import annotations

from mithril import ops
from mithril.ir import Builder, Graph, Node, Start, Value, Wait
from mithril.mesh import Mesh
from mithril.ops import Exp, Multiply, Sum
from mithril.ops.collective import AllGather, AllReduce
from mithril.types import DType, TensorType
from mithril_torch.program.module import write
from mithril_torch.program.schedule_late import defer_uncritical

from tests.engine.programs import program_of


def tensor(*shape: int) -> Value:
    return Value(TensorType(shape, DType.float32))


def applied(op: object, *inputs: Value) -> Node:
    return Node(op, inputs, tuple(map(Value, op.infer([x.type for x in inputs]))))


def test_a_loss_is_scaled_after_the_backward_computation():
    x = tensor(3)
    total = applied(Sum((0,), False), x)
    reduced = applied(AllReduce(("data",), "sum"), total.outputs[0])
    loss = applied(Multiply(), reduced.outputs[0], reduced.outputs[0])
    slope = applied(Exp(), x)
    gradient = applied(AllReduce(("data",), "sum"), slope.outputs[0])
    outputs = {"loss": loss.outputs[0], "gradient": gradient.outputs[0]}
    found = defer_uncritical(Graph((x,), (total, reduced, loss, slope, gradient), outputs))
    assert found.nodes == (total, reduced, slope, gradient, loss)


def test_what_another_collective_waits_for_stays():
    x = tensor(3)
    first = applied(AllReduce(("data",), "sum"), x)
    middle = applied(Exp(), first.outputs[0])
    second = applied(AllReduce(("data",), "sum"), middle.outputs[0])
    nodes = (first, middle, second)
    assert defer_uncritical(Graph((x,), nodes, {"y": second.outputs[0]})).nodes == nodes


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
