"""Optimisers: transformations of gradients as plain functions over trees, in optax's shape.

`optimizer = ml.optim.adamw(1e-3)`; `state = optimizer.init(params)`; then, as often as wanted,
`params, state = optimizer.apply(gradients, state, params)`. All of it works on arrays at once,
inside of `ml.jit`, and in a training step.

A state is made of dicts and tuples, and its tensors have stable names, which checkpoints and
patterns of `at_rest` use: moments stand in a tree of the form of the parameters, with their shapes
and dtypes, so that `0.mu.up.weight` is the first moment of `up.weight`; `match_parameters` finds
what belongs to which. Scalars are `count`, int32, the number of steps made, and `learning_rate`,
float32, that of the last step. A parameter that is masked, frozen, or not of floats has None in
their places.
"""

from mithril.optim.adafactor import adafactor, scale_by_factored_rms, scale_by_parameter_scale
from mithril.optim.adam import adam, adamw, scale_by_adam
from mithril.optim.basics import (
    Rate,
    Schedule,
    add_decayed_weights,
    check_learning_rates,
    find_learning_rates,
    scale,
    scale_by_learning_rate,
    scale_by_momentum,
)
from mithril.optim.clipping import clip, clip_by_block_rms, clip_by_global_norm, global_norm
from mithril.optim.diloco import Diloco, diloco
from mithril.optim.masks import Mask
from mithril.optim.muon import muon, orthogonalize, scale_by_muon
from mithril.optim.parts import freeze, masked, partition
from mithril.optim.places import match_parameters
from mithril.optim.rms import adagrad, rmsprop, scale_by_rms, scale_by_sum_of_squares
from mithril.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    warmup_cosine_decay_schedule,
    warmup_stable_decay_schedule,
)
from mithril.optim.sgd import lion, scale_by_lion, sgd
from mithril.optim.transformation import Transformation, apply_updates, chain
from mithril.optim.wrapped import with_ema, with_master_copies

__all__ = [
    # what all are made of
    "Transformation", "apply_updates", "chain", "Mask", "Rate", "Schedule",
    # optimisers
    "sgd", "adam", "adamw", "adafactor", "lion", "muon", "adagrad", "rmsprop",
    # around optimisers
    "freeze", "masked", "partition", "with_ema", "with_master_copies",
    # parts of a mesh that train by themselves
    "Diloco", "diloco",
    # transformations
    "add_decayed_weights", "clip", "clip_by_block_rms", "clip_by_global_norm", "scale",
    "scale_by_adam", "scale_by_factored_rms", "scale_by_learning_rate", "scale_by_lion",
    "scale_by_momentum", "scale_by_muon", "scale_by_parameter_scale", "scale_by_rms",
    "scale_by_sum_of_squares",
    # schedules
    "constant_schedule", "cosine_decay_schedule", "join_schedules", "linear_schedule",
    "piecewise_constant_schedule", "warmup_cosine_decay_schedule", "warmup_stable_decay_schedule",
    # what tools ask for
    "check_learning_rates", "find_learning_rates", "global_norm", "match_parameters",
    "orthogonalize",
]  # fmt: skip
