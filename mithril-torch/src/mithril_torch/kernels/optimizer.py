"""The update of AdamW, of one parameter and of many at once."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel
from mithril_torch.program.gather_updates import AdamWSteps


@kernel(ops.AdamWStep)
def adamw_step(op: ops.AdamWStep, types: Types) -> str:
    """(parameter, first moment, second moment), in memory of their own."""
    return _format(op, types)


@kernel(AdamWSteps)
def adamw_steps(op: AdamWSteps, types: Types) -> str:
    """All parameters, all first moments, all second moments."""
    return _format(op.step, types, op.own)


def _format(step: ops.AdamWStep, types: Types, own: tuple[bool, ...] = ()) -> str:
    count = (len(types) - 2) // 4
    operands = [f"{{{i}}}" for i in range(len(types))]
    lists = [f"[{', '.join(operands[i * count : (i + 1) * count])}]" for i in range(4)]
    numbers = map(number, (step.b1, step.b2, step.eps, step.weight_decay))
    given = ", ".join([*lists, *operands[-2:], *numbers])
    if len({type.dtype for type in types[:-2]}) > 1:
        return f"adamw_steps_by_formula({given})"
    return f"adamw_steps({given}, own={own})" if any(own) else f"adamw_steps({given})"
