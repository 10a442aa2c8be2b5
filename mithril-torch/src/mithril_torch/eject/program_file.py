"""Programs as text for people: to read, and as a file that runs without Mithril.

The file has the source of the functions that its program calls, the program, a table of what goes
in and comes out, and what it takes to run one step under plain Python or torchrun.
"""

from __future__ import annotations

import ast
import base64
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from mithril.spi import (
    BackendError,
    Mesh,
    ModelView,
    Plan,
    Port,
    all_nodes,
    carry,
    kernels_for,
    listing,
)
from mithril.spi.ops import UserOp, uses_host

from mithril_torch.eject.dependency_closure import DependencyClosure, names_in
from mithril_torch.engine_view import EngineView
from mithril_torch.kernels.callable import kernels_on
from mithril_torch.kernels.expression import dtype
from mithril_torch.program.module import ProgramText, write
from mithril_torch.program.staged import write_plan

HEADER = '''\
"""{what}, on {devices}, as plain PyTorch.

Written by Mithril {version}; needs PyTorch {torch} or later and nothing else. It runs one step of
random tensors, or of those in a file:

    {start} {file}
    {start} {file} --tensors in.pt --save out.pt

in.pt is a torch.save of a dict of whole tensors by the names in INPUTS; out.pt gets those of
OUTPUTS. To use it in a program: `load(device, rank)` returns the function that runs a step with
this process's parts, in the order of INPUTS; `part_of` cuts them out, and `whole_of` joins them.
"""
'''
LEAST_TORCH = "2.13"
LARGEST_CONSTANT = 1 << 20
"""Bytes of a constant that is written out in a file."""


def code(compiled: ModelView[EngineView], gradients: bool | None = None) -> str:
    """Return the program of the last plan as the Python text that runs.

    Args:
        compiled: a compiled model of a PyTorch backend.
        gradients: whether it shall be the program that returns gradients, too; by default as in
            the last plan.
    """
    plan = _plan(compiled, gradients)
    each = "each of " if plan.mesh.size > 1 else ""
    head = f"# {_direction(compiled, plan)}, on {each}{_devices(plan.mesh)}"
    return f"{head}\n\n{_generate(compiled, plan).text}"


def eject(
    compiled: ModelView[EngineView], path: str | os.PathLike[str], gradients: bool | None = None
) -> Path:
    """Write the program of the last plan to a file that needs PyTorch only, and return its path.

    Args:
        compiled: a compiled model of a PyTorch backend.
        path: the file; one that is there is replaced.
        gradients: whether it shall be the program that returns gradients, too; by default as in
            the last plan.

    Raises:
        BackendError: the program calls a kernel that a user gave an op, or copies to the host
            arena, or the file cannot be written.
    """
    plan, target = _plan(compiled, gradients), Path(path)
    if any(uses_host(stage.program.graph) for stage in plan.stages):
        raise BackendError(
            "program copies to the host arena, which a file without Mithril does not have; leave "
            "out activation_offload and spill_to_host"
        )
    generated = _generate(compiled, plan)
    if generated.users:
        nodes = (node for stage in plan.stages for node in all_nodes(stage.program.graph))
        names = {node.op.name for node in nodes if isinstance(node.op, UserOp)}
        raise BackendError(
            f"ops {listing(sorted(names))} have kernels of their own for 'torch', which a file "
            f"without Mithril cannot call; give define_op an expand= instead"
        )
    lines = _file(compiled, plan, generated, target.name)
    _replace(target, "".join(f"{line}\n" for line in lines))
    return target


def _plan(compiled: ModelView[EngineView], gradients: bool | None) -> Plan:
    """Return the last plan, or that for the same arrays in the other direction."""
    plan = compiled.plan
    if gradients is None or gradients == _is_joint(compiled, plan):
        return plan
    ports = {port.name: port for port in plan.inputs}
    parameters = {n: (ports[n].type, ports[n].sharding) for n in compiled.parameters}
    return compiled.program_for(
        {name: ports[name].type for name in compiled.inputs},
        gradients=gradients,
        differentiable=compiled.differentiable,
        parameters=parameters,
    ).plan


def _is_joint(compiled: ModelView[EngineView], plan: Plan) -> bool:
    return any(_kind_of_output(compiled, port) == "gradient" for port in plan.outputs)


def _generate(compiled: ModelView[EngineView], plan: Plan) -> ProgramText:
    engine = compiled.engine
    kernels = kernels_for(engine.name, kernels_on(engine.device))
    codegen = replace(engine.codegen, tracks_steps=False)
    if plan.only_stage is None:
        return write_plan(plan, kernels, codegen)
    return write(plan.only_stage.program, kernels, codegen=codegen)


def _direction(compiled: ModelView[EngineView], plan: Plan) -> str:
    return "Forward and backward" if _is_joint(compiled, plan) else "Forward"


