"""The guides' words for how a backend splits models that say nothing themselves.

`parallel_mode`, `fsdp_config` and `tensor_parallel_config` are PyTorch's words for what `zero=` and
annotations say; here they hold for every backend, as defaults of `compile` and `train_step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mithril.errors import OptionError, listing, nearest
from mithril.keywords import read_entries
from mithril.mesh import Mesh, PartitionSpec
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition
from mithril.models.layer import Layer
from mithril.models.prefixes import parameter_prefixes
from mithril.option_checks import check_flag
from mithril.types import to_python

MODES = ("data", "fully_sharded", "tensor")
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}
"""ZeRO's stage that each of PyTorch's sharding strategies is."""
HYBRID = "HYBRID_SHARD"
FSDP = ("sharding_strategy", "mixed_precision", "flatten_parameters")
TENSOR = ("tp_size", "tp_mode", "overlap_comm")
OVERLAP = "tensor_parallel_config['overlap_comm']"
TENSOR_MODES = ("column", "row")
TENSOR_AXES = ("tensor", "model")
"""Names of mesh axes that split weights, where several have the size that is asked for."""
SPLIT_LAYERS = ("linear",)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How models are split that say nothing themselves.

    Args:
        zero: stage of ZeRO.
        is_mixed: whether linear algebra is computed in bfloat16.
        axis: mesh axis over which weights of linear layers are split; empty for none.
        mode: `column` splits their outputs, `row` their inputs.
        overlaps: whether communication shall go on beside what computes; None where it is not said.
    """

    zero: int = 0
    is_mixed: bool = False
    axis: str = ""
    mode: str = "column"
    overlaps: bool | None = None

    def annotate(self, model: Composition | Layer) -> dict[str, Annotation]:
        """Return how the weights of linear layers are split, by name."""
        if not self.axis:
            return {}
        column = self.mode == "column"
        weight = PartitionSpec(self.axis, None) if column else PartitionSpec(None, self.axis)
        specs = {"weight": weight} | ({"bias": PartitionSpec(self.axis)} if column else {})
        place = f" of tensor_parallel_config tp_mode='{self.mode}'"
        return {
            prefix + name: Annotation(specs[name], place=place)
            for layer, prefix in parameter_prefixes(model).items()
            if layer.kind in SPLIT_LAYERS
            for name in layer.parameters
            if name in specs
        }


AS_MODELS_SAY = Parallelism()


def read_parallelism(mode: object, fsdp: object, tensor: object, mesh: Mesh) -> Parallelism:
    """Return what `parallel_mode=`, `fsdp_config=` and `tensor_parallel_config=` mean.

    Raises:
        OptionError: an entry is unknown, has another value, or does not fit the mode or the mesh.
    """
    if mode is not None and not (isinstance(mode, str) and mode in MODES):
        raise OptionError(
            f"parallel_mode={mode!r} is unknown{nearest(str(mode), MODES)}; modes: {listing(MODES)}"
        )
    example = '{"sharding_strategy": "FULL_SHARD"}'
    config = {} if fsdp is None else read_entries("fsdp_config", fsdp, FSDP, example)
    if fsdp is not None and mode not in (None, "fully_sharded"):
        raise OptionError(
            f"fsdp_config is given with parallel_mode={mode!r}; it is for 'fully_sharded'"
        )
    if mode == "data" and tensor is not None:
        raise OptionError(
            "tensor_parallel_config is given with parallel_mode='data', which copies parameters; "
            "leave out either"
        )
    if mode == "tensor" and tensor is None:
        raise OptionError(
            "parallel_mode='tensor' does not say how; give tensor_parallel_config, such as "
            '{"tp_size": 2, "tp_mode": "column"}'
        )
    zero = _read_strategy(config) if fsdp is not None or mode == "fully_sharded" else 0
    name, example = "tensor_parallel_config", '{"tp_size": 2, "tp_mode": "column"}'
    split = {} if tensor is None else read_entries(name, tensor, TENSOR, example)
    axis, how = _read_tensor(split, mesh)
    overlaps = check_flag(OVERLAP, split["overlap_comm"]) if "overlap_comm" in split else None
    flat = check_flag("fsdp_config['flatten_parameters']", config.get("flatten_parameters", True))
    if not flat:
        raise OptionError(
            "fsdp_config 'flatten_parameters' is False, and parameters of a block travel together "
            "wherever that pays; leave it out"
        )
    is_mixed = check_flag("fsdp_config['mixed_precision']", config.get("mixed_precision", False))
    return Parallelism(zero, is_mixed, axis, how, overlaps)


def _read_strategy(config: Mapping[str, Any]) -> int:
    strategy = config.get("sharding_strategy", "FULL_SHARD")
    if strategy == HYBRID:
        raise OptionError(
            f"fsdp_config 'sharding_strategy' is '{HYBRID}', which does not say which mesh axis is "
            f"inside a node; say zero=3, zero_axis=… to compile() or train_step()"
        )
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        known = (*STRATEGIES, HYBRID)
        raise OptionError(
            f"fsdp_config 'sharding_strategy' is {strategy!r}{nearest(str(strategy), known)}; "
            f"strategies: {listing(known)}"
        )
    return STRATEGIES[strategy]


def _read_tensor(config: Mapping[str, Any], mesh: Mesh) -> tuple[str, str]:
    """Return the axis that splits weights, and how; no axis where nothing is said."""
    if not config:
        return "", "column"
    mode = config.get("tp_mode", "column")
    if not isinstance(mode, str) or mode not in TENSOR_MODES:
        raise OptionError(
            f"tensor_parallel_config 'tp_mode' is {mode!r}{nearest(str(mode), TENSOR_MODES)}; "
            f"modes: {listing(TENSOR_MODES)}"
        )
    size = config.get("tp_size")
    if size is None:
        raise OptionError(
            f"tensor_parallel_config lacks 'tp_size'; give the size of the axis of {mesh!r} that "
            f"splits weights"
        )
    is_size = type(to_python(size)) is int
    fitting = [name for name in mesh.names if is_size and mesh.sizes[name] == size]
    named = [name for name in fitting if name in TENSOR_AXES]
    if not fitting:
        raise OptionError(
            f"tensor_parallel_config 'tp_size' is {size!r}, and no axis of {mesh!r} has that size; "
            f"give the size of the axis that splits weights"
        )
    return (named or fitting)[-1], mode


__all__ = ["AS_MODELS_SAY", "OVERLAP", "Parallelism", "read_parallelism"]
