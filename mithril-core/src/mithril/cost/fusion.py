"""Fusion: which values an engine never puts into memory, because they are inside its kernels.

The rules are those of XLA (`InstructionFusion`): a kernel takes in what is elementwise or moves
elements. What is cheap is computed anew in every kernel that needs it, if all that need it can take
it in; and where not, if it has one large operand at most, so that it is made for the others alone.
Anything else is made once. A sum over a dimension is a library's and takes in a product at most, of
operands that are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mithril.ir import Graph, Node, Value
from mithril.ops.arithmetic import Add, Divide, Multiply
from mithril.ops.elementwise import Elementwise
from mithril.ops.linalg import Einsum
from mithril.ops.reduce import Reduction
from mithril.ops.shape import Movement
from mithril.plan import Execution

Uses = Mapping[Value, Sequence[tuple[Node, int]]]


@dataclass(slots=True)
class Fusion:
    """What is inside the kernels of an engine.

    Args:
        unmade: values that are never in memory.
        inner: values that some of their users compute anew, with these users.
    """

    unmade: set[Value] = field(default_factory=set)
    inner: dict[Value, set[Node]] = field(default_factory=dict)

    def is_inside(self, value: Value, user: Node) -> bool:
        """Return whether a node computes one of its operands in its own kernel."""
        return user in self.inner.get(value, ())


def find_fusion(
    graph: Graph, uses: Uses, how: Execution, grows: Callable[[Node, Value], bool]
) -> Fusion:
    """Return what is inside the kernels of an engine.

    Args:
        graph: a local one.
        uses: of its values.
        how: the engine runs programs.
        grows: whether a node adds a term to something where that lies.
    """
    found = Fusion()
    if not (how.fuses or how.adds_in_product):
        return found
    outputs = frozenset(graph.outputs.values())
    kernels: dict[Value, set[Node]] = {}  # of values that are not made, which need them
    of_library: set[Node] = set()  # products that are a part of a sum
    for node in reversed(graph.nodes):
        if len(node.outputs) != 1 or node.outputs[0] in outputs:
            continue
        (value,) = node.outputs
        users = dict.fromkeys(user for user, _ in uses.get(value, ()))
        if how.adds_in_product and isinstance(node.op, Einsum):
            is_added = len(users) == 1 and _adds(next(iter(users)), value, grows)
            found.inner |= {value: set(users)} if is_added else {}
            found.unmade |= {value} if is_added else set()
        is_fusible = node.op.is_pointwise or isinstance(node.op, Movement)
        if not (how.fuses and is_fusible and users):
            continue
        taking = {user for user in users if _takes_in(user, node, of_library)}
        needed = {k for user in taking for k in kernels.get(user.outputs[0], {user})}
        if len(taking) == len(users) and (len(needed) == 1 or _is_cheap(node)):
            found.unmade.add(value)
            found.inner[value] = taking
            kernels[value] = needed
            if isinstance(next(iter(users)).op, Reduction):
                of_library.add(node)
        elif taking and _is_cheap(node) and _has_one_large_operand(node):
            found.inner[value] = {user for user in taking if not isinstance(user.op, Reduction)}
    return found


def _takes_in(user: Node, node: Node, of_library: set[Node]) -> bool:
    if isinstance(user.op, Reduction):
        return isinstance(node.op, Multiply)
    return isinstance(user.op, Elementwise | Movement) and user not in of_library


def _is_cheap(node: Node) -> bool:
    op = node.op
    if not op.is_pointwise:
        return True
    return isinstance(op, Elementwise) and op.flops <= 1 and not isinstance(op, Divide)


def _has_one_large_operand(node: Node) -> bool:
    size = node.outputs[0].type.nbytes
    return sum(value.type.nbytes >= size for value in set(node.inputs)) <= 1


def _adds(node: Node, product: Value, grows: Callable[[Node, Value], bool]) -> bool:
    """Return whether a node adds a vector to a product, or adds the product to what it is given."""
    if not isinstance(node.op, Add):
        return False
    others = [other for other in node.inputs if other is not product]
    is_vector = len(others) == 1 and others[0].type.rank == 1 < product.type.rank
    return is_vector or grows(node, product)
