"""Which ops are one kernel, and what that reads and writes."""

from __future__ import annotations

from dataclasses import replace

from mithril import ops
from mithril.cost import SIMULATED
from mithril.cost.compiled_form import to_compiled_form
from mithril.cost.kernels import Known, find_kernels
from mithril.ir import Builder, Graph, Start, Tensor, Value, Wait
from mithril.ops.collective import AllReduce
from mithril.plan import Execution
from mithril.types import DType, TensorType

FUSES, EAGER = Execution(fuses=True), Execution()
X, BYTES = TensorType((8, 8), DType.float32), 256


def kernels_of(graph: Graph, execution: Execution) -> dict[str, int]:
    """Return the bytes of each kernel by its ops."""
    found = find_kernels(graph, execution).values()
    return {"+".join(node.op.name for node in kernel.nodes): kernel.bytes for kernel in found}


def built(function, *types: TensorType) -> Graph:
    builder = Builder()
    inputs = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
    made: Tensor | dict[str, Tensor] = function(*inputs)
    return builder.build(made if isinstance(made, dict) else {"y": made})


def test_a_chain_moves_what_is_at_its_border():
    graph = built(lambda x, y: ops.tanh(ops.add(ops.exp(x), y)), X, X)
    assert kernels_of(graph, FUSES) == {"exp+add+tanh": 3 * BYTES}
    assert kernels_of(graph, EAGER) == {"exp": 2 * BYTES, "add": 3 * BYTES, "tanh": 2 * BYTES}


def test_what_is_read_twice_is_read_once_at_the_border():
    graph = built(lambda x: ops.multiply(ops.exp(x), x), X)
    assert kernels_of(graph, FUSES) == {"exp+multiply": 2 * BYTES}


def test_a_reduction_ends_a_chain():
    graph = built(lambda x: ops.exp(ops.sum(ops.exp(x), axis=0)), X)
    assert kernels_of(graph, FUSES) == {"exp+sum": BYTES + 32, "exp": 64}


def test_an_output_of_the_graph_is_written():
    def function(x: Tensor) -> dict[str, Tensor]:
        e = ops.exp(x)
        return {"e": e, "y": ops.tanh(e)}

    assert kernels_of(built(function, X), FUSES) == {"exp": 2 * BYTES, "tanh": 2 * BYTES}


def test_what_is_cheap_is_computed_again_and_what_is_not_is_kept():
    def function(cheap, x: Tensor) -> dict[str, Tensor]:
        shared = cheap(x)
        return {"a": ops.exp(shared), "b": ops.tanh(shared)}

    cheap = built(lambda x: function(ops.negate, x), X)
    assert kernels_of(cheap, FUSES) == {"negate+exp": 2 * BYTES, "negate+tanh": 2 * BYTES}
    costly = built(lambda x: function(ops.exp, x), X)
    assert len(kernels_of(costly, FUSES)) == 2  # names of two kernels are the same
    assert sum(k.bytes for k in find_kernels(costly, FUSES).values()) == 6 * BYTES


def test_a_product_reads_what_its_neighbours_write():
    graph = built(lambda x, w: ops.exp(ops.matmul(ops.exp(x), w)), X, X)
    assert kernels_of(graph, FUSES) == {
        "exp": 2 * BYTES, "einsum": 3 * BYTES,
    }  # fmt: skip
    assert len(find_kernels(graph, FUSES)) == 3


def test_a_bias_is_part_of_a_product_where_the_engine_has_that():
    bias = TensorType((8,), DType.float32)
    graph = built(lambda x, w, b: ops.exp(ops.add(ops.matmul(x, w), b)), X, X, bias)
    own = Execution(adds_in_product=True)
    assert kernels_of(graph, own) == {"einsum+add": 3 * BYTES + 32, "exp": 2 * BYTES}
    both = Execution(fuses=True, adds_in_product=True)
    assert kernels_of(graph, both) == {"einsum+add": 3 * BYTES + 32, "exp": 2 * BYTES}
    assert kernels_of(graph, FUSES) == {"einsum": 3 * BYTES, "add+exp": 2 * BYTES + 32}
    square = built(lambda x, w, b: ops.add(ops.matmul(x, w), b), X, X, X)
    assert len(find_kernels(square, own)) == 2  # no vector


def test_a_view_is_no_kernel_and_reads_what_is_below():
    row = TensorType((8,), DType.float32)

    def function(x: Tensor, b: Tensor) -> Tensor:
        return ops.add(x, ops.broadcast_to(ops.reshape(b, (1, 8)), (8, 8)))

    expected = {"add": 2 * BYTES + 32}
    assert kernels_of(built(function, X, row), EAGER) == expected
    assert kernels_of(built(function, X, row), FUSES) == expected
    without = Execution(has_views=False)
    assert kernels_of(built(function, X, row), without) == {
        "reshape": 32, "broadcast": BYTES, "add": 3 * BYTES,
    }  # fmt: skip


