"""Graphs for tests, and running them: on one device with gradients, or sharded over a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from mithril import ops
from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.cost import Hardware
from mithril.engine import Engine
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.shards import trim_padding
from mithril.ir import Builder, Graph
from mithril.ir.rewrite import walk
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import collective_of
from mithril.plan import Plan, Program
from mithril.sharding import FREE, UNSAID, Layout
from mithril.transform import cotangent_name, gradient_of
from mithril.types import DType, TensorType

F32 = DType.float32
Specs = Mapping[str, P | Sharding]


@dataclass(frozen=True)
class Ran:
    """A plan, what it computed, and the collectives that were carried out."""

    plan: Plan
    outputs: dict[str, np.ndarray]
    executed: list[tuple[str, tuple[str, ...], int]]

    def rows(self, phase: str) -> list[tuple[str, tuple[str, ...], int]]:
        """Return kind, axes and bytes of the plan's collectives of one phase."""
        return [(r.kind, r.axes, r.bytes) for r in self.plan.collectives() if r.phase == phase]

    def members(self, phase: str) -> list[tuple[str, tuple[str, ...], int]]:
        """Return the same of each tensor by itself, that of a bucket in its place."""
        return [(kind, axes, size) for kind, axes, size, _ in members(self.plan, phase)]


Member = tuple[str, tuple[str, ...], int, int]


def members(plan: Plan, phase: str) -> list[Member]:
    """Return kind, axes, bytes and times of what each collective moves of each tensor."""
    return [
        (op.name, plan.mesh.join_axes(op.axes), op.count_bytes([x.type]), times)
        for stage in plan.stages
        for node, times in walk(stage.program.graph)
        if (op := collective_of(node.op)) is not None and node.phase == phase
        for x in node.inputs
    ]


def mlp(b: int = 4, s: int = 4, d: int = 32, h: int = 64) -> Graph:
    """Two linear layers with biases and a relu between them."""
    builder = Builder()
    x = builder.input(TensorType((b, s, d), F32), "x")
    up = builder.input(TensorType((h, d), F32), "up")
    up_bias = builder.input(TensorType((h,), F32), "up_bias")
    down = builder.input(TensorType((d, h), F32), "down")
    down_bias = builder.input(TensorType((d,), F32), "down_bias")
    with builder.at(scope="up"):
        hidden = ops.relu(ops.einsum("bsd,hd->bsh", x, up) + up_bias)
    with builder.at(scope="down"):
        y = ops.einsum("bsh,dh->bsd", hidden, down) + down_bias
    return builder.build({"y": y})


MLP_PARAMETERS = ("up", "up_bias", "down", "down_bias")
MEGATRON_MLP = {"up": P("tensor", None), "up_bias": P("tensor"), "down": P(None, "tensor")}


