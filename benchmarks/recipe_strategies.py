"""Seventeen recipes by which people split models over a mesh, written by hand for any model.

A recipe goes by the names of layers and the order of mesh axes, as people do: the last axis is the
fastest. It says how inputs come, how parameters are computed with and kept, and where the values
between layers lie; all that follows is the planner's. Where it has nothing to say, or a size does
not divide, it does not apply, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import mithril as ml

from benchmarks.recipe_draw import Case

Axes = tuple[str, ...]
Splits = dict[str, dict[int, Axes]]
"""The axes that split dimensions of tensors, by name."""

COLUMNS = {
    "*attn.[qkv].*": 0, "*mlp.up.*": 0, "*mlp.gate.*": 0, "up*": 0, "*conv1.*": 0,
    "lstm.*": 1, "gru.*": 1,
}  # fmt: skip
"""Dimensions of outputs, which nothing is summed for."""
ROWS = {"*attn.o.weight": 1, "*mlp.down.weight": 1, "down*.weight": 1, "*conv2.weight": 1}
"""Dimensions of inputs, over which the result is a sum."""
VOCABULARY = {"*embed*.weight": 0, "head.*": 0}
EXPERTS = {"*experts.*": 0}


class Inapplicable(Exception):  # noqa: N818 - it is no error
    """A recipe does not apply to a model on a mesh."""


@dataclass(slots=True)
class Recipe:
    """What a recipe says of one model on one mesh.

    Args:
        case: the model.
        sizes: of the axes of the mesh.
        shapes: of the parameters.
        stacked: how many leading dimensions of a parameter only stack layers.
        parameters: how they are computed with.
        resting: how they are kept, where that is another way.
        inputs: how they come.
        values: how values between layers lie.
    """

    case: Case
    sizes: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    stacked: Mapping[str, int]
    parameters: Splits = field(default_factory=dict)
    resting: Splits = field(default_factory=dict)
    inputs: Splits = field(default_factory=dict)
    values: Splits = field(default_factory=dict)

    def parts(self, axes: Axes) -> int:
        """Return over how many devices some axes split."""
        found = 1
        for axis in axes:
            found *= self.sizes[axis]
        return found

    def split_batch(self, axes: Axes) -> None:
        """Split the leading dimension of all inputs."""
        for name, (shape, _) in self.case.shapes.items():
            self._split(self.inputs, name, shape, 0, axes)

    def split_tokens(self, axes: Axes) -> None:
        """Split the sequence of inputs that have one, and what lies between layers."""
        if not self.case.tokens:
            raise Inapplicable("no input has a sequence")
        for name in self.case.tokens:
            self._split(self.inputs, name, self.case.shapes[name][0], 1, axes)

    def split_streams(self, axes: Axes, batch: Axes) -> None:
        """Let values between blocks lie split along their sequence."""
        if not self.case.streams:
            raise Inapplicable("no value between blocks has a sequence")
        for pattern in self.case.streams:
            self.values[pattern] = {0: batch, 1: axes}

    def split_parameters(self, table: Mapping[str, int], axes: Axes) -> None:
        """Split the parameters that a table names, along the dimensions that it says."""
        found = False
        for name, shape in self.shapes.items():
            for pattern, dimension in table.items():
                at = dimension + self.stacked[name]
                if fnmatchcase(name, pattern) and at < len(shape):
                    self._split(self.parameters, name, shape, at, axes)
                    found = True
        if not found:
            raise Inapplicable("no parameter has such a name")

    def rest(self, axes: Axes) -> None:
        """Keep each parameter split along its largest dimension that divides and is whole."""
        for name, shape in self.shapes.items():
            taken = self.parameters.get(name, {})
            free = [d for d in range(self.stacked[name], len(shape)) if d not in taken]
            able = [d for d in free if shape[d] % self.parts(axes) == 0]
            if able:
                best = max(able, key=lambda d: shape[d])
                self.resting[name] = {**taken, best: axes}
        if not self.resting:
            raise Inapplicable("no parameter divides")

    def _split(
        self, splits: Splits, name: str, shape: Sequence[int], dimension: int, axes: Axes
    ) -> None:
        if axes and shape[dimension] % self.parts(axes):
            raise Inapplicable(f"{name} has {shape[dimension]} for {self.parts(axes)} devices")
        if axes:
            splits.setdefault(name, {})[dimension] = axes

    def apply(self) -> dict[str, ml.TensorSpec]:
        """Annotate the model; return the inputs as they come."""
        for splits, say in (
            (self.parameters, self.case.model.shard),
            (self.values, self.case.model.shard),
            (self.resting, self.case.model.at_rest),
        ):
            if splits:
                say({name: make_spec(dims) for name, dims in splits.items()})
        return {
            name: ml.TensorSpec(shape, dtype, make_spec(self.inputs.get(name, {})))
            for name, (shape, dtype) in self.case.shapes.items()
        }


def make_spec(dims: Mapping[int, Axes]) -> ml.PartitionSpec:
    """Return the spec by which dimensions are split."""
    held = {d: axes for d, axes in dims.items() if axes}
    entries = [held.get(d) for d in range(1 + max(held, default=-1))]
    return ml.P(*(axes if axes is None or len(axes) > 1 else axes[0] for axes in entries))


# ------------------------------------------------------------------ the recipes

Say = Callable[[Recipe, Axes, Axes], None]
"""Says a recipe of a model: all axes but the last, and the last."""


def copies(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Compute everything everywhere, and exchange nothing."""


