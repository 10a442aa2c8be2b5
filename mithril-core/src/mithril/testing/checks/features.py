"""What else models need of a backend: loops, stages, precision, donation, interop, clear errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import mithril as ml
import mithril.numpy as mnp
from mithril import P
from mithril.engine import Engine
from mithril.errors import MithrilError
from mithril.optim import adamw
from mithril.testing.arrays import floats
from mithril.testing.check import Check, Mismatch, Missing, Outcome, Status
from mithril.testing.checks.models import EXAMPLES, compare, prepare_step
from mithril.testing.compare import describe_difference
from mithril.testing.levels import Level
from mithril.testing.target import Target, open_oracle
from mithril.types import DType

Arrays = dict[str, np.ndarray]
WIDTH, BATCH, STEPS = 6, 7, 3


def list_feature_checks() -> Iterator[Check]:
    """Yield the checks of features."""
    for name, (run, devices) in CHECKS.items():
        group, _, own = name.partition("/")
        level = Level.smoke if run is check_transfer else Level.basic
        yield Check(group, own, run, level, devices)


def _f32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


X = _f32(floats(BATCH, WIDTH))


def block(name: str | None = None) -> ml.Model:
    """Return a residual block from `x` to `y`."""
    made = ml.Model(name=name)
    made |= ml.LayerNorm()(input="x", output="n")
    made += ml.FeedForward(12)(input="n", output="f")
    made += ml.Add()(inputs=["x", "f"], output="y")
    return made


def evaluate(
    model: ml.Model, backend: ml.Backend, inputs: Mapping[str, np.ndarray], **options: Any
) -> Arrays:
    """Return outputs and gradients of a model, every output's slope being ones."""
    compiled = ml.compile(model, backend, **options)
    params = compiled.randomize_params(seed=1)
    split = P(*backend.mesh.names[:1])
    given = {name: backend.array(x, sharding=split) for name, x in inputs.items()}
    outputs = compiled.evaluate(params, given, seed=2)
    slopes = {n: np.ones(y.shape, y.dtype.numpy) for n, y in outputs.items() if y.dtype.is_float}
    outputs, gradients = compiled.evaluate(params, given, slopes, seed=2)
    found = {**outputs, **{f"gradient of {name}": x for name, x in gradients.items()}}
    return {name: x.numpy() for name, x in found.items()}


# ------------------------------------------------------------------ loops


def check_repeat(target: Target, level: Level) -> Outcome:
    """Compare a stack of layers that runs as a loop, on the mesh, with NumPy."""
    model = ml.Model()
    model |= ml.Repeat(block(), 3, name="deep")(input="input", output="output")
    found = evaluate(model, target.open_all(), {"input": X})
    compare(found, evaluate(model, open_oracle(), {"input": X}))
    return Outcome(note=f"3 iterations, {len(found) - 1} gradients")


def check_scan(target: Target, level: Level, *, reverse: bool = False) -> Outcome:
    """Compare a scan over rows, and its gradient, with NumPy."""

    def run(backend: ml.Backend) -> Arrays:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            after = mnp.tanh(carry * 0.5 + x)
            return after, after * 2.0

        def loss(start: Any, rows: Any) -> Any:
            last, stack = ml.scan(step, start, rows, reverse=reverse)
            return (last * last).sum() + (stack * rows).sum()

        function = ml.jit(ml.value_and_grad(loss, argnums=(0, 1)))
        value, (start, rows) = function(backend.array(X[0]), backend.array(X))
        return {"value": value.numpy(), "start": start.numpy(), "rows": rows.numpy()}

    compare(run(target.open()), run(open_oracle()))
    return Outcome(note=f"{BATCH} iterations and the gradient")


# ------------------------------------------------------------------ stages


