"""The update of AdamW, of one parameter and of many at once."""

from __future__ import annotations

from mithril import ops
from mithril.engine.kernels.registry import Types

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel
from mithril_torch.program.gather_updates import AdamWSteps


@kernel(ops.AdamWStep)
def adamw_step(op: ops.AdamWStep, types: Types) -> str:
    """(parameter, first moment, second moment), in memory of their own."""
    numbers = ", ".join(map(number, (op.b1, op.b2, op.eps, op.weight_decay)))
    return f"adamw_steps([{{0}}], [{{1}}], [{{2}}], [{{3}}], {{4}}, {{5}}, {numbers})"


@kernel(AdamWSteps)
def adamw_steps(op: AdamWSteps, types: Types) -> str:
    """All parameters, all first moments, all second moments."""
    step, count = op.step, (len(types) - 2) // 4
    lists = [f"[{', '.join(f'{{{i}}}' for i in range(n * count, n * count + count))}]" for n in range(4)]
    numbers = ", ".join(map(number, (step.b1, step.b2, step.eps, step.weight_decay)))
    scalars = f"{{{4 * count}}}, {{{4 * count + 1}}}"
    said = f", own={op.own}" if any(op.own) else ""
    return f"adamw_steps({', '.join(lists)}, {scalars}, {numbers}{said})"