def block(b: int = 2, s: int = 8, d: int = 32, heads: int = 4, h: int = 64) -> Graph:
    """A pre-norm transformer block with causal attention and a gelu MLP."""
    builder = Builder()
    made: dict[str, object] = {}

    def parameter(name: str, *shape: int) -> object:
        return builder.input(TensorType(shape, F32), name)

    x = parameter("x", b, s, d)
    for name, shape in block_shapes(d, h).items():
        made[name] = parameter(name, *shape)

    def linear(name: str, value: object) -> object:
        with builder.at(scope=name):
            product = ops.einsum("bsi,oi->bso", value, made[f"{name}.weight"])
            return product + made[f"{name}.bias"]

    def norm(name: str, value: object) -> object:
        with builder.at(scope=name):
            return ops.layer_norm(value, made[f"{name}.gain"], made[f"{name}.bias"])

    normed = norm("norm1", x)
    q, k, v = (linear(n, normed).reshape(b, s, heads, d // heads) for n in ("q", "k", "v"))
    with builder.at(scope="attention"):
        seen = ops.attention(q, k, v, causal=True).reshape(b, s, d)
    x = x + linear("o", seen)
    hidden = ops.gelu(linear("up", norm("norm2", x)))
    return builder.build({"y": x + linear("down", hidden)})


def block_shapes(d: int = 32, h: int = 64) -> dict[str, tuple[int, ...]]:
    """Return the parameter shapes of `block`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (out, inner) in {
        "q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "up": (h, d), "down": (d, h),
    }.items():  # fmt: skip
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, inner), (out,)
    for name in ("norm1", "norm2"):
        shapes[f"{name}.gain"], shapes[f"{name}.bias"] = (d,), (d,)
    return shapes


BLOCK_PARAMETERS = tuple(block_shapes())
MEGATRON_BLOCK = {
    **{f"{name}.weight": P("tensor", None) for name in ("q", "k", "v", "up")},
    **{f"{name}.bias": P("tensor") for name in ("q", "k", "v", "up")},
    **{f"{name}.weight": P(None, "tensor") for name in ("o", "down")},
}


def values_for(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random values for the inputs of a graph and for the gradients of its outputs."""
    rng = np.random.default_rng(seed)
    types = {value.name: value.type for value in graph.inputs}
    types |= {cotangent_name(name): value.type for name, value in graph.outputs.items()}
    return {
        name: (0.5 * rng.standard_normal(t.shape)).astype(t.dtype.numpy)
        if t.dtype.is_float
        else rng.integers(0, 4, t.shape).astype(t.dtype.numpy)
        for name, t in types.items()
    }


def run(
    graph: Graph,
    mesh: Mesh,
    values: Mapping[str, np.ndarray],
    inputs: Specs | None = None,
    *,
    compute: Sequence[str] = (),
    free: Sequence[str] = (),
    at_rest: Specs | None = None,
    differentiated: Sequence[str] = (),
    gradients: Specs | None = None,
    outputs: Specs | None = None,
    kernels: frozenset[str] | None = None,
    hardware: Hardware | None = None,
    opened: Callable[[Mesh], Engine] = NumpyEngine,
    options: PlanOptions | None = None,
) -> Ran:
    """Plan a graph on a mesh and run the plan: on simulated devices, unless told on which.

    Simulated devices tell the collectives they carry out.
    """
    engine = opened(mesh)
    types = {value.name: value.type for value in graph.inputs}
    results = {name: value.type for name, value in graph.outputs.items()}

    def placed(specs: Specs | None, of: Mapping[str, TensorType]) -> dict[str, Sharding]:
        return {
            n: spec if isinstance(spec, Sharding) else Sharding.of(mesh, spec, of[n].rank)
            for n, spec in (specs or {}).items()
        }

    lies, rests = placed(inputs, types), placed(at_rest, types)
    layouts: dict[str, Layout] = {}
    for name in types:
        computed = lies.get(name) if name in compute or name in rests else None
        layouts[name] = Layout(
            FREE if name in free else rests.get(name, lies.get(name)) if name in lies else None,
            computed,
            binds=name in compute,
            rests=rests.get(name),
        )
    for name, leaves in placed(outputs, results).items():
        layouts[name] = replace(layouts.get(name, UNSAID), leaves=leaves)
    for name, arrives in placed(gradients, results).items():
        layouts[cotangent_name(name)] = Layout(arrives)
    request = Request(layouts, tuple(results) if differentiated else None, tuple(differentiated))
    target = Target.of(engine)
    target = target if kernels is None else replace(target, kernels=kernels)
    target = target if hardware is None else replace(target, hardware=hardware)
    plan = make_plan(graph, request, target, options)
    found, executed = execute(engine, plan.stages[0].program, values)
    return Ran(plan, found, executed)


def execute(
    engine: Engine, program: Program, values: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], list[tuple[str, tuple[str, ...], int]]]:
    """Return the outputs of a local program, put together, and what simulated devices exchanged."""
    verify(program.graph)
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box])
        for port in program.inputs
    ]
    executed: list[tuple[str, tuple[str, ...], int]] = []
    is_told = isinstance(engine, NumpyEngine)
    observe = (lambda told: executed.append(told.row)) if is_told else None
    made = engine.lower(program)(handles, observe)
    found = {}
    for port, held in zip(program.outputs, made, strict=True):
        whole = np.full(
            port.type.shape, np.nan if port.type.dtype.is_float else -1, port.type.dtype.numpy
        )
        for device in range(engine.mesh.size):
            box = port.sharding.box(device, port.type.shape)
            whole[box] = trim_padding(engine.shard(held, port.sharding, device), box)
        found[port.name] = whole
    return found, executed


def on_one_device(
    graph: Graph, values: Mapping[str, np.ndarray], differentiated: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return outputs and gradients computed on one device."""
    return run(graph, Mesh(), values, differentiated=differentiated).outputs


__all__ = [
    "BLOCK_PARAMETERS", "MEGATRON_BLOCK", "MEGATRON_MLP", "MLP_PARAMETERS", "Ran", "block",
    "block_shapes", "execute", "gradient_of", "mlp", "on_one_device", "run", "values_for",
]  # fmt: skip