def check_stages(target: Target, level: Level, *, is_loop: bool = False) -> Outcome:
    """Compare two stages on parts of the mesh, a ragged batch in micro-batches, with NumPy."""
    backend = target.open_all()
    if type(backend.engine).part is Engine.part:
        raise Missing("the engine knows no parts of its mesh; models with stages are refused")
    last = len(backend.mesh.names) - 1
    count = backend.mesh.shape[last]
    first = ml.Repeat(block(), 2, name="deep") if is_loop else ml.FeedForward(12)
    stages = [first, *(ml.FeedForward(12) for _ in range(count - 2)), ml.Linear(4)]

    def run(on: ml.Backend) -> Arrays:
        along = last if on.mesh.size > 1 else None
        model = ml.Model()
        pipeline = ml.Pipeline(stages, microbatch_size=2, stage_to_mesh_dim=along)
        model |= pipeline(input="input", output="output")
        return evaluate(model, on, {"input": X})

    compare(run(backend), run(open_oracle()))
    return Outcome(note=f"{count} stages, micro-batches of 2 of {BATCH}")


def check_transfer(target: Target, level: Level) -> Outcome:
    """Compare two layers on two devices, between which a value goes, with NumPy."""
    backend = target.open_all()
    if type(backend.engine).part is Engine.part:
        return Outcome(Status.skipped, "the engine knows no parts of its mesh; see stages")

    def run(on: ml.Backend) -> Arrays:
        model = ml.Model()
        model |= ml.Linear(12, name="up", device_id=0)(input="input", output="h")
        model += ml.Linear(4, name="down", device_id=on.mesh.size - 1)(output="output")
        compiled = ml.compile(model, on, shapes={"input": X.shape})
        params, slope = compiled.randomize_params(seed=1), np.ones((BATCH, 4), np.float32)
        outputs, gradients = compiled.evaluate(params, {"input": X}, {"output": slope})
        return {name: x.numpy() for name, x in {**outputs, **gradients}.items()}

    compare(run(backend), run(open_oracle()))
    return Outcome(note=f"from device 0 to {backend.mesh.size - 1}, and back")


# ------------------------------------------------------------------ training


def check_training(target: Target, level: Level) -> Outcome:
    """Compare the losses and parameters of some steps of AdamW with NumPy's."""
    compare(train(target.open_all()), train(open_oracle()))
    return Outcome(note=f"{STEPS} steps of AdamW")


def train(backend: ml.Backend, **options: Any) -> Arrays:
    """Return the losses of a few steps of an MLP, and its parameters behind them."""
    example = EXAMPLES["MLP"]
    batch = example.inputs()
    split = P(*backend.mesh.names[:1])
    shapes = {n: ml.TensorSpec(x.shape, str(x.dtype), split) for n, x in batch.items()}
    step = ml.train_step(example.make(), backend, optimizer=adamw(1e-2), shapes=shapes, **options)
    state, losses = step.init(seed=0), []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        losses.append(metrics["loss"].item())
    after = {name: x.numpy() for name, x in state.params.items()}
    return {"losses": np.array(losses, np.float32), **after}


# ------------------------------------------------------------------ precision


def check_precision(target: Target, level: Level, dtype: str) -> Outcome:
    """Compare a step whose linear algebra is in 16 bits with the exact one, and look at dtypes."""
    if DType(dtype) not in target.engine.dtypes:
        raise Missing(f"{dtype} is not among the engine's dtypes")
    backend = target.open_as(compute_dtype=dtype)
    found = prepare_step(EXAMPLES["GPT"], backend)()
    expected = prepare_step(EXAMPLES["GPT"], open_oracle())()
    for name, value in expected.items():
        difference = describe_difference(found[name], value, DType.bfloat16)
        if difference:
            raise Mismatch(f"{name}: {difference}")
    return Outcome(note=f"parameters in float32, products in {dtype}")


# ------------------------------------------------------------------ donation


