"""What a search finds, against recipes that people split models by, in predicted cost.

Twenty models, five meshes and two profiles of hardware: `auto_partition` lays out each model of which
nothing is said, and the same model is compiled as each of seventeen recipes says (`recipe_strategies`).
Two figures are compared: seconds of the finished plan, whose collectives travel together and beside
work, and those of work and collectives one after another, of which a search knows the least. The
search may not be above any recipe in the first, nor in the second but for a gap that it tells.

    python -m benchmarks.recipes [--models …] [--meshes …] [--hardware …] [--seed N] [--worst N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import mithril as ml
from mithril.cost import Hardware, Level
from mithril.errors import MithrilError
from mithril.plan import Plan
from mithril.runtime.planned import plan_backend

from benchmarks.recipe_models import MODELS, make_case
from benchmarks.recipe_strategies import RECIPES, Inapplicable, Recipe, list_parameters

SLOWER = 20
"""By so much is a link between nodes slower than one inside."""
MESHES: Mapping[str, tuple[Mapping[str, int], bool]] = {
    "data=8": ({"data": 8}, False),
    "data=2, tensor=4": ({"data": 2, "tensor": 4}, False),
    "a=2, b=2, c=2": ({"a": 2, "b": 2, "c": 2}, False),
    "node=2, gpu=4": ({"node": 2, "gpu": 4}, True),
    "a=4, b=4": ({"a": 4, "b": 4}, False),
}
"""By name: sizes of the axes, and whether the first one goes over a slow link."""
HARDWARE = ("h100-sxm", "cpu")
ALLOWED = 1e-9
"""Of a cost, what rounding may take."""


@dataclass(frozen=True, slots=True)
class Priced:
    """What a plan is predicted to take.

    Args:
        in_turn: seconds of work and collectives one after another.
        planned: seconds of the finished plan.
        gap: by what part of `in_turn` a search may be off the best.
    """

    in_turn: float
    planned: float
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A model on a mesh of some devices.

    Args:
        name: of model, mesh and devices.
        found: what was searched for.
        recipes: each recipe that applies.
        refusals: why each other one does not.
        seconds: that the search took.
    """

    name: str
    found: Priced
    recipes: Mapping[str, Priced]
    refusals: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def best(self, figure: str) -> str:
        """Return the recipe that is best by one figure."""
        return min(self.recipes, key=lambda name: getattr(self.recipes[name], figure))

    def ratio(self, figure: str) -> float:
        """Return the figure of the search over that of the best recipe."""
        best = self.recipes[self.best(figure)]
        return float(getattr(self.found, figure) / getattr(best, figure))

    @property
    def is_met(self) -> bool:
        """Whether the search is not above any recipe, one after another but for a gap it tells."""
        in_turn = self.ratio("in_turn") * (1 - self.found.gap)
        return max(in_turn, self.ratio("planned")) <= 1 + ALLOWED

    def __str__(self) -> str:
        texts = [
            f"{text} {self.ratio(figure):.4f} of {self.best(figure)}"
            for figure, text in (("in_turn", "in turn"), ("planned", "planned"))
        ]
        gap = f", gap {100 * self.found.gap:.2g} %" if self.found.gap else ""
        return f"{self.name:<44} {', '.join(texts)}{gap}, {self.seconds:.1f} s"


def make_backend(mesh: str, hardware: str) -> ml.Backend:
    """Return devices to plan for.

    Args:
        mesh: one of `MESHES`.
        hardware: name of a profile.
    """
    sizes, is_slow = MESHES[mesh]
    profile = Hardware.load(hardware)
    if is_slow:
        inner = replace(profile.levels[0], devices=list(sizes.values())[1])
        outer = Level("network", None, SLOWER * inner.latency, inner.bandwidth / SLOWER)
        profile = replace(profile, name=f"{hardware}, slow network", levels=(inner, outer))
    return plan_backend(ml.Mesh(**sizes), profile)


def price(plan: Plan) -> Priced:
    """Return what a plan is predicted to take, which was made by a search."""
    assert plan.search is not None
    found = plan.search
    return Priced(found.seconds, plan.timeline().seconds, found.gap)


