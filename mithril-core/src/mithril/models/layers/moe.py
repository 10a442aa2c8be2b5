"""Mixture of experts: many feed-forward networks, of which every token uses a few."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mithril.errors import OptionError
from mithril.ir import Tensor
from mithril.ir.source import at
from mithril.models.annotations import Slices, read_stack
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
from mithril.models.layers.activation import ACTIVATION, Activation, Function, read_activation
from mithril.models.layers.experts import Distribution, read_distribution, stack_order
from mithril.models.layers.routing import (
    CapacitySlots,
    Routed,
    assign_slots,
    gates,
    group_tokens,
    pack,
    route,
    statistics,
)
from mithril.models.shapes import require_features
from mithril.models.trace_context import parameter, section
from mithril.ops import (
    cast,
    concatenate,
    einsum,
    grouped_matmul,
    iota,
    minimum,
    moe_combine,
    moe_dispatch,
    take,
    where,
)

OUTPUTS = (
    "output", "load_balancing_loss", "router_z_loss", "tokens_per_expert", "dropped_fraction",
    "router_entropy",
)  # fmt: skip
_CAPACITY = Check(
    "a positive number, or None for room for all tokens",
    lambda value: value is None or POSITIVE_NUMBER.holds(value),
)
_OVERFLOW = Check("'drop' or 'reroute'", lambda value: value in ["drop", "reroute"])


def _parameters(activation: Activation, gated: bool, bias: bool) -> tuple[str, ...]:
    parts = ("in", "gate", "out") if read_activation(activation, gated)[1] else ("in", "out")
    kinds = ("weight", "bias") if bias else ("weight",)
    return ("router.weight", *(f"experts.{part}.{kind}" for part in parts for kind in kinds))


@dataclass(frozen=True, slots=True)
class _Network:
    """What all experts have in common."""

    count: int
    hidden: int
    bias: bool
    activate: Function
    is_gated: bool


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Rows times the weights of their experts, plus the biases."""


def _mixture(
    input: Tensor,
    *,
    num_experts: int,
    expert_dim: int,
    top_k: int = 2,
    capacity_factor: float | None = 1.25,
    expert_distribution: Distribution = None,
    activation: Activation = "gelu",
    bias: bool = True,
    overflow: str = "drop",
    jitter: float = 0.0,
    groups: int | None = None,
    gated: bool = False,
    is_spread: bool = False,
) -> dict[str, Tensor]:
    """Route, let experts work, bring back; `is_spread` says that they lie on several devices."""
    require_features(input)
    network = _Network(num_experts, expert_dim, bias, *read_activation(activation, gated))
    tokens = group_tokens(input, num_experts, groups)
    order = stack_order(num_experts, expert_distribution)
    with section("router"):
        start = fan_in_uniform(input.shape[-1])
        weight = parameter("weight", (num_experts, input.shape[-1]), start)
        routed = route(tokens, _rearrange(weight, order), top_k, jitter)
    assigned = capacity_factor, overflow == "reroute", is_spread
    output, slots = _serve(tokens, routed, network, *assigned)
    with section("router"):
        found = statistics(routed, slots)
    back = tuple(order.index(expert) for expert in range(num_experts))
    found["tokens_per_expert"] = _rearrange(found["tokens_per_expert"], back)
    return {"output": output.reshape(*input.shape), **found}


