"""`mithril tune`: the best strategy for a model on devices that are not here, as a file.

The core alone plans, as for `mithril plan`; nothing is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli.model_file import load_target, read_shapes
from mithril.errors import OptionError, kind_of
from mithril.option_checks import check_output

if TYPE_CHECKING:
    from mithril.runtime.training.optimizer import Optimizer

OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "lion", "muon", "adagrad", "rmsprop")


def tune(
    target: Annotated[str, typer.Argument(help="SCRIPT:NAME of a model.")],
    devices: Annotated[int, typer.Option(help="How many devices there would be.")],
    shapes: Annotated[
        str, typer.Option(help="Inputs of the model: x=8x16,ids=8x4:int32 (name=sizes:dtype).")
    ],
    hardware: Annotated[
        str, typer.Option(help="Profile of the devices: a name, or a TOML file of your own.")
    ] = "simulated",
    objective: Annotated[
        str, typer.Option(help="throughput, latency, memory_usage or communication.")
    ] = "throughput",
    space: Annotated[
        str, typer.Option(help="data, tensor, pipeline, mixed or mixed_parallel.")
    ] = "mixed_parallel",
    budget: Annotated[float, typer.Option(help="Hours that it may take.")] = 2.0,
    optimizer: Annotated[
        str, typer.Option(help="Plan a train step with this optimiser: adamw, sgd, ….")
    ] = "",
    loss: Annotated[str, typer.Option(help="The output that a train step makes smaller.")] = "loss",
    dtype: Annotated[str, typer.Option(help="Of parameters, products and activations.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the strategy to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the strategy as JSON.")] = False,
) -> None:
    """Find the best strategy for a model: mesh, splits, stages, micro-batches, ZeRO."""
    import mithril as ml
    from mithril.models import Layer

    if out is not None:
        check_output("--out", out)
    model = load_target(target)
    if not isinstance(model, ml.Model | Layer):
        raise OptionError(f"'{target}' is {kind_of(model)}; name a model that is not compiled")
    found = ml.auto_tune(
        model,
        hardware,
        input_shapes=read_shapes(shapes),
        tuning_objective=objective,
        tuning_budget_hours=budget,
        strategy_space=space,
        devices=devices,
        optimizer=read_optimizer(optimizer) if optimizer else None,
        loss=loss,
        precision=ml.Precision(dtype=dtype) if dtype else None,
    )
    if out is not None:
        found.save(out)
    typer.echo(found.to_json() if as_json else str(found))


def read_optimizer(name: str) -> Optimizer:
    """Return an optimiser by its name, with a usual learning rate.

    Raises:
        OptionError: there is none of that name.
    """
    import mithril as ml
    from mithril.option_checks import check_choice

    check_choice("--optimizer", name, OPTIMIZERS)
    found: Optimizer = getattr(ml.optim, name)(1e-3)
    return found


__all__ = ["tune"]
