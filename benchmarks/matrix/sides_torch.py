"""The sides of a row on PyTorch: one process, or those of a job of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mithril as ml
import numpy as np
import torch
from torch import nn

from benchmarks.matrix.by_hand_torch import make_module, name_in_module
from benchmarks.matrix.cases import STEP, Row
from benchmarks.matrix.contest import (
    MITHRIL,
    Arrays,
    Gradients,
    Ours,
    Side,
    check_gradients,
    check_losses,
    take_time,
)
from benchmarks.matrix.models import make_data
from benchmarks.torch_sides import count_peak
from benchmarks.training_torch import by_hand, can_compile, fused, list_held


def open_ours(row: Row) -> Ours:
    """Return Mithril's side, with kernels of PyTorch's compiler where that is among the peers."""
    layout = "channels_last" if row.model == "resnet-channels-last" else "auto"
    mesh, jit = ml.Mesh(**row.mesh), "auto" if can_compile() else False
    backend = ml.TorchBackend(mesh, device="cpu", memory_format=layout, jit=jit)
    return Ours(row, backend, lambda _: None)


def read_inputs(row: Row) -> tuple[torch.Tensor, ...]:
    """Return inputs and targets as PyTorch takes them."""
    arrays = make_data(row).values()
    return tuple(torch.tensor(x).long() if x.dtype == np.int32 else torch.tensor(x) for x in arrays)


def differentiate(row: Row, params: Arrays) -> Gradients:
    """Return the loss by hand, and gradients by Mithril's names and shapes."""
    module = make_module(row, params)
    loss = module(*read_inputs(row))
    loss.backward()
    found = {name_in_module(n): (n, x.shape) for n, x in params.items()}
    gradients = {}
    for own, parameter in module.named_parameters():
        name, shape = found[own]
        assert parameter.grad is not None, f"{own} has no gradient"
        gradients[name] = parameter.grad.numpy().reshape(shape)
    return float(loss.detach()), gradients


def contest(row: Row) -> dict[str, Side]:
    """Return the sides of one process, after a check that they give the same numbers."""
    ours = open_ours(row)
    check_gradients(ours.differentiate(), partial(differentiate, row), ours.start)
    sides = {MITHRIL: make_side(ours)}
    for name, (layout, is_compiled) in list_ways(row).items():
        module = make_module(row, ours.start, "indices" in name)
        sides[name] = alone(row, module, layout, is_compiled)
    check_losses(sides)
    return sides


def make_side(ours: Ours) -> Side:
    """Return Mithril's side, called once."""
    first = ours.planning + take_time(ours.run)
    return Side(ours.run, ours.loss, lambda: count_peak(ours.run, ours.list_held), first)


# ------------------------------------------------------------------ by hand, one process


def list_ways(row: Row) -> dict[str, tuple[torch.memory_format, bool]]:
    """Return memory format, and whether it is compiled, of each way to write a row by hand."""
    first, last = torch.contiguous_format, torch.channels_last
    layouts = {"eager": first}
    if row.model == "moe":
        layouts = {"eager, einsums": first, "eager, indices": first}
    elif row.model in ("resnet", "unet"):
        layouts = {"eager": first, "eager, channels last": last}
    elif row.model == "resnet-channels-last":
        layouts = {"eager, channels last": last}
    found = {name: (layout, False) for name, layout in layouts.items()}
    if can_compile():
        compiled = {n.replace("eager", "torch.compile"): x for n, x in layouts.items()}
        found |= {name: (layout, True) for name, layout in compiled.items()}
    return found


def alone(row: Row, module: nn.Module, layout: torch.memory_format, is_compiled: bool) -> Side:
    """Return a side by hand, called once."""
    module.to(memory_format=layout)
    inputs = tuple(x.to(memory_format=layout) if x.ndim == 4 else x for x in read_inputs(row))
    called = torch.compile(module) if is_compiled else module
    if row.kind == STEP:
        optimizer = fused(module.parameters())
        run = by_hand(called, inputs, optimizer)
    else:
        module.eval()
        optimizer = None

        @torch.inference_mode()
        def run() -> torch.Tensor:
            return called(*inputs)

    return side_of(run, module, optimizer, inputs)


def side_of(
    run: Callable[[], torch.Tensor], module: nn.Module, optimizer: Any, inputs: Any
) -> Side:
    """Return a side, called once."""

    def held() -> Iterator[torch.Tensor]:
        if optimizer is not None:
            return list_held(module, optimizer, inputs)
        return iter((*module.state_dict().values(), *inputs))

    first = take_time(run)
    return Side(run, lambda: float(run().detach()), lambda: count_peak(run, held), first)