def _devices(mesh: Mesh) -> str:
    axes = ", ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    return f"{mesh.size} devices ({axes})" if mesh.size > 1 else "1 device"


def _file(
    compiled: ModelView[EngineView], plan: Plan, generated: ProgramText, name: str
) -> Iterator[str]:
    """Yield the lines of a file."""
    mesh, closure = plan.mesh, DependencyClosure()
    closure.add("mithril_torch.eject.standalone", ["main"])
    before = set(closure.definitions)
    closure.add("mithril_torch.program.runtime_library", _names(generated))
    ours = {name: text for name, text in closure.definitions.items() if name in before}
    start = f"torchrun --nproc-per-node {mesh.size}" if mesh.size > 1 else "python"
    yield HEADER.format(
        what=_direction(compiled, plan),
        devices=_devices(mesh),
        start=start,
        file=re.sub(r"[^\w.-]", "_", name),
        version=version("mithril-core"),
        torch=LEAST_TORCH,
    )
    yield "from __future__ import annotations\n"
    yield from closure.imports
    yield from _section("What the program calls")
    yield from _separate(text for name, text in closure.definitions.items() if name not in ours)
    yield from _section("What runs it")
    yield from _separate(ours.values())
    yield from _section("The program")
    yield f"\nRANKS = {mesh.size}"
    yield from _table("INPUTS", _rows(plan, plan.inputs, compiled, _kind_of_input))
    yield from _table("OUTPUTS", _rows(plan, plan.outputs, compiled, _kind_of_output))
    yield from _constants(compiled)
    yield "\n\ndef load(device, rank):"
    yield '    """Return the function that runs a step on this process\'s device."""'
    lines = generated.text.replace("\n\n\n", "\n\n").splitlines()
    yield from (f"    {line}" if line else "" for line in lines)
    yield "    return run"
    yield '\n\nif __name__ == "__main__":'
    yield "    main(RANKS, INPUTS, OUTPUTS, load, constants=CONSTANTS)"


def _names(generated: ProgramText) -> frozenset[str]:
    return names_in(ast.parse(generated.text))


def _section(title: str) -> Iterator[str]:
    yield f"\n\n# {'-' * 20} {title}"


def _separate(texts: Iterable[str]) -> Iterator[str]:
    """Yield definitions with two empty lines around functions and classes."""
    is_after_block = True
    for text in texts:
        is_block = text.startswith(("def ", "class ", "@"))
        yield ("\n\n" if is_block or is_after_block else "") + text
        is_after_block = is_block


def _table(name: str, rows: Iterable[str]) -> Iterator[str]:
    yield f"{name} = ("
    yield from (f"    {row}," for row in rows)
    yield ")"


def _constants(compiled: ModelView[EngineView]) -> Iterator[str]:
    """Yield the values of arrays that layers captured, but for large ones."""
    yield "CONSTANTS = {"
    for name, array in compiled.captured.items():
        if array.type.nbytes > LARGEST_CONSTANT:
            continue
        text = base64.b64encode(zlib.compress(array.numpy().tobytes())).decode()
        yield f"    {name!r}: ("
        yield from (f"        {part.group()!r}" for part in re.finditer(".{1,80}", text))
        yield "    ),"
    yield "}"


def _rows(
    plan: Plan,
    ports: Iterable[Port],
    compiled: ModelView[EngineView],
    kind: Callable[[ModelView[EngineView], Port], str],
) -> Iterator[str]:
    for port in ports:
        sharding = port.sharding
        if plan.only_stage is not None:
            sharding = carry(sharding, plan.only_stage.program.mesh)
        axes = {axis.name: axis.size for axis in sharding.mesh.axes if axis.size > 1}
        is_of = f"{kind(compiled, port)!r}, {port.type.shape}, {dtype(port.type)}"
        where = f"{sharding.dims}, {axes}, {sharding.mesh.row_major}"
        yield f"Port({port.name!r}, {is_of}, {where})"


def _kind_of_input(compiled: ModelView[EngineView], port: Port) -> str:
    if port.name in compiled.inputs:
        return "input"
    if port.name in compiled.parameters:
        return "parameter"
    if port.name in compiled.captured:
        return "constant"
    return "seed" if port.name == "seed" else "output gradient"


def _kind_of_output(compiled: ModelView[EngineView], port: Port) -> str:
    return "output" if port.name in compiled.outputs else "gradient"


def _replace(path: Path, text: str) -> None:
    """Write a file that is complete as soon as it is there."""
    partial_file = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        partial_file.write_text(text, encoding="utf-8")
        partial_file.replace(path)
    except OSError as error:
        if partial_file.exists():
            partial_file.unlink()
        raise BackendError(
            f"file '{path}' cannot be written; {error}; give another path"
        ) from error
