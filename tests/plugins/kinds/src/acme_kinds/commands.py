"""Commands, as Typer takes them."""

from typing import Annotated

import typer


def count(
    layer: Annotated[str, typer.Argument(help="A layer of Mithril without options.")],
    size: Annotated[int, typer.Option(min=1, help="Elements of its input.")] = 4,
) -> None:
    """Count the nodes of a layer's plan on one device."""
    import mithril as ml

    compiled = ml.compile(getattr(ml, layer)(), ml.NumpyBackend(), inference=True)
    plan = compiled.plan_for({"input": (size,)}, gradients=False)
    nodes = sum(len(stage.program.graph.nodes) for stage in plan.stages)
    typer.echo(f"{layer} of {size} elements: {nodes} nodes")
