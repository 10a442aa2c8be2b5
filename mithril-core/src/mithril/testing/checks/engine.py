"""What an engine says of itself, and that arrays come back as they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from mithril.engine import Engine
from mithril.engine.checks import check_executable
from mithril.engine.standard.namespace import NEEDED_DTYPES
from mithril.errors import nearest
from mithril.ir import Builder, registry
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import collectives
from mithril.plan import Port, Program
from mithril.runtime.checked_run import check_outputs
from mithril.testing.arrays import booleans, floats, integers
from mithril.testing.check import Check, Mismatch, Outcome
from mithril.testing.compare import describe_difference
from mithril.testing.levels import Level
from mithril.testing.running import require_kernels
from mithril.testing.target import Target
from mithril.types import DType, TensorType

SHAPES = ((), (1,), (5,), (4, 6), (5, 3), (0, 4), (2, 1, 3))


def list_engine_checks() -> Iterator[Check]:
    """Yield the checks of the engine itself."""
    for name, (run, devices) in CHECKS.items():
        yield Check("engine", name, run, Level.smoke, devices)


def check_names(target: Target, level: Level) -> Outcome:
    """Look at what the engine says of its ops, dtypes, collectives and devices."""
    engine = target.engine
    ops = {name for name, op in registry().items() if not op.is_collective}
    # An engine may have ops of its own, which its lowering puts in the place of others.
    _expect_names("kernels", engine.kernels)
    _expect_known("capabilities", engine.capabilities, set(collectives()))
    _expect_known("dtypes", engine.dtypes, set(DType))
    for dtype in NEEDED_DTYPES:
        _expect(
            dtype in engine.dtypes,
            f"dtypes lacks {dtype}, without which no model runs; where the library calls it "
            f"otherwise, name it so in a namespace of your own",
        )
    _expect(isinstance(engine.platform, str), f"platform is {engine.platform!r}, and no text")
    count, size = len(engine.devices), engine.mesh.size
    _expect(count == size, f"devices has {count} labels for {size} devices")
    local = set(engine.local_devices)
    _expect(
        bool(local) and local <= set(range(size)),
        f"local_devices are {sorted(local)} of {size} devices",
    )
    _expect(
        0 <= engine.process_index < engine.process_count,
        f"process_index is {engine.process_index} of {engine.process_count}",
    )
    return Outcome(note=f"{len(engine.kernels & ops)} kernels, {len(engine.dtypes)} dtypes")


def check_round_trip(target: Target, level: Level) -> Outcome:
    """Put arrays of every dtype and read them back, scalars and empty ones among them."""
    engine, tried = target.engine, 0
    for name, shape in product(sorted(engine.dtypes), SHAPES):
        host = make_values(shape, DType(name))
        _compare_parts(engine, host, Sharding.replicated(engine.mesh, host.ndim))
        tried += 1
    return Outcome(note=f"{tried} arrays")


def check_parts(target: Target, level: Level) -> Outcome:
    """Put arrays in parts, even and padded, over the axes of the mesh in any order."""
    engine, tried = target.open_all().engine, 0
    for shape, spec in product(((4, 6), (5, 3), (1, 7), (0, 4)), list_specs(engine.mesh)):
        host = make_values(shape, DType.float32)
        _compare_parts(engine, host, Sharding.of(engine.mesh, spec, 2))
        tried += 1
    return Outcome(note=f"{tried} arrays")


def check_memory(target: Target, level: Level) -> Outcome:
    """See that arrays cannot be written to, and that programs leave their inputs alone."""
    engine = target.engine
    host = make_values((4, 6), DType.float32)
    port = Port("x", TensorType((4, 6), DType.float32), Sharding.replicated(engine.mesh, 2))
    handle = engine.put(port.type, port.sharding, lambda box: host[box].copy())
    held = engine.shard(handle, port.sharding, 0)
    _expect(not held.flags.writeable, "shard returns an array that can be written to")
    program = _write_program(port)
    require_kernels(engine, program)
    first, again = (_read(engine, program, handle) for _ in range(2))
    difference = describe_difference(engine.shard(handle, port.sharding, 0), host)
    _expect(not difference, f"a program changes its input: {difference}")
    for name, value in first.items():
        difference = describe_difference(again[name], value)
        _expect(not difference, f"a second run gives another {name}: {difference}")
    return Outcome(note="inputs, and a second run")


def check_observed(target: Target, level: Level) -> Outcome:
    """See that every collective which is carried out is told of, once, as the plan lists it."""
    import mithril as ml

    backend = target.open_all()
    model = ml.Linear(6)
    compiled = ml.compile(model, backend)
    split = P(*backend.mesh.names)
    x = backend.array(make_values((8, 8), DType.float32), sharding=split)
    rows: list[object] = []
    slope = np.ones((8, 6), np.float32)
    params = compiled.randomize_params()
    compiled.evaluate(
        params, {"input": x}, {"output": slope}, observe=lambda told: rows.append(told.row)
    )
    expected = compiled.plan.list_issued()
    _expect(bool(expected), "the plan has no collective")
    _expect(
        sorted(map(str, rows)) == sorted(map(str, expected)),
        f"observe is told of {rows}; the plan lists {expected}",
    )
    return Outcome(note=f"{len(rows)} collectives")


CHECKS: dict[str, tuple[Callable[[Target, Level], Outcome], int]] = {
    "what it says of itself": (check_names, 1),
    "put and shard": (check_round_trip, 1),
    "parts": (check_parts, 2),
    "memory": (check_memory, 1),
    "what it tells": (check_observed, 2),
}


def make_values(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return distinct values of a dtype."""
    if dtype == DType.bool_:
        return booleans(*shape)
    made = floats(*shape) if dtype.is_float else integers(*shape, below=100)
    return made.astype(dtype.numpy)