def node_data(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split the batch over the fastest axis, and compute the same over the others."""
    _need_two(outer)
    recipe.split_batch(last)


def data(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split the batch over all devices, and sum gradients (data parallelism)."""
    recipe.split_batch(outer + last)


def fsdp(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Keep parameters split over all devices besides (Rajbhandari et al., "ZeRO", 2020)."""
    recipe.split_batch(outer + last)
    recipe.rest(outer + last)


def hsdp(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Keep parameters split over the fastest axis, with copies over the others."""
    _need_two(outer)
    recipe.split_batch(outer + last)
    recipe.rest(last)


def megatron(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split weights over all devices, by columns and then by rows (Shoeybi et al., 2019)."""
    recipe.split_parameters(COLUMNS, outer + last)
    recipe.split_parameters(ROWS, outer + last)


def megatron_sequence(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Let values between blocks lie split along the sequence besides (Korthikanti et al., 2022)."""
    recipe.split_batch(outer)
    recipe.split_parameters(COLUMNS, last)
    recipe.split_parameters(ROWS, last)
    recipe.split_streams(last, outer)


def data_megatron(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split weights over the fastest axis, and the batch over the others."""
    _need_two(outer)
    recipe.split_batch(outer)
    recipe.split_parameters(COLUMNS, last)
    recipe.split_parameters(ROWS, last)


def fsdp_megatron(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """The same, with parameters kept split over the axes that split the batch."""
    data_megatron(recipe, outer, last)
    recipe.rest(outer)


def vocabulary(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split the tables of embeddings and the head over the fastest axis, too."""
    recipe.split_batch(outer)
    recipe.split_parameters(VOCABULARY, last)
    if outer:
        recipe.split_parameters(COLUMNS, last)
        recipe.split_parameters(ROWS, last)


def rows(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split the inputs of all that Megatron splits by rows, and nothing else."""
    recipe.split_batch(outer)
    recipe.split_parameters(ROWS, last)


def columns(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split the outputs of all that Megatron splits by columns, and nothing else."""
    recipe.split_batch(outer)
    recipe.split_parameters(COLUMNS, last)


def sequences(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split the sequence over the fastest axis, and the batch over the others."""
    try:
        recipe.split_batch(outer)
        recipe.split_tokens(last)
    except Inapplicable:
        recipe.inputs.clear()
        recipe.split_tokens(outer + last)


def experts(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split experts and the batch over all devices (Lepikhin et al., "GShard", 2021)."""
    recipe.split_batch(outer + last)
    recipe.split_parameters(EXPERTS, outer + last)


def experts_data(recipe: Recipe, outer: Axes, last: Axes) -> None:
    """Split experts over the fastest axis, and the batch over all."""
    _need_two(outer)
    recipe.split_batch(outer + last)
    recipe.split_parameters(EXPERTS, last)


def _need_two(outer: Axes) -> None:
    if not outer:
        raise Inapplicable("the mesh has one axis")


RECIPES: Mapping[str, tuple[Say, str | None]] = {
    "copies": (copies, None),
    "data inside": (node_data, None),
    "data": (data, None),
    "FSDP": (fsdp, None),
    "HSDP": (hsdp, None),
    "Megatron": (megatron, None),
    "Megatron, sequence": (megatron_sequence, None),
    "data x Megatron": (data_megatron, None),
    "FSDP x Megatron": (fsdp_megatron, None),
    "vocabulary": (vocabulary, None),
    "rows": (rows, None),
    "columns": (columns, None),
    "Ulysses": (sequences, "ulysses"),
    "ring": (sequences, "ring"),
    "all-gather": (sequences, "all_gather"),
    "experts": (experts, None),
    "experts x data": (experts_data, None),
}
"""By name: what is said, and what attention does along a sequence that is split."""


def list_parameters(case: Case, backend: ml.Backend) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield the name of each parameter, its shape, and how many leading dimensions stack layers."""
    compiled = ml.compile(case.model, backend)
    plan = compiled.plan_for(case.specs, gradients=False)
    for port in plan.inputs:
        if port.name in plan.parameters:
            yield port.name, port.type.shape, int(port.name.startswith("blocks."))
