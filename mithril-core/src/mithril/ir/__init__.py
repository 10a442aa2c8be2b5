"""The intermediate representation: graphs, the op protocol, sharding rules.

Everything here is plain data and knows no devices and no framework.
"""

from mithril.ir.checkpoint import Checkpoint
from mithril.ir.constant import Constant
from mithril.ir.graph import Algorithm, Alternative, Cause, Graph, Node, Phase, Value
from mithril.ir.op import Cost, Cotangents, Group, Op, Shard, Tensors, Types, register, registry
from mithril.ir.operand import AnyOperand, Operand, apply, apply_one
from mithril.ir.repeat import Repeat
from mithril.ir.reverse import Sweep, active_values
from mithril.ir.rule import Rule, elementwise_rule
from mithril.ir.source import Source
from mithril.ir.start import Start, Wait
from mithril.ir.tensor import Builder, Tensor

__all__ = [
    "Algorithm",
    "Alternative",
    "AnyOperand",
    "Builder",
    "Cause",
    "Checkpoint",
    "Constant",
    "Cost",
    "Cotangents",
    "Graph",
    "Group",
    "Node",
    "Op",
    "Operand",
    "Phase",
    "Repeat",
    "Rule",
    "Shard",
    "Source",
    "Start",
    "Sweep",
    "Tensor",
    "Tensors",
    "Types",
    "Value",
    "Wait",
    "active_values",
    "apply",
    "apply_one",
    "elementwise_rule",
    "register",
    "registry",
]
