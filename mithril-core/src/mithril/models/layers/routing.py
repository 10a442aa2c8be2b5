"""Which experts get which tokens: the router of a mixture of experts, its queues and statistics.

Tokens come in groups, and everything here happens inside a group; only the statistics are of all
groups together. An expert serves the first choices of all tokens of a group in their order, then
the second ones, and so on, as in GShard (Lepikhin et al., 2020). Results do not depend on a mesh.
"""

from __future__ import annotations

import math
from builtins import min as least
from dataclasses import dataclass

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.ir.operand import apply_one
from mithril.models.trace_context import is_inference, layer_path, layer_salt, seed
from mithril.ops import (
    ScatterAlong,
    argsort,
    cast,
    concatenate,
    cumsum,
    einsum,
    exp,
    floor_divide,
    iota,
    log,
    max,
    minimum,
    moe_dispatch,
    one_hot,
    remainder,
    softmax,
    stop_gradient,
    sum,
    take_along,
    top_k,
    uniform,
    where,
)
from mithril.ops.reduce import accumulator
from mithril.types import DType

INT = DType.int32


@dataclass(frozen=True, slots=True)
class Routed:
    """What the router thinks of the tokens.

    Args:
        logits: [groups, tokens, experts], in float32 at least.
        total: [groups, tokens, 1], the logarithm of the sum of their exponentials.
        probabilities: [groups, tokens, experts].
        choices: [groups, tokens, top_k], the most probable experts, the best one first.
    """

    logits: Tensor
    total: Tensor
    probabilities: Tensor
    choices: Tensor


@dataclass(frozen=True, slots=True)
class CapacitySlots:
    """Which slots tokens get: every expert has `capacity` places in each group.

    A token has `top_k` slots. They are counted by rounds: the first ones of all tokens of a group,
    then the second ones.

    Args:
        experts: [groups, slots], the expert of each slot.
        places: [groups, slots], `expert * capacity + position in its queue`; -1 without a place.
        slots: [groups, places], which slot a place belongs to; -1 where it is empty.
        owners: [groups, places], which token that is; -1 where the place is empty.
        asked: [groups, experts], how many choices of tokens an expert was.
        served: [groups, experts], how many of its places are taken.
    """

    experts: Tensor
    places: Tensor
    slots: Tensor
    owners: Tensor
    asked: Tensor
    served: Tensor