def check_donation(target: Target, level: Level) -> Outcome:
    """Give arrays up: results are right, nothing else changes, and what is given up is gone."""
    backend = target.open_all()
    split = P(*backend.mesh.names[:1])
    p, g, kept = (backend.array(X * k, sharding=split) for k in (1, 2, 3))
    update = ml.jit(lambda p, g, kept: (p - 0.5 * g, kept + p), donate=("p",))
    new, total = update(p, g, kept)
    expected = {"new": X * 0, "total": X * 4, "g": X * 2, "kept": X * 3}
    found = {"new": new, "total": total, "g": g, "kept": kept}
    compare({name: x.numpy() for name, x in found.items()}, expected)
    try:
        p.numpy()
    except MithrilError:
        return Outcome()
    raise Mismatch("an array that was given up can still be read")


# ------------------------------------------------------------------ interop


def check_interop(target: Target, level: Level) -> Outcome:
    """Pass arrays to NumPy and back, as copies that nobody else writes to."""
    backend = target.open_all()
    x = backend.array(X, sharding=P(*backend.mesh.names[:1]))
    host = np.asarray(x)
    mine = x.numpy()
    if mine.flags.writeable:
        mine[:] = 0.0
    compare({"asarray": host, "after": x.numpy()}, {"asarray": X, "after": X})
    given = X.copy()
    y = backend.array(given)
    given[:] = 0.0
    compare({"array": y.numpy()}, {"array": X})
    methods = [name for name in backend.engine.interop.array_methods if not name.startswith("_")]
    for name in methods:
        made = getattr(backend.array(X), name)()
        compare({name: backend.array(made).numpy()}, {name: X})
    return Outcome(note=", ".join(["numpy", *methods]))


# ------------------------------------------------------------------ errors


def check_errors(target: Target, level: Level) -> Outcome:
    """Make mistakes of users: each is an error of Mithril's, in its words, and not a result."""
    backend = target.open()
    compiled = ml.compile(ml.Linear(3), backend)
    mistakes: dict[str, Callable[[], object]] = {
        "shapes that do not fit": lambda: backend.add(backend.ones(3), backend.ones(4)),
        "an id that names no row": lambda: _embed(backend, np.array([[1, 7]], np.int32)),
        "an unknown dtype": lambda: backend.ones(3, dtype="float23"),
        "an input too many": lambda: compiled.evaluate({}, {"input": X, "other": X}),
    }
    absent = sorted(set(DType) - backend.engine.dtypes)
    if absent:
        mistakes[f"dtype {absent[0]}"] = lambda: backend.ones(3, dtype=absent[0])
    for what, make in mistakes.items():
        try:
            make()
        except MithrilError:
            continue
        except Exception as error:
            raise Mismatch(f"{what}: {type(error).__name__}, no error of Mithril's") from error
        raise Mismatch(f"{what}: no error")
    return Outcome(note=f"{len(mistakes)} mistakes")


def _embed(backend: ml.Backend, ids: np.ndarray) -> object:
    shapes = {"input": ml.TensorSpec((1, 2), "int32")}
    compiled = ml.compile(ml.Embedding(7, 4), backend, shapes=shapes)
    return compiled.evaluate(compiled.randomize_params(0), {"input": ids})["output"].numpy()


CHECKS: dict[str, tuple[Callable[[Target, Level], Outcome], int]] = {
    "loops/Repeat": (check_repeat, 2),
    "loops/scan": (check_scan, 1),
    "loops/scan backwards": (partial(check_scan, reverse=True), 1),
    "stages/a transfer": (check_transfer, 2),
    "stages/two": (check_stages, 2),
    "stages/with a loop": (partial(check_stages, is_loop=True), 2),
    "training/AdamW": (check_training, 2),
    "precision/bfloat16": (partial(check_precision, dtype="bfloat16"), 2),
    "precision/float16": (partial(check_precision, dtype="float16"), 2),
    "donation/jit": (check_donation, 2),
    "interop/NumPy and the framework": (check_interop, 2),
    "errors/mistakes of users": (check_errors, 1),
}
