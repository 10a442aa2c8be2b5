"""Products of matrices of float32 by oneDNN; see `program.onednn`."""

from __future__ import annotations

import torch


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ weight.T, plus a vector.

    The weight may lie as it likes; an x whose rows do not lie in order is copied.
    """
    if x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return torch.nn.functional.linear(x, weight, bias)
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return made


__all__ = ["multiply"]
