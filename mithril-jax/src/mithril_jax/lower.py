"""From a program to a function that JAX traces: node by node, each by its kernel.

On several devices the local graph runs under `shard_map`: collectives are the plan's, none is
inferred. A loop becomes a `scan`. `after` becomes what the compiler of the platform does not look
through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from mithril.spi import (
    Graph,
    Kernel,
    KernelChecks,
    Node,
    Op,
    Program,
    Value,
    Whole,
    all_nodes,
    carry,
    join_starts,
    regions,
)
from mithril.spi.ops import AdamWStep, After, FromHost, Repeat

from mithril_jax.devices import Devices, spec_of
from mithril_jax.hlo import OUTSIDE
from mithril_jax.padding import from_padded, to_padded

if TYPE_CHECKING:
    Gate = Callable[[Any, Any, Any], Any]

_CHECKS = KernelChecks("jax")
Arrays = Sequence[Any]
Function = Callable[[Arrays, Any], list[Any]]
"""Takes the inputs of a graph and a flag that is false, and returns its outputs."""


def needs_flag(program: Program, platform: str) -> bool:
    """Return whether a program takes a flag, false, as one more argument; see `_gate`."""
    graph = join_starts(program.graph)
    kept_apart = any(
        isinstance(node.op, After | FromHost) and len(node.inputs) > 1 for node in all_nodes(graph)
    )
    is_repeated = any(find_reissued(region.graph) for region in regions(graph))
    return platform == "cpu" and (kept_apart or is_repeated)


def function_of(
    program: Program, devices: Devices, kernels: Mapping[str, Kernel]
) -> Callable[..., list[Any]]:
    """Return the function of a program on arrays that hold the parts of all devices.

    Args:
        program: local graph and how its inputs and outputs lie.
        devices: where it will run.
        kernels: kernel factories by op name.
    """
    flagged = needs_flag(program, devices.platform)
    after, at_inputs = (_gate, _gate_input) if flagged else (_barrier, None)
    run = graph_function(join_starts(program.graph), kernels, after, at_inputs=at_inputs)

    def local(*inputs: Any) -> list[Any]:
        given, flag = (inputs[:-1], inputs[-1]) if flagged else (inputs, None)
        return run(given, flag)

    if program.mesh.size == 1:
        return local
    input_specs = [spec_of(carry(port.sharding, program.mesh)) for port in program.inputs]
    output_specs = [spec_of(carry(port.sharding, program.mesh)) for port in program.outputs]
    if flagged:
        input_specs.append(jax.sharding.PartitionSpec())
    mapped: Callable[..., list[Any]] = jax.shard_map(
        local,
        mesh=devices.jax_mesh(program.mesh),
        in_specs=tuple(input_specs),
        out_specs=output_specs,
        check_vma=False,
    )
    return mapped


def output_order(program: Program) -> list[int]:
    """Return the positions of the outputs in the order in which XLA shall be given them: by size.

    On one device XLA makes what stands first early. A bias' gradient needs the whole way back to
    its layer; once that is gone, the products that give weights' gradients wait for nothing but
    their turn, and several run at once. In the order of the layers each of them holds up the next
    layer on the way back, or keeps activations for longer. Of equal size, what is ready first.

    A program of elementwise ops, such as an optimiser's update, waits for memory alone. Its outputs
    stay in order: XLA then reads moments from the last to the first after it has made them from the
    first to the last, so that many are still in a cache.
    """
    if all(map(_is_elementwise, program.graph.nodes)):
        return list(range(len(program.outputs)))
    at = {value: i for i, node in enumerate(program.graph.nodes) for value in node.outputs}
    values = list(program.graph.outputs.values())

    def key(position: int) -> tuple[int, int]:
        value = values[position]
        return value.type.nbytes, at.get(value, -1)

    return sorted(range(len(values)), key=key)


def _is_elementwise(node: Node) -> bool:
    op = node.op
    return not node.inputs or op.is_pointwise or op.is_view or isinstance(op, AdamWStep)


def whole_function(
    whole: Whole, program: Program, devices: Devices, kernels: Mapping[str, Kernel]
) -> Callable[..., list[Any]]:
    """Return the function on whole tensors: XLA's partitioner finds collectives by itself.

    Values are constrained to lie as the plan says, except where a size does not divide evenly,
    which XLA does not take.

    Args:
        whole: the graph and where its values lie.
        program: how inputs and outputs lie; its collectives are not used.
        devices: where it will run.
        kernels: kernel factories by op name.
    """

    def constrain(value: Value, x: Any) -> Any:
        home = whole.homes.get(value)
        if home is None or home.partial or home.is_replicated or not home.is_even(x.shape):
            return x
        return lax.with_sharding_constraint(x, devices.sharding(home))

    run = graph_function(whole.graph, kernels, _barrier, constrain)

    def function(*inputs: Any) -> list[Any]:
        ports = zip(inputs, program.inputs, strict=True)
        given = [from_padded(x, port.type.shape, port.sharding) for x, port in ports]
        results = run(given, None)
        return [
            lax.with_sharding_constraint(
                to_padded(x, port.sharding), devices.sharding(carry(port.sharding, program.mesh))
            )
            for x, port in zip(results, program.outputs, strict=True)
        ]

    return function


def _identity(value: Value, x: Any) -> Any:
    return x


def graph_function(
    graph: Graph,
    kernels: Mapping[str, Kernel],
    after: Gate,
    made: Callable[[Value, Any], Any] = _identity,
    at_inputs: Gate | None = None,
) -> Function:
    """Return the function of a graph on arrays; `made` sees, and may change, what nodes make.

    Inputs of the graph are kept behind others by `at_inputs`, where that is another way.
    """
    again = find_reissued(graph)
    early = frozenset(graph.inputs if at_inputs is not None else ())

    def gate_of(node: Node) -> Gate:
        is_early = isinstance(node.op, After) and node.inputs[0] in early
        return at_inputs if at_inputs is not None and is_early else after

    steps = [
        (node, name_scope(node, number), _step(node, kernels, gate_of(node)), again.get(node))
        for number, node in enumerate(graph.nodes)
    ]
    outputs = list(graph.outputs.values())

    def run(inputs: Arrays, flag: Any) -> list[Any]:
        known: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
        for node, scope, step, earlier in steps:
            operands = [known[value] for value in node.inputs]
            with jax.named_scope(scope):
                if earlier is not None:
                    operands[0] = after(operands[0], known[earlier], flag)
                results = step(operands, flag)
            for value, x in zip(node.outputs, results, strict=True):
                known[value] = made(value, x)
        return [jnp.asarray(known[value]) for value in outputs]

    return run


def name_scope(node: Node, number: int) -> str:
    """Return the scope in which JAX traces a node: its phase and layer; see `hlo.read_scope`.

    Args:
        node: of a graph.
        number: its place there, by which collectives are known again.
    """
    scope = f"{node.phase.value}/{node.scope or OUTSIDE + node.op.name}"
    return f"{scope}/{number}" if node.op.is_collective else scope


def find_reissued(graph: Graph) -> dict[Node, Value]:
    """Return collectives that a plan issues anew, and for each the value that was made before it.

    A plan gathers a parameter once for the forward and once for the backward computation, so that
    no device keeps the whole of it in between; XLA would see one computation and do it once.
    """
    seen: set[tuple[Op, Value]] = set()
    found: dict[Node, Value] = {}
    for number, node in enumerate(graph.nodes):
        if node.op.is_collective:
            moved = {(node.op, value) for value in node.inputs}
            if seen & moved:
                found[node] = graph.nodes[number - 1].outputs[0]
            seen |= moved
    return found


def _step(node: Node, kernels: Mapping[str, Kernel], after: Gate) -> Function:
    op = node.op
    if isinstance(op, After):
        return lambda inputs, flag: [after(inputs[0], inputs[1], flag)]
    if isinstance(op, Repeat):
        return _loop(op, kernels, after)
    made = _CHECKS.make(node, kernels)
    # Looked at when it is traced; a collective may return a list of one.
    kernel = made if op.is_collective else _CHECKS.guard(node, made)
    if isinstance(op, FromHost) and len(node.inputs) > 1:
        return lambda inputs, flag: [kernel(after(inputs[0], inputs[1], flag))]
    if len(node.outputs) == 1:
        return lambda inputs, flag: _one(kernel(*inputs))
    return lambda inputs, flag: list(kernel(*inputs))


def _one(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _loop(op: Repeat, kernels: Mapping[str, Kernel], after: Gate) -> Function:
    body = graph_function(op.body, kernels, after)
    first_stacked = len(op.body.inputs) - op.stacked

    def run(inputs: Arrays, flag: Any) -> list[Any]:
        invariants = inputs[op.carried : first_stacked]

        def iteration(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            found = body([*carry, *invariants, *slices], flag)
            return found[: op.carried], found[op.carried :]

        last, stacks = lax.scan(
            iteration,
            list(map(jnp.asarray, inputs[: op.carried])),
            list(inputs[first_stacked:]),
            length=op.count,
            reverse=op.reverse,
        )
        return [*last, *stacks]

    return run


def no_after(x: Any, dependency: Any, flag: Any) -> Any:
    """Return x: inside an op nothing is kept apart."""
    return x


def _barrier(x: Any, dependency: Any, flag: Any) -> Any:
    """Keep x behind the dependency."""
    return lax.optimization_barrier((x, dependency))[0]


def _gate(x: Any, dependency: Any, flag: Any) -> Any:
    """Keep x behind the dependency on CPU, where XLA drops barriers before it fuses.

    No compiler knows that the flag is false, nor does it look into both branches.
    """
    return lax.cond(_close(dependency, flag), jnp.zeros_like, lambda value: value, x)


def _gate_input(x: Any, dependency: Any, flag: Any) -> Any:
    """Keep an input of a program behind the dependency on CPU.

    XLA copies inputs that a condition hands on, as it may not write to them, and all of them when
    the program starts. A choice by element goes into the kernels that read it; as nothing makes an
    input, there is nothing that these could compute again.
    """
    return lax.select(_close(dependency, flag), jnp.zeros_like(x), x)


def _close(dependency: Any, flag: Any) -> Any:
    """Return false, which is known once the dependency is there."""
    if not dependency.size:
        return flag
    first = lax.slice(lax.reshape(dependency, (dependency.size,)), (0,), (1,))[0]
    return flag & lax.eq(first, first)