def _serve(
    tokens: Tensor,
    routed: Routed,
    network: _Network,
    factor: float | None,
    reroute: bool,
    is_spread: bool,
) -> tuple[Tensor, CapacitySlots]:
    """Seat tokens, and let experts work in the way that fits.

    Experts with the same room each have queues of one size. Without a limit they work on blocks,
    as many as they need; but what travels between devices has a size that is known beforehand, so
    that there each has a queue with room for all tokens, of which it works on the blocks in use.
    """
    count = tokens.shape[1]
    share = Fraction(math.prod(routed.choices.shape[1:]), network.count)
    rows = _block_rows(int(share))
    if factor is not None:
        room = math.ceil(Fraction(str(factor)) * share)  # 1.1 of 50 are 55, and no bit more
        slots = assign_slots(routed, min(count, room), reroute=reroute)
        return _in_queues(tokens, routed, slots, network), slots
    if is_spread:
        slots = assign_slots(routed, -(-count // rows) * rows)
        return _in_long_queues(tokens, routed, slots, network, rows), slots
    slots, owners = pack(routed, rows)
    return _in_blocks(tokens, routed, slots, network, owners), slots


def _in_queues(tokens: Tensor, routed: Routed, slots: CapacitySlots, network: _Network) -> Tensor:
    """Let every expert work on all of its queue."""

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _plus(einsum("egci,eoi->egco", x, weight), bias)

    places = _dispatch(tokens, slots, network.count)
    return _gather(_experts(places, network, multiply), routed, slots)


def _in_long_queues(
    tokens: Tensor, routed: Routed, slots: CapacitySlots, network: _Network, rows: int
) -> Tensor:
    """Let every expert work on those blocks of its queue that are in use."""
    places = _dispatch(tokens, slots, network.count)
    count, groups, capacity, features = places.shape
    blocks = (count, groups, capacity // rows)
    in_use = iota(places, blocks, 2) * rows < slots.served.transpose(1, 0).reshape(*blocks[:2], 1)
    ids = where(in_use, iota(places, blocks, 0), -1).reshape(count, groups * blocks[2])

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _plus(grouped_matmul(x, ids, weight, aligned=True), bias)

    made = _experts(places.reshape(*ids.shape, rows, features), network, multiply)
    return _gather(made.reshape(*places.shape), routed, slots)


def _in_blocks(
    tokens: Tensor, routed: Routed, slots: CapacitySlots, network: _Network, owners: Tensor
) -> Tensor:
    """Let experts work on the blocks they own."""
    places: Tensor = moe_dispatch(tokens, slots.owners, slots.places)
    groups, blocks = owners.shape
    near: Tensor = minimum(owners, network.count - 1)  # what nobody needs may get any bias

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        made: Tensor = grouped_matmul(x, owners, weight)
        if bias is None:
            return made
        chosen: Tensor = take(bias, near)
        return made + chosen.reshape(groups, blocks, 1, bias.shape[1])

    rows = places.shape[1] // (blocks or 1)
    made = _experts(places.reshape(groups, blocks, rows, tokens.shape[2]), network, multiply)
    return _combine(made.reshape(*places.shape), routed, slots)


def _dispatch(tokens: Tensor, slots: CapacitySlots, experts: int) -> Tensor:
    """Return the queues of experts, [experts, groups, places, features]: here tokens travel."""
    places: Tensor = moe_dispatch(tokens, slots.owners, slots.places)
    groups, count, features = places.shape
    return places.reshape(groups, experts, count // experts, features).transpose(1, 0, 2, 3)


def _gather(made: Tensor, routed: Routed, slots: CapacitySlots) -> Tensor:
    """Return for each token what came out of the queues it was in: here it travels back."""
    experts, groups, count, features = made.shape
    places = made.transpose(1, 0, 2, 3).reshape(groups, experts * count, features)
    return _combine(places, routed, slots)


def _combine(places: Tensor, routed: Routed, slots: CapacitySlots) -> Tensor:
    """Return for each token what its experts made of it, added up by their weights."""
    weighted = places * cast(gates(routed, slots), places.dtype)
    total: Tensor = moe_combine(weighted, slots.places, slots.owners, routed.choices.shape[1])
    return total


def _plus(made: Tensor, bias: Tensor | None) -> Tensor:
    """Add the biases [experts, features] to [experts, …, …, features]."""
    return made if bias is None else made + bias.reshape(bias.shape[0], 1, 1, bias.shape[1])


def _block_rows(share: int) -> int:
    """Return the size of a block: a power of two, small against the share of an expert."""
    return 1 << min(6, max(1, share // 4).bit_length() - 1)


def _rearrange(x: Tensor, order: tuple[int, ...]) -> Tensor:
    if order == tuple(range(len(order))):
        return x
    rows: Tensor = concatenate([x[place : place + 1] for place in order])
    return rows


def _experts(x: Tensor, network: _Network, multiply: Product) -> Tensor:
    """Apply the experts to rows of features, the last dimension."""

    def layer(x: Tensor, dimension: int) -> Tensor:
        start = fan_in_uniform(x.shape[-1])
        shape = (network.count, dimension)
        weight = parameter("weight", (*shape, x.shape[-1]), start, stacked=1)
        bias = parameter("bias", shape, start, stacked=1) if network.bias else None
        return multiply(x, weight, bias)

    with section("experts.in"):
        wide = layer(x, network.hidden)
        if not network.is_gated:
            wide = network.activate(wide)
    if network.is_gated:
        with section("experts.gate"):
            wide = network.activate(layer(x, network.hidden)) * wide
    with section("experts.out"):
        return layer(wide, x.shape[-1])


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
    if gated, `experts.gate.weight` and `experts.gate.bias` like those of `in`. A
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
        activation: a name or a function, as in `FeedForward`.
        bias: whether experts have biases.
        overflow: what becomes of a choice whose expert is full: "drop", or "reroute" to the
            token's next best expert that has room, in one more round for each further expert.
        jitter: in training, what the router sees is multiplied by random numbers from 1 - jitter
            to 1 + jitter.
        groups: number of groups of equal size the tokens are cut into. By default a sequence of
            [batch, sequence, features] is a group, and [rows, features] are cut into as many as
            the greatest common divisor of rows and num_experts.
        gated: whether the activation is that of a gate, as in `FeedForward`.
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
                "num_experts": POSITIVE,
                "expert_dim": POSITIVE,
                "top_k": POSITIVE,
                "capacity_factor": _CAPACITY,
                "activation": ACTIVATION,
                "overflow": _OVERFLOW,
                "jitter": FRACTION,
                "groups": POSITIVE_OR_NONE,
            },
        ),
        name="MoE",
    )
    # Whether the experts lie on several devices follows from how they are split: no option.
    definition = replace(
        definition, options=tuple(o for o in definition.options if o.name != "is_spread")
    )

    __signature__ = signature_of(definition)

    def __init__(self, *values: Any, **options: Any) -> None:
        by_spec = [o for o in ("sharding", "weight_shard_spec") if options.get(o) is not None]
        laid = {} if by_spec else {o: options.pop(o, None) for o in _MESH_OPTIONS}
        super().__init__(*values, **options)
        _check(self, by_spec, [option for option, value in laid.items() if value is not None])
        distribution = self.config["expert_distribution"]
        slices = read_distribution(self.config["num_experts"], distribution)
        if isinstance(distribution, Mapping):  # the user's may change
            self.config = {**self.config, "expert_distribution": dict(distribution)}
        given = {option: value for option, value in laid.items() if value is not None}
        if given or distribution is not None:
            self._spread(slices, given)
        is_spread = any(name.startswith("experts.") for name in self.annotations)
        self.config = {**self.config, "is_spread": is_spread}

    def _spread(self, slices: Slices, given: Mapping[str, object]) -> None:
        """Split the stacks over the last mesh dimension that may be used."""
        annotation = read_stack(
            slices, given.get("device_mesh"), given.get("device_mesh_partition"), at(self.source)
        )
        stacks = [name for name in self.parameters if name.startswith("experts.")]
        self.annotations = {} if annotation is None else dict.fromkeys(stacks, annotation)
        self.sharding_options = {**self.sharding_options, **given}

    @property
    def kind(self) -> str:
        """The class name as it is counted in names."""
        return "moe"


_MESH_OPTIONS = ("device_mesh", "device_mesh_partition")


def _check(layer: MoE, by_spec: list[str], laid: list[str]) -> None:
    """Refuse options that contradict one another."""
    config = layer.config
    if config["expert_distribution"] is not None:
        laid = [*laid, "expert_distribution"]
    if layer.device_id is not None and laid:
        raise OptionError(
            f"MoE has both device_id={layer.device_id} and {laid[0]}; a layer is on one device or "
            f"split over several: remove one of them"
        )
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


__all__ = ["MoE"]
