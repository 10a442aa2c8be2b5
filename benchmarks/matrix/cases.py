"""What a row of the matrix is: a model with sizes drawn from a seed, a backend, a parallelism, a kind.

Sizes are drawn again until a call multiplies and adds between `LEAST` and `MOST` numbers, which takes
some 10 to 300 ms of a processor; nothing else is asked of them, and none are fixed but blocks and batch of
a pipeline. Every row has sizes of its own. `ways_of` says which combinations exist: those that somebody can
write by hand, beside which there is something to compare. Not in the matrix are

- NumPy: all but MLP, GPT and long sequences on one device; nobody writes the others' backward by hand;
- MLX: a mixture of experts, and more than one device (`mlx_gpt --ranks` compares that);
- the forward alone on several devices: communication is that of the step, or none;
- tensor parallelism but of MLP, GPT and Llama;
- FSDP of BatchNorm on PyTorch, whose peer takes statistics of a device's part of the batch, and data
  parallelism with it and of a mixture of experts there, for the same reason;
- pipelines but of a GPT on PyTorch, experts on several devices, and rings.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle

LEAST, MOST = 0.4e9, 5e9
FORWARD, STEP = "forward", "step"
FORWARD_SHARE = 1 / 3
"""Of a step's cost is the forward."""
ONE, DATA, FSDP, TENSOR, DATA_TENSOR = "one", "data", "fsdp", "tensor", "data-tensor"
PIPELINE = "pipeline"
BACKENDS = ("torch", "jax", "mlx", "numpy")
MESHES: Mapping[str, Mapping[str, int]] = {
    ONE: {},
    DATA: {"data": 2},
    FSDP: {"data": 2},
    TENSOR: {"tensor": 2},
    DATA_TENSOR: {"data": 2, "tensor": 2},
    PIPELINE: {"pipeline": 4},
}
"""The mesh of each parallelism."""
MICROBATCHES = 8
"""Of a pipeline."""
FIXED: Mapping[str, Mapping[str, int]] = {PIPELINE: {"layers": 4, "batch": 16}}
"""Sizes that a parallelism asks for: a block for each stage, two samples in each micro-batch."""

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the matrix.

    Args:
        model: a name of `FAMILIES`.
        backend: one of `BACKENDS`.
        parallelism: a name of `MESHES`.
        kind: `forward` alone, or a `step` of training with AdamW.
        seed: of sizes, parameters and data.
        sizes: of the model and its batches.
        devices: how many there are; 0 is as many as `MESHES` has.
    """

    model: str
    backend: str
    parallelism: str = ONE
    kind: str = STEP
    seed: int = 0
    sizes: Sizes = field(default_factory=dict)
    devices: int = 0

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of the mesh; more devices make the first of them longer."""
        found = dict(MESHES[self.parallelism])
        if self.devices:
            first = next(iter(found))
            found[first] = self.devices * found[first] // math.prod(found.values())
        return found

    @property
    def ranks(self) -> int:
        """How many devices there are."""
        return math.prod(self.mesh.values())

    def alter(self, sizes: Sizes, devices: int) -> Row:
        """Return the row with some sizes said, and a number of devices unless that is 0.

        Raises:
            ValueError: the model has no such size, or the parallelism no such number of devices.
        """
        for name in sizes.keys() - self.sizes.keys():
            raise ValueError(f"{self.model} has no size '{name}'; it has {', '.join(self.sizes)}")
        if devices and (not self.mesh or devices % self.ranks or self.parallelism in FIXED):
            raise ValueError(
                f"{self.parallelism} of {self.ranks} devices cannot be of {devices}; give a multiple"
            )
        return replace(self, sizes={**self.sizes, **sizes}, devices=devices)

    @property
    def cost(self) -> float:
        """How many numbers a call multiplies and adds, roughly."""
        step = FAMILIES[self.model].cost(self.sizes)
        return step * FORWARD_SHARE if self.kind == FORWARD else step

    @property
    def title(self) -> str:
        """What the row is called in tables."""
        return f"{self.backend} {self.model} {self.parallelism} {self.kind}"

    def dump(self) -> str:
        """Return the row as text that `load` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str) -> Row:
        """Return the row that `dump` has written."""
        return Row(**json.loads(text))

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes.items())
        where = f" on {self.ranks} devices" if self.devices else ""
        return f"{self.title}{where}: {sizes}"


@dataclass(frozen=True, slots=True)
class Family:
    """How the sizes of a kind of model are drawn, and what they cost.

    Args:
        draw: returns sizes.
        cost: how many numbers a training step multiplies and adds, roughly.
    """

    draw: Callable[[random.Random], dict[str, int]]
    cost: Callable[[Sizes], float]


# ------------------------------------------------------------------ sizes


def _draw_mlp(rng: random.Random) -> dict[str, int]:
    return {
        "features": rng.randrange(64, 1025, 8), "width": rng.randrange(128, 1281, 16),
        "depth": rng.randint(2, 8), "classes": rng.randrange(8, 1001, 2),
        "batch": rng.randrange(32, 513, 8),
    }  # fmt: skip


def _draw_transformer(rng: random.Random) -> dict[str, int]:
    heads = rng.choice((2, 4, 6, 8))
    width = heads * rng.choice((16, 32, 48, 64))
    return {
        "layers": rng.randint(1, 6), "width": width, "heads": heads,
        "hidden": width * rng.choice((2, 3, 4)), "vocabulary": rng.randrange(128, 8193, 64),
        "context": rng.randrange(32, 257, 16), "batch": rng.choice((2, 4, 6, 8, 12, 16)),
    }  # fmt: skip


def _draw_llama(rng: random.Random) -> dict[str, int]:
    sizes = _draw_transformer(rng)
    heads = sizes["heads"]
    return {**sizes, "key_heads": rng.choice([n for n in (heads, heads // 2) if n % 2 == 0])}


def _draw_long(rng: random.Random) -> dict[str, int]:
    heads = rng.choice((2, 4))
    width = heads * rng.choice((16, 32, 64))
    return {
        "layers": rng.randint(1, 3), "width": width, "heads": heads, "hidden": 2 * width,
        "vocabulary": rng.randrange(64, 513, 64), "context": rng.randrange(768, 2561, 128),
        "batch": rng.choice((2, 4)),
    }  # fmt: skip


def _draw_vit(rng: random.Random) -> dict[str, int]:
    heads = rng.choice((2, 4, 6))
    width, patch = heads * rng.choice((32, 48, 64)), rng.choice((4, 8))
    return {
        "layers": rng.randint(1, 6), "width": width, "heads": heads, "hidden": 4 * width,
        "size": patch * rng.randint(4, 10), "patch": patch, "classes": rng.randrange(10, 1001, 10),
        "batch": rng.choice((4, 8, 16, 24)),
    }  # fmt: skip


def _draw_resnet(rng: random.Random) -> dict[str, int]:
    return {
        "width": rng.choice((8, 16, 24, 32, 48)), "stages": rng.randint(2, 3),
        "blocks": rng.randint(1, 3), "size": 8 * rng.randint(2, 6),
        "classes": rng.randrange(10, 201, 10), "batch": rng.choice((4, 8, 16, 32)),
    }  # fmt: skip


def _draw_unet(rng: random.Random) -> dict[str, int]:
    return {
        "width": rng.choice((8, 16, 24, 32)), "levels": rng.randint(2, 4),
        "size": 16 * rng.randint(1, 4), "batch": rng.choice((2, 4, 8, 12)),
    }  # fmt: skip


def _draw_lstm(rng: random.Random) -> dict[str, int]:
    return {
        "width": rng.randrange(64, 385, 32), "layers": rng.randint(1, 3),
        "context": rng.randrange(16, 81, 8), "vocabulary": rng.randrange(64, 2049, 64),
        "batch": rng.choice((8, 16, 32, 64)),
    }  # fmt: skip


def _draw_moe(rng: random.Random) -> dict[str, int]:
    width = rng.randrange(64, 321, 32)
    return {
        "experts": rng.choice((4, 8, 16)), "width": width, "hidden": width * rng.choice((2, 4)),
        "top_k": rng.choice((1, 2)), "batch": rng.choice((2, 4, 8)),
        "context": rng.randrange(64, 193, 16),
    }  # fmt: skip


# ------------------------------------------------------------------ costs


def _of_mlp(s: Sizes) -> float:
    inner = s["features"] + (s["depth"] - 2) * s["width"] + s["classes"]
    return 3.0 * s["batch"] * s["width"] * inner


def _of_blocks(s: Sizes, length: int) -> float:
    """Blocks of a transformer: projections, the hidden layers, and attention."""
    weights = 4 * s["width"] ** 2 + (3 if "key_heads" in s else 2) * s["width"] * s["hidden"]
    return 3.0 * s["batch"] * length * s["layers"] * (weights + 2 * length * s["width"])


def _of_transformer(s: Sizes) -> float:
    head = 3.0 * s["batch"] * s["context"] * s["width"] * s["vocabulary"]
    return _of_blocks(s, s["context"]) + head


def _of_vit(s: Sizes) -> float:
    return _of_blocks(s, (s["size"] // s["patch"]) ** 2 + 1)


def _of_resnet(s: Sizes) -> float:
    # A stage has twice the channels of the one before at half the size: as many products.
    convolution = 9 * s["width"] ** 2 * s["size"] ** 2
    return 3.0 * s["batch"] * 2 * s["blocks"] * s["stages"] * convolution


def _of_unet(s: Sizes) -> float:
    return 3.0 * s["batch"] * (5 * s["levels"] - 2) * 9 * s["width"] ** 2 * s["size"] ** 2


def _of_lstm(s: Sizes) -> float:
    gates = 8 * s["layers"] * s["width"] ** 2 + s["width"] * s["vocabulary"]
    return 3.0 * s["batch"] * s["context"] * gates


def _of_moe(s: Sizes) -> float:
    return 3.0 * s["batch"] * s["context"] * s["top_k"] * 1.25 * 2 * s["width"] * s["hidden"]


FAMILIES: Mapping[str, Family] = {
    "mlp": Family(_draw_mlp, _of_mlp),
    "gpt": Family(_draw_transformer, _of_transformer),
    "llama": Family(_draw_llama, _of_transformer),
    "vit": Family(_draw_vit, _of_vit),
    "resnet": Family(_draw_resnet, _of_resnet),
    "resnet-channels-last": Family(_draw_resnet, _of_resnet),
    "unet": Family(_draw_unet, _of_unet),
    "lstm": Family(_draw_lstm, _of_lstm),
    "moe": Family(_draw_moe, _of_moe),
    "long-sequence": Family(_draw_long, _of_transformer),
}
WITH_TENSOR = ("mlp", "gpt", "llama")
AS_NUMPY = ("mlp", "gpt", "long-sequence")
NEED_WHOLE_BATCH = ("resnet", "resnet-channels-last", "moe")
"""Models whose loss of a batch is not the mean of the losses of its parts."""


def draw_sizes(
    model: str, key: str, fixed: Sizes, least: float = LEAST, most: float = MOST
) -> dict[str, int]:
    """Return sizes of a model within bounds of its cost, the same for the same key."""
    family, rng = FAMILIES[model], random.Random(f"{model} {key}")
    while True:
        sizes = {**family.draw(rng), **fixed}
        if least <= family.cost(sizes) <= most:
            return sizes


# ------------------------------------------------------------------ rows


def ways_of(model: str, backend: str) -> tuple[str, ...]:
    """Return the parallelisms of a model on a backend beside which there is something by hand."""
    if backend == "numpy":
        return (ONE,) if model in AS_NUMPY else ()
    if backend == "mlx":
        return (ONE,) if model != "moe" else ()
    spread = () if backend == "torch" and model in NEED_WHOLE_BATCH else (DATA, FSDP)
    tensor = (TENSOR, DATA_TENSOR) if model in WITH_TENSOR else ()
    staged = (PIPELINE,) if (model, backend) == ("gpt", "torch") else ()
    return (ONE, *spread, *tensor, *staged)


def list_rows(seed: int, least: float = LEAST, most: float = MOST) -> list[Row]:
    """Return all rows of the matrix, with sizes drawn from a seed within bounds of their costs."""

    def draw(model: str, backend: str, way: str, kind: str) -> Row:
        key = f"{backend} {way} {kind} {seed}"
        share = FORWARD_SHARE if kind == FORWARD else 1
        sizes = draw_sizes(model, key, FIXED.get(way, {}), least / share, most / share)
        return Row(model, backend, way, kind, seed, sizes)

    return [
        draw(model, backend, way, kind)
        for backend in BACKENDS
        for model in FAMILIES
        for way in ways_of(model, backend)
        for kind in ((FORWARD, STEP) if way == ONE else (STEP,))
    ]


def order_rows(rows: list[Row], seed: int) -> Iterator[Row]:
    """Yield rows in an order that the seed gives, from each backend in turn."""
    rng = random.Random(seed)
    waiting = {b: [row for row in rows if row.backend == b] for b in BACKENDS}
    for of_backend in waiting.values():
        rng.shuffle(of_backend)
    for backend in cycle(BACKENDS):
        if not any(waiting.values()):
            return
        if waiting[backend]:
            yield waiting[backend].pop()
