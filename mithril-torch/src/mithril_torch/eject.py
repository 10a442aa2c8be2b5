"""Programs as text for people: to read, and as a file that runs without Mithril.

The file has the source of the functions that its program calls, the program, a table of what goes
in and comes out, and what it takes to run one step under plain Python or torchrun.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mithril.engine.kernels.custom import kernels_for
from mithril.errors import BackendError, listing
from mithril.ir import Port, Program
from mithril.ir.repeat import all_nodes
from mithril.mesh import Mesh, carry
from mithril.ops.definition import UserOp

from mithril_torch.collect import Collected, names_in
from mithril_torch.kernels.callable import kernels_on
from mithril_torch.kernels.registry import dtype
from mithril_torch.source import Written, write

HEADER = '''\
"""{what}, on {devices}, as plain PyTorch.

Written by Mithril {version}; needs PyTorch {torch} or later and nothing else. It runs one step of
random tensors, or of those in a file:

    {start} {file}
    {start} {file} --tensors in.pt --save out.pt

in.pt is a torch.save of a dict of whole tensors by the names in INPUTS; out.pt gets those of
OUTPUTS. To use it in a program: `load(device)` returns the function that runs a step with this
process's parts, in the order of INPUTS; `part_of` cuts them out, and `whole_of` joins them.
"""
'''
LEAST_TORCH = "2.13"


def code(compiled: Any, gradients: bool | None = None) -> str:
    """Return the program of the last plan as the Python text that runs.

    Args:
        compiled: a compiled model of a PyTorch backend.
        gradients: whether it shall be the program that returns gradients, too; by default as in
            the last plan.
    """
    program = _program(compiled, gradients)
    each = "each of " if program.mesh.size > 1 else ""
    head = f"# {_direction(compiled, program)}, on {each}{_devices(program.mesh)}"
    return f"{head}\n\n{_written(compiled, program).text}"


def eject(compiled: Any, path: str | os.PathLike[str], gradients: bool | None = None) -> Path:
    """Write the program of the last plan to a file that needs PyTorch only, and return its path.

    Args:
        compiled: a compiled model of a PyTorch backend.
        path: the file; one that is there is replaced.
        gradients: whether it shall be the program that returns gradients, too; by default as in
            the last plan.

    Raises:
        BackendError: the program calls a kernel that a user gave an op, or the file cannot be
            written.
    """
    program, target = _program(compiled, gradients), Path(path)
    written = _written(compiled, program)
    if written.users:
        names = {n.op.name for n in all_nodes(program.graph) if isinstance(n.op, UserOp)}
        raise BackendError(
            f"ops {listing(sorted(names))} have kernels of their own for 'torch', which a file "
            f"without Mithril cannot call; give define_op an expand= instead"
        )
    lines = _file(compiled, program, written, target.name)
    _replace(target, "".join(f"{line}\n" for line in lines))
    return target


def _program(compiled: Any, gradients: bool | None) -> Program:
    """Return the program of the last plan, or that for the same arrays in the other direction."""
    program: Program = compiled.plan.stages[0].program
    if gradients is None or gradients == _is_joint(compiled, program):
        return program
    ports = {port.name: port for port in program.inputs}
    parameters = {n: (ports[n].type, ports[n].sharding) for n in compiled.parameter_names}
    wiring = compiled.wiring(
        {name: ports[name].type for name in compiled.input_names},
        gradients=gradients,
        differentiable=compiled.settings.differentiable,
        parameters=parameters,
    )
    found: Program = wiring.program
    return found


def _is_joint(compiled: Any, program: Program) -> bool:
    return any(_kind_of_output(compiled, port) == "gradient" for port in program.outputs)


def _written(compiled: Any, program: Program) -> Written:
    engine = compiled.engine
    return write(
        program,
        kernels_for(engine.name, kernels_on(engine.device)),
        style=replace(engine.style, watched=False),
    )


def _direction(compiled: Any, program: Program) -> str:
    return "Forward and backward" if _is_joint(compiled, program) else "Forward"


def _devices(mesh: Mesh) -> str:
    axes = ", ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    return f"{mesh.size} devices ({axes})" if mesh.size > 1 else "1 device"


def _file(compiled: Any, program: Program, written: Written, name: str) -> Iterator[str]:
    """Yield the lines of a file."""
    mesh, collected = program.mesh, Collected()
    collected.add("mithril_torch.standalone", ["main"])
    before = set(collected.definitions)
    collected.add("mithril_torch.prelude", _names(written))
    ours = {name: text for name, text in collected.definitions.items() if name in before}
    start = f"torchrun --nproc-per-node {mesh.size}" if mesh.size > 1 else "python"
    yield HEADER.format(
        what=_direction(compiled, program),
        devices=_devices(mesh),
        start=start,
        file=re.sub(r"[^\w.-]", "_", name),
        version=version("mithril-core"),
        torch=LEAST_TORCH,
    )
    yield "from __future__ import annotations\n"
    yield from collected.imports
    yield from _section("What the program calls")
    yield from _apart(text for name, text in collected.definitions.items() if name not in ours)
    yield from _section("What runs it")
    yield from _apart(ours.values())
    yield from _section("The program")
    sizes = {axis.name: axis.size for axis in mesh.axes}
    yield f"\nMESH = {sizes}"
    yield from _table("INPUTS", _rows(program.inputs, compiled, _kind_of_input, mesh))
    yield from _table("OUTPUTS", _rows(program.outputs, compiled, _kind_of_output, mesh))
    yield "\n\ndef load(device):"
    yield '    """Return the function that runs a step on this process\'s device."""'
    lines = written.text.replace("\n\n\n", "\n\n").splitlines()
    yield from (f"    {line}" if line else "" for line in lines)
    yield "    return run"
    yield '\n\nif __name__ == "__main__":'
    yield "    main(MESH, INPUTS, OUTPUTS, load)"


def _names(written: Written) -> frozenset[str]:
    return names_in(ast.parse(written.text))


def _section(title: str) -> Iterator[str]:
    yield f"\n\n# {'-' * 20} {title}"


def _apart(texts: Iterable[str]) -> Iterator[str]:
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


def _rows(
    ports: Iterable[Port], compiled: Any, kind: Callable[[Any, Port], str], mesh: Mesh
) -> Iterator[str]:
    for port in ports:
        shape, split = port.type.shape, carry(port.sharding, mesh).dims
        is_of = f"{kind(compiled, port)!r}, {shape}, {dtype(port.type)}, {split}"
        yield f"Port({port.name!r}, {is_of})"


def _kind_of_input(compiled: Any, port: Port) -> str:
    if port.name in compiled.input_names:
        return "input"
    if port.name in compiled.parameter_names:
        return "parameter"
    return "seed" if port.name == "seed" else "output gradient"


def _kind_of_output(compiled: Any, port: Port) -> str:
    return "output" if port.name in compiled.output_names else "gradient"


def _replace(path: Path, text: str) -> None:
    """Write a file that is complete as soon as it is there."""
    being_written = path.parent / f".{path.name}.{os.getpid()}.part"
    try:
        being_written.write_text(text, encoding="utf-8")
        being_written.replace(path)
    except OSError as error:
        if being_written.exists():
            being_written.unlink()
        raise BackendError(
            f"file '{path}' cannot be written; {error}; give another path"
        ) from error