def group_tokens(input: Tensor, experts: int, groups: int | None) -> Tensor:
    """Return the tokens as [groups, tokens, features].

    Args:
        input: [batch, sequence, features], or [rows, features].
        experts: how many there are, for the number of groups of rows.
        groups: how many groups of equal size; None for what fits the input.

    Raises:
        ShapeError: the input has another rank, or the groups do not divide the tokens.
    """
    if input.ndim not in (2, 3):
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [batch, sequence, features] or [rows, "
            f"features], not {input.type}; reshape it"
        )
    if groups is None and input.ndim == 3:
        return input
    count = math.prod(input.shape[:-1])
    groups = math.gcd(count, experts) if groups is None else groups
    if count % groups:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {count} tokens into {groups} groups; choose "
            f"groups that divides {count}"
        )
    return input.reshape(groups, count // groups, input.shape[-1])


def route(tokens: Tensor, weight: Tensor, choices: int, jitter: float) -> Routed:
    """Return the probabilities of experts for tokens, and the best ones.

    Args:
        tokens: [groups, tokens, features].
        weight: [experts, features].
        choices: how many experts a token gets.
        jitter: in training, features are multiplied by numbers from 1 - jitter to 1 + jitter on
            their way to the router (Fedus et al., "Switch transformers", 2021).
    """
    wide = accumulator(tokens.dtype)
    seen: Tensor = cast(tokens, wide)
    if jitter and not is_inference():
        noise: Tensor = uniform(seed(), tokens.shape, layer_salt())
        seen = seen * (cast(noise, wide) * (2.0 * jitter) + (1.0 - jitter))
    logits: Tensor = einsum("gnd,ed->gne", seen, cast(weight, wide))
    held: Tensor = stop_gradient(logits)
    largest: Tensor = max(held, -1, keepdims=True)
    total: Tensor = log(sum(exp(logits - largest), -1, keepdims=True)) + largest
    _, best = top_k(held, choices)
    return Routed(logits, total, exp(logits - total), best)


def assign_slots(routed: Routed, capacity: int, *, reroute: bool = False) -> CapacitySlots:
    """Return the slots of all tokens, every expert having as many places in a group.

    Args:
        routed: what the router thinks.
        capacity: places of an expert in a group.
        reroute: whether a token whose expert is full goes to its next best one that is not.
    """
    if reroute:
        experts, places, asked, served = _by_rounds(routed, capacity)
    else:
        experts, position, asked = _enqueue(routed)
        places = where(position < capacity, experts * capacity + position, -1)
        served = minimum(asked, capacity)
    return _slots(routed, (experts, places, asked, served), routed.logits.shape[-1] * capacity)


def pack(routed: Routed, rows: int) -> tuple[CapacitySlots, Tensor]:
    """Return the slots of all tokens, one expert behind the other, and the expert of each block.

    Every expert has as many blocks of places as it needs, so that no choice is without a place.

    Args:
        routed: what the router thinks.
        rows: places of a block.

    Returns:
        The slots, and [groups, blocks] the expert of each block; of blocks that nobody needs, the
        number of experts.
    """
    groups, tokens, choices = routed.choices.shape
    count, slots = routed.logits.shape[-1], choices * tokens
    blocks = (slots + least(count, slots) * (rows - 1)) // rows
    experts, position, asked = _enqueue(routed)
    sizes = floor_divide(asked + (rows - 1), rows) * rows
    ends = cumsum(sizes, 1)
    places = take_along(ends - sizes, experts, 1) + position
    starts = iota(ends, (groups, blocks, 1), 1) * rows
    owners = sum(cast(ends.reshape(groups, 1, count) <= starts, INT), -1)
    return _slots(routed, (experts, places, asked, asked), blocks * rows), owners


def gates(routed: Routed, slots: CapacitySlots) -> Tensor:
    """Return the weight of the expert in each place, [groups, places, 1]; 0 in empty ones.

    The weights of a token's choices add up to 1; where it has but one, its weight is the
    probability, from which the router learns. That of a choice without a place is lost.
    """
    groups, tokens, choices = routed.choices.shape
    count = routed.logits.shape[-1]
    picked = one_hot(slots.experts.reshape(groups, choices, tokens), count, routed.logits.dtype)
    chosen = sum(picked * routed.logits.reshape(groups, 1, tokens, count), -1)
    if choices > 1:  # of logits, since the probabilities of second choices may all be rounded to 0
        weights = softmax(chosen, 1)
    else:
        weights = exp(chosen - routed.total.reshape(groups, 1, tokens))
    column = weights.reshape(groups, choices * tokens, 1)
    found: Tensor = moe_dispatch(column, slots.slots, slots.places)
    return found


def statistics(routed: Routed, slots: CapacitySlots) -> dict[str, Tensor]:
    """Return the auxiliary losses, and what shows how the experts are used.

    All of it is of all groups; each group adds its sums up first, so that one sum of a few numbers
    over the devices is left.
    """
    groups, tokens, choices = routed.choices.shape
    count, wide = routed.logits.shape[-1], routed.logits.dtype
    spread = routed.total - sum(routed.probabilities * routed.logits, -1, keepdims=True)
    parts = [
        cast(slots.asked, wide),
        sum(routed.probabilities, 1),
        cast(slots.served, wide),
        sum(routed.total * routed.total, 1),
        sum(spread, 1),
    ]
    sums: Tensor = sum(concatenate(parts, 1), 0)
    asked, probability, served = (sums[i * count : (i + 1) * count] for i in range(3))
    number = groups * tokens or 1
    requests = number * choices
    return {
        "load_balancing_loss": sum(asked * probability) * (count / (requests * number)),
        "router_z_loss": sums[3 * count] * (1 / number),
        "tokens_per_expert": cast(served, INT),
        "dropped_fraction": (groups * tokens * choices - sum(served)) * (1 / requests),
        "router_entropy": sums[3 * count + 1] * (1 / number),
    }


def _slots(
    routed: Routed, found: tuple[Tensor, Tensor, Tensor, Tensor], count: int
) -> CapacitySlots:
    """Return slots with the way back from `count` places."""
    experts, places, asked, served = found
    groups, tokens, choices = routed.choices.shape
    numbers: Tensor = iota(places, (groups, choices * tokens), 1)
    # What has no place meets in one more, which is cut off.
    target = where(places < 0, count, places)
    slots = apply_one(ScatterAlong(1, count + 1), target, numbers + 1)[:, :count] - 1
    owners: Tensor = where(slots < 0, -1, remainder(slots, tokens or 1))
    return CapacitySlots(experts, places, slots, owners, asked, served)


def _enqueue(routed: Routed) -> tuple[Tensor, Tensor, Tensor]:
    """Return the expert of each slot, its position in the queue, and how long queues are."""
    groups, tokens, choices = routed.choices.shape
    experts = routed.choices.transpose(0, 2, 1).reshape(groups, choices * tokens)
    wanted = one_hot(experts, routed.logits.shape[-1], INT)
    position = sum((cumsum(wanted, 1) - wanted) * wanted, -1)
    return experts, position, sum(wanted, 1)


def _by_rounds(routed: Routed, capacity: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Let every token walk down its list of experts until it has all its slots."""
    groups, tokens, choices = routed.choices.shape
    count = routed.logits.shape[-1]
    order = argsort(stop_gradient(routed.logits), descending=True)
    asked = sum(one_hot(routed.choices, count, INT), (1, 2))
    served = asked * 0
    assigned = sum(routed.choices, -1) * 0
    walked = []
    for step in range(count):
        expert = order[:, :, step]
        wanted = one_hot(expert, count, INT)
        if step >= choices:
            wanted = wanted * cast(assigned < choices, INT).reshape(groups, tokens, 1)
        position = served.reshape(groups, 1, count) + cumsum(wanted, 1) - wanted
        fitting = wanted * cast(position < capacity, INT)
        got = sum(fitting, -1)
        place = where(got > 0, expert * capacity + sum(position * fitting, -1), -1)
        walked.append(place.reshape(groups, tokens, 1))
        served, assigned = served + sum(fitting, 1), assigned + got
    found = concatenate(walked, -1)
    _, first = top_k(cast(found >= 0, INT), choices)
    places, experts = (
        take_along(x, first).transpose(0, 2, 1).reshape(groups, choices * tokens)
        for x in (found, order)
    )
    return experts, places, asked, served