def test_what_is_drawn_is_drawn_in_the_kernel_that_needs_it():
    seed = TensorType((), DType.uint32)
    graph = built(lambda x, s: ops.dropout(x, s, 0.1), X, seed)
    drawn = "random_bits+greater_equal+multiply+where"
    scalars = 4 * seed.nbytes  # the seed, the bound, the scale, and what is in the place of others
    assert kernels_of(graph, FUSES) == {drawn: 2 * BYTES + scalars}
    assert kernels_of(graph, EAGER)["random_bits"] == BYTES


def test_of_what_two_kernels_need_the_narrower_is_kept():
    """A mask of bytes rather than the words it is made of, though it is cheap to make."""
    seed = TensorType((), DType.uint32)

    def function(x: Tensor, y: Tensor, seed: Tensor) -> dict[str, Tensor]:
        kept = ops.bernoulli(seed, (8, 8), 0.9)
        return {"a": ops.where(kept, x, 0.0), "b": ops.where(kept, y, 0.0)}

    found = find_kernels(built(function, X, X, seed), FUSES).values()
    scalar = seed.nbytes  # the bound, and what is in the place of others
    made, read = 64 + seed.nbytes + scalar, 2 * BYTES + 64 + scalar
    assert sorted(kernel.bytes for kernel in found) == [made, read, read]


def test_what_keeps_kernels_apart_is_none_itself():
    graph = built(lambda x, y: ops.exp(ops.after(ops.exp(x), y)), X, X)
    assert kernels_of(graph, FUSES) == {"exp": 2 * BYTES}
    assert len(find_kernels(graph, FUSES)) == 2


def test_a_compiler_has_a_kernel_of_its_own_for_sums_of_columns():
    mine = replace(SIMULATED, op_rates={"column_sum": ((1.0, 1e3),)})
    for axes, name in (((0,), "column_sum"), ((1,), "sum"), ((0, 1), "sum")):
        graph = to_compiled_form(built(lambda x, axes=axes: ops.sum(x, axes), X))
        (kernel,) = find_kernels(graph, FUSES).values()
        assert [work[0] for work in kernel.work] == [name]
        assert (kernel.seconds(mine) == 64e-3) == (name == "column_sum")


def test_a_bias_is_added_within_no_wait():
    """A wait passes on several operands, which are no product of tensors."""
    builder = Builder()
    x, bias = builder.input(X, "x"), builder.input(TensorType((8,), DType.float32), "bias")
    pending = builder.apply(Start(AllReduce(("data",), "sum")), x, x)
    first, second = builder.apply(Wait(), *pending)
    graph = builder.build({"y": ops.add(first, bias), "z": second})
    assert kernels_of(graph, Execution(adds_in_product=True)) == {"add": 2 * BYTES + 32}


def test_products_of_several_matrices_have_a_rate_of_their_own():
    mine = replace(SIMULATED, op_rates={"batched_product": ((1.0, 1e6),)})
    narrow = TensorType((2, 8, 8), DType.bfloat16)
    cases = ((TensorType((2, 8, 8), DType.float32), "batched_product"), (narrow, "einsum"))
    for type, name in cases:
        graph = built(lambda x, y: ops.einsum("eab,ebc->eac", x, y), type, type)
        (kernel,) = find_kernels(graph, EAGER).values()
        assert [part[0] for part in kernel.work] == [name]
        assert (kernel.seconds(mine) == 2 * 2 * 8**3 / 1e6) == (name == "batched_product")
    (one,) = find_kernels(built(ops.matmul, X, X), EAGER).values()
    assert [part[0] for part in one.work] == ["einsum"]


def test_a_kernel_that_is_known_reads_below_the_views_of_its_own_graph():
    narrow = built(lambda row: ops.exp(ops.broadcast_to(row, (8, 8))), TensorType((8,), X.dtype))
    view, exp = narrow.nodes
    wide = Graph(
        (*narrow.inputs, x := Value(X, "x")),
        (replace(view, op=ops.Reshape((8, 8)), inputs=(x,)), exp),
        narrow.outputs,
    )
    known: Known = {}
    for graph, read in ((narrow, 32), (wide, BYTES), (narrow, 32)):
        (kernel,) = find_kernels(graph, EAGER, known=known).values()
        assert kernel.bytes == read + BYTES
    assert list(known) == [(view,), (exp,), (wide.nodes[0],)]
