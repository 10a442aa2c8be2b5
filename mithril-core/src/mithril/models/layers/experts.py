"""On which devices the experts of a mixture lie: what `expert_distribution` means.

Experts lie in stacks, which are split evenly over devices. A mapping from experts to devices is an
order of the stack: the experts of the first device first, then those of the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mithril.errors import OptionError, nearest
from mithril.models.annotations import Slices

DISTRIBUTIONS = ("balanced", "one_per_device")
Distribution = str | Mapping[int, int] | None


def stack_order(count: int, distribution: Distribution) -> tuple[int, ...]:
    """Return which expert is in each place of the stack.

    >>> stack_order(4, {0: 1, 1: 0, 2: 1, 3: 0})
    (1, 3, 0, 2)
    """
    if not isinstance(distribution, Mapping):
        return tuple(range(count))
    return tuple(sorted(range(count), key=lambda expert: distribution[expert]))


def read_distribution(count: int, distribution: object) -> Slices:
    """Return what a distribution of experts needs of the devices.

    Args:
        count: number of experts.
        distribution: "balanced" or None, "one_per_device", or a mapping from expert to device.

    Raises:
        OptionError: there is no such distribution, or a mapping leaves out an expert, knows too
            many, has devices that cannot be, or gives devices unequal numbers of experts.
    """
    if isinstance(distribution, Mapping):
        return Slices("MoE", "experts", count, _devices_of(count, distribution))
    if distribution is not None and distribution not in DISTRIBUTIONS:
        near = nearest(distribution, DISTRIBUTIONS) if isinstance(distribution, str) else ""
        raise OptionError(
            f"MoE option 'expert_distribution' is {distribution!r}; it must be 'balanced', "
            f"'one_per_device' or a mapping from expert to device{near}"
        )
    return Slices("MoE", "experts", count, count if distribution == "one_per_device" else None)


def _devices_of(count: int, mapping: Mapping[Any, Any]) -> int:
    """Return how many devices a mapping is for."""
    for number in range(count):
        if number not in mapping:
            raise OptionError(
                f"MoE option 'expert_distribution' has no device for expert {number}; give one for "
                f"each of {count} experts, 0…{count - 1}"
            )
    for expert, device in mapping.items():
        if expert not in range(count):
            raise OptionError(
                f"MoE option 'expert_distribution' places expert {expert!r}, and there are "
                f"{count}, 0…{count - 1}; remove it"
            )
        is_number = isinstance(device, int | np.integer) and not isinstance(device, bool)
        if not is_number or not 0 <= device < count:
            raise OptionError(
                f"MoE option 'expert_distribution' places expert {expert} on device {device!r}; "
                f"give an integer from 0, along the mesh dimension of the experts, of which "
                f"{count} experts can use {count}, 0…{count - 1}"
            )
    found = [int(device) for device in mapping.values()]
    loads = [found.count(device) for device in range(max(found) + 1)]
    if len(set(loads)) > 1:
        raise OptionError(
            f"MoE option 'expert_distribution' gives devices 0…{len(loads) - 1} {loads} experts; "
            f"give each device equally many, as stacks are split evenly"
        )
    return len(loads)