def list_specs(mesh: Mesh) -> list[P]:
    """Return ways to lay out a matrix: over each axis, over all, over both dimensions."""
    names = mesh.names
    found = [P(), P(names), P(None, names), P(names[::-1])]
    found += [P(name) for name in names] + [P(None, name) for name in names]
    return found + ([P(names[0], names[1]), P(names[1], names[0])] if len(names) > 1 else [])


def _compare_parts(engine: Engine, host: np.ndarray, sharding: Sharding) -> None:
    type = TensorType(host.shape, DType(host.dtype.name))
    handle = engine.put(type, sharding, lambda box: host[box].copy())
    for device in engine.local_devices:
        box = sharding.box(device, host.shape)
        wanted = np.zeros(sharding.local_shape(host.shape), host.dtype)
        wanted[tuple(slice(cut.stop - cut.start) for cut in box)] = host[box]
        difference = describe_difference(engine.shard(handle, sharding, device), wanted)
        if difference:
            raise Mismatch(
                f"{type} as {sharding.spec} on device {device} of {engine.mesh!r}: {difference}"
            )


def _write_program(port: Port) -> Program:
    builder = Builder()
    x = builder.input(port.type, port.name)
    results = {"sum": x + x, "same": x, "turned": x.transpose(1, 0)}
    graph = builder.build(results)
    mesh = port.sharding.mesh
    leaving = tuple(
        Port(name, value.type, Sharding.replicated(mesh, value.type.rank))
        for name, value in graph.outputs.items()
    )
    return Program(mesh, graph, (port,), leaving)


def _read(engine: Engine, program: Program, handle: object) -> dict[str, np.ndarray]:
    made = check_executable(engine.name, "lower", engine.lower(program))([handle])
    check_outputs(engine, program, made)
    return {
        port.name: np.array(engine.shard(part, port.sharding, 0))
        for port, part in zip(program.outputs, made, strict=True)
    }


def _expect_known(what: str, names: object, known: set[str]) -> None:
    for name in _expect_names(what, names):
        _expect(name in known, f"{what} has '{name}', which nobody knows{nearest(name, known)}")


def _expect_names(what: str, names: object) -> list[str]:
    _expect(isinstance(names, frozenset), f"{what} is a {type(names).__name__}, and no frozenset")
    found = sorted(map(str, names))  # type: ignore[call-overload]
    _expect(bool(found) or what == "capabilities", f"{what} is empty")
    return found


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise Mismatch(text)
