"""What is asked of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.mesh import Mesh, Sharding
from mithril.sharding import UNSAID, Layout
from mithril.transform import gradient_of
from mithril.transform.stack import Slice


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a plan.

    Args:
        layouts: how tensors lie, as far as that is said, by name of an input, an output, or a value
            between; the gradient of an output `y` arrives as the input `cotangent_name("y")`.
        cotangents: names of the outputs whose gradients are given; None for a forward plan.
        differentiated: inputs whose gradients are wanted; they leave as the inputs arrive.
        pads: whether a dimension may be split that does not divide; its parts are then padded.
        notes: facts for readers of the plan.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    cotangents: tuple[str, ...] | None = None
    differentiated: tuple[str, ...] = ()
    pads: bool = True
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> Layout:
        """Return what is said of a tensor."""
        return self.layouts.get(name, UNSAID)

    def existing(self) -> dict[str, Sharding]:
        """Return how the arrays lie that exist already, by name."""
        given = ((name, layout.existing) for name, layout in self.layouts.items())
        return {name: sharding for name, sharding in given if sharding is not None}

    def meshes(self) -> Iterator[Mesh]:
        """Yield the mesh of every sharding: the backend's, or a refinement of it."""
        for layout in self.layouts.values():
            yield from (sharding.mesh for sharding in layout.shardings())

    def following(self) -> Request:
        """Return the request that says of gradients, too, how they leave: as their inputs arrive.

        For the joint graph of outputs and gradients.
        """
        if self.cotangents is None:
            return self
        gradients = {gradient_of(name): Layout(follows=name) for name in self.differentiated}
        return replace(self, layouts={**self.layouts, **gradients})


def of_slices(request: Request, slices: Sequence[Slice]) -> Request:
    """Return a request about stacked parameters as one about the parts they are cut into.

    Args:
        request: about whole stacks.
        slices: the parts.
    """
    parts: dict[str, list[str]] = {}
    for part in slices:
        parts.setdefault(part.stack, []).append(part.name)
    layouts: dict[str, Layout] = {}
    for name, layout in request.layouts.items():
        if name in parts:
            layouts |= dict.fromkeys(parts[name], _of_part(layout))
        else:
            layouts[name] = layout

    def names_of(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(part for name in names for part in parts.get(name, [name]))

    return replace(request, layouts=layouts, differentiated=names_of(request.differentiated))


def _of_part(stack: Layout) -> Layout:
    """Return the layout of a part of a stack: the stack may exist, its parts do not."""
    lies = stack.existing
    if lies is not None:
        stack = replace(stack, arrives=None)
        if stack.computed is None and stack.rests is None:
            stack = replace(stack, computed=lies, binds=False)
    return stack.map(lambda whole: Sharding(whole.mesh, ((), *whole.dims[1:])))
