"""Mixture of experts: many feed-forward networks, of which every token uses a few."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mithril.errors import OptionError, ShapeError
from mithril.ir import Tensor
from mithril.models.annotations import read_stack
from mithril.models.caller import at
from mithril.models.definition import (
    FRACTION,
    POSITIVE,
    POSITIVE_NUMBER,
    POSITIVE_OR_NONE,
    Check,
    define,
)
from mithril.models.initializers import fan_in_uniform
from mithril.models.layer import Layer, signature_of
from mithril.models.layers.experts import Distribution, read_distribution, stack_order
from mithril.models.layers.linear import ACTIVATION, ACTIVATIONS
from mithril.models.layers.routing import Routed, Seats, gates, route, seat, statistics
from mithril.models.shapes import require_features
from mithril.models.tracing import layer_path, parameter, section
from mithril.ops import cast, concatenate, einsum, silu, sum_rows, take_rows

OUTPUTS = (
    "output", "load_balancing_loss", "router_z_loss", "tokens_per_expert", "dropped_fraction",
    "router_entropy",
)  # fmt: skip
_CAPACITY = Check(
    "a positive number or None", lambda value: value is None or POSITIVE_NUMBER.holds(value)
)
_OVERFLOW = Check("'drop' or 'reroute'", lambda value: value in ["drop", "reroute"])


def _parameters(activation: str, bias: bool) -> tuple[str, ...]:
    parts = ("in", "gate", "out") if activation == "swiglu" else ("in", "out")
    kinds = ("weight", "bias") if bias else ("weight",)
    return ("router.weight", *(f"experts.{part}.{kind}" for part in parts for kind in kinds))


def _mixture(
    input: Tensor,
    *,
    num_experts: int,
    expert_dim: int,
    top_k: int = 2,
    capacity_factor: float | None = 1.25,
    expert_distribution: Distribution = None,
    activation: str = "gelu",
    bias: bool = True,
    overflow: str = "drop",
    jitter: float = 0.0,
    groups: int | None = None,
) -> dict[str, Tensor]:
    require_features(input)
    tokens = _grouped(input, num_experts, groups)
    order = stack_order(num_experts, expert_distribution)
    with section("router"):
        start = fan_in_uniform(input.shape[-1])
        weight = parameter("weight", (num_experts, input.shape[-1]), start)
        routed = route(tokens, _rearranged(weight, order), top_k, jitter)
        capacity = _capacity(tokens.shape[1], num_experts, top_k, capacity_factor)
        seats = seat(routed, capacity, reroute=overflow == "reroute")
        found = statistics(routed, seats)
    places: Tensor = take_rows(tokens, seats.owners, seats.places)
    shape = (tokens.shape[0], num_experts, capacity, input.shape[-1])
    with section("experts"):
        made = _experts(places.reshape(*shape).transpose(1, 0, 2, 3), expert_dim, activation, bias)
    made = made.transpose(1, 0, 2, 3).reshape(*places.shape)
    output = _gathered(made, routed, seats).reshape(*input.shape)
    back = tuple(order.index(expert) for expert in range(num_experts))
    found["tokens_per_expert"] = _rearranged(found["tokens_per_expert"], back)
    return {"output": output, **found}


def _grouped(input: Tensor, experts: int, groups: int | None) -> Tensor:
    """Return the tokens as [groups, tokens, features]."""
    if input.ndim not in (2, 3):
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [batch, sequence, features] or [rows, "
            f"features], not {input.type}; reshape it"
        )
    count = math.prod(input.shape[:-1])
    if groups is None:
        groups = input.shape[0] if input.ndim == 3 else math.gcd(count, experts)
    if groups and count % groups:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {count} tokens into {groups} groups; choose "
            f"groups that divides {count}"
        )
    return input.reshape(groups, count // (groups or 1), input.shape[-1])


def _capacity(tokens: int, experts: int, choices: int, factor: float | None) -> int:
    """Return how many tokens of a group an expert has room for: all of them, or its share."""
    if factor is None:
        return tokens
    return min(tokens, math.ceil(factor * choices * tokens / experts))


def _rearranged(x: Tensor, order: tuple[int, ...]) -> Tensor:
    if order == tuple(range(len(order))):
        return x
    rows: Tensor = concatenate([x[place : place + 1] for place in order])
    return rows


def _experts(x: Tensor, hidden: int, activation: str, bias: bool) -> Tensor:
    """Apply each expert to its tokens, [experts, groups, places, features]."""
    with section("in"):
        wide = _stack(x, hidden, bias)
    if activation == "swiglu":
        with section("gate"):
            wide = silu(_stack(x, hidden, bias)) * wide
    else:
        with section("in"):
            wide = ACTIVATIONS[activation](wide)
    with section("out"):
        return _stack(wide, x.shape[-1], bias)


def _stack(x: Tensor, dimension: int, bias: bool) -> Tensor:
    """Return what a stack of linear layers makes of [experts, groups, places, features]."""
    experts, features = x.shape[0], x.shape[-1]
    start = fan_in_uniform(features)
    weight = parameter("weight", (experts, dimension, features), start)
    output: Tensor = einsum("egci,eoi->egco", x, weight)
    if not bias:
        return output
    return output + parameter("bias", (experts, dimension), start).reshape(experts, 1, 1, dimension)


def _gathered(made: Tensor, routed: Routed, seats: Seats) -> Tensor:
    """Return for each token what its experts made of it, added up by their weights."""
    weighted = made * cast(gates(routed, seats), made.dtype)
    total: Tensor = sum_rows(weighted, seats.places, seats.owners, routed.choices.shape[1])
    return total


class MoE(Layer):
    """Send every token to a few of many feed-forward networks, the experts, and add up the results.

    A router, softmax(input @ router.weight.T), chooses the `top_k` most probable experts of a token
    (Shazeer et al., "The sparsely-gated mixture-of-experts layer", 2017). Tokens come in groups, in
    each of which an expert has room for `capacity_factor * top_k * tokens / num_experts` of them,
    rounded up (Lepikhin et al., "GShard", 2020); first choices come first. With top_k=1 an output
    is weighted by the expert's probability (Fedus et al., "Switch transformers", 2021), else the
    weights of the chosen ones are scaled to add up to 1.

    Parameters are `router.weight` (num_experts, features) and stacks of one entry an expert:
    `experts.in.weight` (num_experts, expert_dim, features), `experts.in.bias` (num_experts,
    expert_dim), `experts.out.weight` (num_experts, features, expert_dim) and `experts.out.bias`;
    with "swiglu", `experts.gate.weight` and `experts.gate.bias` like those of `in`. A
    `weight_shard_spec` list gives the spec of in and gate, then that of out.

    With `device_mesh` or `expert_distribution` the stacks are split over the last mesh dimension
    that device_mesh and device_mesh_partition allow. Tokens that are split over the same dimension
    travel to their experts and back in an all-to-all each. Results are the same on every mesh.

    Args:
        num_experts: number of experts.
        expert_dim: features inside an expert.
        top_k: experts a token is sent to.
        capacity_factor: room of an expert, as a multiple of an equal share; None for room for all
            tokens, so that none is ever dropped.
        expert_distribution: "balanced", equally many experts on each device; "one_per_device"; or
            a mapping from expert to device, counted along that mesh dimension, which says in what
            order the stacks hold the experts. Without it, "balanced" where device_mesh is given.
        activation: "gelu", "relu", "silu" or "swiglu".
        bias: whether experts have biases.
        overflow: what becomes of a choice whose expert is full: "drop", or "reroute" to the
            token's next best expert that has room, in one more round for each further expert.
        jitter: in training, what the router sees is multiplied by random numbers from 1 - jitter
            to 1 + jitter.
        groups: number of groups of equal size the tokens are cut into. By default a sequence of
            [batch, sequence, features] is a group, and [rows, features] are cut into as many as
            the greatest common divisor of rows and num_experts.
        name: what the layer is called; counted (`moe_0`) by default.
        options: how parameters are split and kept, as for every layer.

    Returns:
        `output`, of the input's shape, [batch, sequence, features] or [rows, features];
        `load_balancing_loss`, num_experts times the sum over experts of their share of choices by
        their mean probability, 1 at best (Switch); `router_z_loss`, the mean square of the
        logarithm of the sum of the router's exponentials (Zoph et al., "ST-MoE", 2022);
        `tokens_per_expert` (num_experts,), int32, how many each has worked on;
        `dropped_fraction`, the share of choices that found no room; and `router_entropy`, the mean
        entropy of the router's probabilities, in nats. Losses and statistics are of all tokens, in
        float32 at least.

    Raises:
        OptionError: top_k is larger than num_experts, the experts do not divide among the devices,
            a distribution cannot be, or overflow or device_mesh_partition has no effect.
        ShapeError: the input is not of floats or has another rank, or the groups do not divide the
            tokens.

    >>> MoE(num_experts=8, expert_dim=64, device_mesh=(8,)).output_ports[:2]
    ('output', 'load_balancing_loss')
    """

    __slots__ = ()
    definition = replace(
        define(
            _mixture,
            _parameters,
            OUTPUTS,
            (("experts.in.weight", "experts.gate.weight"), ("experts.out.weight",)),
            {
                "num_experts": POSITIVE, "expert_dim": POSITIVE, "top_k": POSITIVE,
                "capacity_factor": _CAPACITY, "activation": ACTIVATION, "overflow": _OVERFLOW,
                "jitter": FRACTION, "groups": POSITIVE_OR_NONE,
            },
        ),
        name="MoE",
    )  # fmt: skip

    __signature__ = signature_of(definition)

    def __init__(self, *values: Any, **options: Any) -> None:
        by_spec = [o for o in ("sharding", "weight_shard_spec") if options.get(o) is not None]
        laid = {} if by_spec else {o: options.pop(o, None) for o in _MESH_OPTIONS}
        super().__init__(*values, **options)
        _check(self, by_spec)
        distribution = self.config["expert_distribution"]
        slices = read_distribution(self.config["num_experts"], distribution)
        if isinstance(distribution, Mapping):  # the user's may change
            self.config = {**self.config, "expert_distribution": dict(distribution)}
        given = {option: value for option, value in laid.items() if value is not None}
        if not given and distribution is None:
            return
        annotation = read_stack(
            slices, laid.get("device_mesh"), laid.get("device_mesh_partition"), at(self.source)
        )
        stacks = [name for name in self.parameters if name.startswith("experts.")]
        self.annotations = {} if annotation is None else dict.fromkeys(stacks, annotation)
        self.sharding_options = {**self.sharding_options, **given}

    @property
    def kind(self) -> str:
        """The class name as it is counted in names."""
        return "moe"


_MESH_OPTIONS = ("device_mesh", "device_mesh_partition")


def _check(layer: MoE, by_spec: list[str]) -> None:
    """Refuse options that contradict one another."""
    config = layer.config
    if config["top_k"] > config["num_experts"]:
        raise OptionError(
            f"MoE sends a token to top_k={config['top_k']} of {config['num_experts']} experts; "
            f"choose top_k up to num_experts"
        )
    if config["overflow"] == "reroute" and config["capacity_factor"] is None:
        raise OptionError(
            "MoE option overflow='reroute' has no effect with capacity_factor=None, where no "
            "expert is ever full; give a capacity_factor, or remove it"
        )
    if by_spec and config["expert_distribution"] is not None:
        raise OptionError(
            f"MoE has both expert_distribution and {by_spec[0]}; give one of them, as both say how "
            f"the experts are split"
        )