def compile_searched(
    model: str, backend: ml.Backend, seed: int, shrink: int = 1
) -> ml.CompiledModel:
    """Return a model of which nothing is said, laid out by a search."""
    case = make_case(model, seed, shrink)
    return ml.compile(
        case.model, backend, auto_partition=True, shapes=case.specs, outputs=[case.output]
    )


def follow(model: str, recipe: str, backend: ml.Backend, seed: int, shrink: int = 1) -> Plan:
    """Return the plan of a recipe, and nothing that is not said or follows from it.

    Raises:
        Inapplicable: it has nothing to say, or a size does not divide.
        MithrilError: the model cannot be split so.
    """
    compiled = compile_recipe(model, recipe, backend, seed, shrink, {
        "auto_partition": True, "partition_search_space": "annotations"
    })  # fmt: skip
    return compiled.plan


def compile_recipe(
    model: str,
    recipe: str,
    backend: ml.Backend,
    seed: int,
    shrink: int,
    options: Mapping[str, object],
) -> ml.CompiledModel:
    """Return a model compiled as a recipe says; errors are those of `follow`."""
    say, context = RECIPES[recipe]
    case = make_case(model, seed, shrink, context)
    one = plan_backend(ml.Mesh(), HARDWARE[0])  # only asked for names and shapes
    listed = list(list_parameters(make_case(model, seed, shrink), one))
    sizes = {axis.name: axis.size for axis in backend.mesh.axes}
    shapes = {name: shape for name, shape, _ in listed}
    said = Recipe(case, sizes, shapes, {name: stacked for name, _, stacked in listed})
    names = tuple(sizes)
    say(said, names[:-1], names[-1:])
    return ml.compile(case.model, backend, shapes=said.apply(), outputs=[case.output], **options)


def compare(model: str, mesh: str, hardware: str, seed: int = 0, shrink: int = 1) -> Row:
    """Return a search beside all recipes.

    Args:
        model: one of `MODELS`.
        mesh: one of `MESHES`.
        hardware: name of a profile.
        seed: of sizes.
        shrink: a power of two by which widths and batches are smaller.
    """
    backend = make_backend(mesh, hardware)
    start = time.process_time()
    found = price(compile_searched(model, backend, seed, shrink).plan)
    seconds = time.process_time() - start
    recipes: dict[str, Priced] = {}
    refusals: dict[str, str] = {}
    for recipe in RECIPES:
        try:
            recipes[recipe] = price(follow(model, recipe, backend, seed, shrink))
        except (Inapplicable, MithrilError) as error:
            refusals[recipe] = str(error)
    return Row(f"{model}, {mesh}, {hardware}", found, recipes, refusals, seconds)


def compare_all(given: argparse.Namespace) -> Iterator[Row]:
    """Yield every row that the command line asks for."""
    for hardware in given.hardware:
        for mesh in given.meshes:
            for model in given.models:
                yield compare(model, mesh, hardware, given.seed, given.shrink)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=list(MESHES))
    parser.add_argument("--hardware", nargs="+", default=list(HARDWARE))
    parser.add_argument("--seed", type=int, default=0, help="of sizes")
    parser.add_argument("--shrink", type=int, default=1, help="divides widths and batches")
    parser.add_argument("--worst", type=int, default=10, help="rows that are shown in the end")
    given = parser.parse_args(arguments)
    found = []
    for row in compare_all(given):
        print(row if row.is_met else f"{row} ABOVE", flush=True)
        found.append(row)
    above = [row for row in found if not row.is_met]
    print(
        f"{len(found)} rows, {sum(len(row.recipes) for row in found)} recipes apply; above: {len(above)}"
    )
    for figure, text in (("in_turn", "one after another"), ("planned", "of the finished plan")):
        print(f"worst in seconds {text}:")
        for row in sorted(found, key=lambda r: -r.ratio(figure))[: given.worst]:
            print(f"  {row.ratio(figure):.4f}  {row.name}: {row.best(figure)}")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
