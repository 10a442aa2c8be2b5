"""What is tuned: a model with the sizes of its inputs, and what its layers need, found once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mithril.compiler import PlanOptions
from mithril.cost import Hardware
from mithril.cost.communication import find_start_up
from mithril.cost.work import product_dtype
from mithril.engine.planned import PlannedEngine
from mithril.errors import MithrilWarning, PlanError
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import walk
from mithril.mesh import Mesh
from mithril.models.composition import Composition
from mithril.models.layer import Layer
from mithril.models.model import Model
from mithril.models.outputs import choose_outputs
from mithril.models.placement import placement_spec_of
from mithril.models.prefixes import component_of
from mithril.models.trace import Traced
from mithril.options import Precision
from mithril.runtime.backend import Backend
from mithril.runtime.balancing.cut import cut_optimally
from mithril.runtime.balancing.units import LayerCosts, list_units
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.planned import plan_backend
from mithril.runtime.settings import Settings
from mithril.runtime.specification import TensorSpec
from mithril.runtime.training import train_step
from mithril.runtime.training.optimizer import Optimizer
from mithril.sharding.regions import links
from mithril.transform.checkpoint import inline_checkpoints, list_checkpointed
from mithril.tuning.config import AxisRole
from mithril.tuning.dimensions import Family, choose_families, find_families
from mithril.types import DType


@dataclass(frozen=True, slots=True)
class Product:
    """A product of tensors in a forward.

    Args:
        dtype: of its operands.
        flops: operations in a forward of the whole batch.
        times: how often it runs in a forward.
        passes: how often as many are done: in the forward, and for each gradient in a backward.
    """

    dtype: DType
    flops: float
    times: int
    passes: int


@dataclass(frozen=True, slots=True)
class Update:
    """What the update of a parameter costs, by byte of it.

    Args:
        bytes: of the optimiser's state.
        seconds: to read and write all that it needs.
    """

    bytes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A model, and what is made best about it.

    Args:
        model: what is compiled.
        shapes: of its inputs.
        hardware: what devices are.
        precision: of parameters, products and activations.
        objective: what is made best.
        optimizer: whose step is tuned; None for a forward and a backward alone.
        loss: the output that a step makes smaller.
        backend: where it runs; None for devices that are not there.
        outputs: that are wanted, by name; None for those of the model.
    """

    model: Model | Layer
    shapes: Mapping[str, TensorSpec]
    hardware: Hardware
    precision: Precision
    objective: str
    optimizer: Optimizer | None = None
    loss: str = "loss"
    backend: Backend | None = None
    outputs: Sequence[str] | None = None
    _cuts: dict[tuple[int, float], Mapping[str, int | tuple[int, ...]] | str] = field(
        default_factory=dict, compare=False, repr=False
    )
    _seconds: dict[float, float] = field(default_factory=dict, compare=False, repr=False)
    _shares: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    _links: dict[object, tuple[float, float]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _chosen: dict[int, list[Family]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def component(self) -> Composition | Layer:
        """Its snapshot, with the outputs that are wanted."""
        return find_component(self.model, self.outputs)

    def complete(self) -> TunedModel:
        """Return the same with the shapes of running statistics, which the layers know."""
        names = self.component.input_ports
        if all(name in self.shapes for name in names):
            return self
        kinds = zip(names, self._probe.read_kinds(self._on_one), strict=True)
        specs = {name: TensorSpec(kind.type.shape, str(kind.type.dtype)) for name, kind in kinds}
        return replace(self, shapes={**specs, **self.shapes})

    @property
    def is_forward(self) -> bool:
        """Whether the forward alone is tuned: its latency."""
        return self.objective == "latency"

    @property
    def has_stages(self) -> bool:
        """Whether the model says itself where layers run."""
        return placement_spec_of(self.component).is_placed

    @property
    def can_have_stages(self) -> bool:
        """Whether layers can be put into stages."""
        return isinstance(self.component, Composition) and not self.has_stages

    @cached_property
    def traced(self) -> Traced:
        """The graph of its forward, as it is planned: without borders of what is computed again."""
        found = self._said
        graph = inline_checkpoints(found.graph)
        if graph is found.graph:
            return found
        new, old = {value.name: value for value in graph.values()}, set(found.graph.values())
        named = {name: v for name, v in found.value_names.items() if v in old}
        said = {v: wish for v, wish in found.value_annotations.items() if v in old}
        return replace(
            found,
            graph=graph,
            value_names={name: new[value.name] for name, value in named.items()},
            value_annotations={new[value.name]: wish for value, wish in said.items()},
        )

    @cached_property
    def _said(self) -> Traced:
        return self._probe.ask((), self._probe.read_kinds(self._on_one)).traced

    @cached_property
    def kept_share(self) -> float:
        """The share of the bytes of results that the model does not say are computed again."""
        bodies = list_checkpointed(self._said.graph)
        again = sum(_count_results(body) * times for body, times in bodies)
        return max(0.0, 1.0 - again / self.activation_bytes) if self.activation_bytes else 1.0

    @cached_property
    def families(self) -> list[Family]:
        """Dimensions that are split together."""
        return find_families(self.traced, self.between)

    @cached_property
    def between(self) -> tuple[str, ...]:
        """Names of the values between its layers of which it does not say itself how they lie."""
        if not isinstance(self.component, Composition):
            return ()
        traced = self.traced
        found = {
            traced.value_names[name]: name
            for member in self.component.members
            for _, name in member.outputs
            if traced.value_names[name] not in traced.value_annotations
        }
        return tuple(found.values())

    def choose_families(self, size: int) -> list[Family]:
        """Return the families that a tensor axis of some size splits."""
        if size not in self._chosen:
            self._chosen[size] = choose_families(self.families, size) if size > 1 else []
        return self._chosen[size]

    @cached_property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        graph = self.traced.graph
        return sum(graph.input(name).type.nbytes for name in self.traced.parameter_names)

    @cached_property
    def parameter_count(self) -> int:
        """How many numbers the parameters are."""
        graph = self.traced.graph
        return sum(graph.input(name).type.size for name in self.traced.parameter_names)

    @cached_property
    def flops(self) -> float:
        """Operations of products in a forward of the whole batch."""
        return sum(product.flops for product in self.products)

    @cached_property
    def products(self) -> list[Product]:
        """The products of a forward."""
        learns, found = self._find_learning(), []
        for node, times in walk(self.traced.graph):
            inputs, outputs = (tuple(v.type for v in x) for x in (node.inputs, node.outputs))
            if node.op.bodies or (dtype := product_dtype(node.op, inputs, outputs)) is None:
                continue
            dtype = self.precision.compute if self.precision.is_given else dtype
            flops = float(times * node.op.cost(inputs, outputs).flops)
            passes = 1 if self.is_forward else 1 + sum(v in learns for v in node.inputs[:2])
            found.append(Product(dtype, flops, times, passes))
        return found

    def _find_learning(self) -> set[Value]:
        """Return the values that depend on a parameter, whose gradients a backward needs."""
        graph = self.traced.graph
        found = {graph.input(name) for name in self.traced.parameter_names}
        joints: dict[Value, list[Value]] = {}
        for link in links(graph):
            joints.setdefault(link.source, []).append(link.target)
        waiting = list(found)
        users: dict[Value, list[Node]] = {}
        for node, _ in walk(graph):
            for value in node.inputs if not node.op.bodies else ():
                users.setdefault(value, []).append(node)
        while waiting:
            value = waiting.pop()
            after = [out for node in users.get(value, ()) for out in node.outputs]
            new = {*after, *joints.get(value, ())} - found
            found |= new
            waiting += new
        return found

    @cached_property
    def least_seconds(self) -> float:
        """Seconds of all products at the highest rate, on one device."""
        return sum(
            product.passes * product.flops / self._find_highest_rate(product.dtype)
            for product in self.products
        )

    def _find_highest_rate(self, dtype: DType) -> float:
        known = self.hardware.rates.get(dtype) or self.hardware.rates[DType.float32]
        return max(rate for _, rate in known)

    @cached_property
    def starts(self) -> int:
        """How many products are started in a step of one micro-batch."""
        return sum(product.passes * product.times for product in self.products)

    def compute_seconds(self, pieces: float) -> float:
        """Return the seconds of all products on one device, each in some pieces."""
        if pieces not in self._seconds:
            self._seconds[pieces] = sum(
                p.passes * p.flops / self.hardware.rate(p.dtype, p.flops / p.times / pieces)
                for p in self.products
            )
        return self._seconds[pieces]

    def find_share(self, size: int) -> float:
        """Return the share of the parameters' bytes that a tensor axis splits.

        Args:
            size: devices along it; 0 for the share of experts.
        """
        if size not in self._shares:
            experts = [family for family in self.families if family.is_stack]
            families = self.choose_families(size) if size else experts
            names = {name for family in families for name in family.parameters}
            held = sum(self.traced.graph.input(name).type.nbytes for name in names)
            self._shares[size] = held / self.parameter_bytes if self.parameter_bytes else 0.0
        return self._shares[size]

    def find_spread(self, size: int) -> float:
        """Return the share of the bytes of activations that a tensor axis of some size splits."""
        held = sum(family.result_bytes for family in self.choose_families(size))
        return min(1.0, held / self.activation_bytes) if self.activation_bytes else 0.0

    def find_link(
        self, kind: str, axes: tuple[str, ...], mesh: tuple[AxisRole, ...]
    ) -> tuple[float, float]:
        """Return the seconds to start a collective, and those of each byte.

        Args:
            kind: of the collective.
            axes: that it goes over.
            mesh: all axes.
        """
        strides, stride = {}, 1
        for axis in reversed(mesh):
            strides[axis.name] = (axis.size, stride)
            stride *= axis.size
        # Groups are the same whatever names the axes have, and however others are cut.
        key = kind, tuple(strides[name] for name in axes), stride
        if key not in self._links:
            devices = Mesh({axis.name: axis.size for axis in mesh})
            self._links[key] = find_start_up(kind, axes, devices, self.hardware)
        return self._links[key]

    @cached_property
    def activation_bytes(self) -> float:
        """Bytes of all results of a forward of the whole batch, loops unrolled."""
        return _count_results(self.traced.graph)

    @cached_property
    def border_bytes(self) -> float:
        """Bytes of a batch that one stage passes on to the next: the middle of all borders."""
        named = self.traced.value_names
        sizes = sorted(named[n].type.nbytes for n in self.between if named[n].type.rank)
        return float(sizes[len(sizes) // 2]) if sizes else 0.0

    @cached_property
    def batch(self) -> int:
        """Samples of a batch: the leading size of the first input."""
        first = next(iter(self.shapes.values()), None)
        return first.shape[0] if first is not None and first.shape else 1

    @cached_property
    def layer_costs(self) -> LayerCosts:
        """Seconds of each layer on one device, and bytes of parameters."""
        with unfit_plans():
            plan = self._probe.plan_for(self._on_one, gradients=not self.is_forward)
        held = {p.name: float(p.type.nbytes) for p in plan.inputs if p.name in plan.parameters}
        return LayerCosts(dict(plan.timeline().layers), held)

    @cached_property
    def _on_one(self) -> dict[str, TensorSpec]:
        """The shapes of inputs on one device, whose mesh lacks the axes that split them."""
        return {name: replace(spec, sharding=None) for name, spec in self.shapes.items()}

    @cached_property
    def _probe(self) -> CompiledModel:
        known = Backend(PlannedEngine(Mesh(data=1)), hardware=self.hardware)
        settings = Settings(
            inference=self.is_forward,
            plan=PlanOptions(precision=self.precision),
            out_shardings={},
        )
        return CompiledModel(self.component, known, settings)

    @cached_property
    def update(self) -> Update:
        """What an update costs, by byte of parameters, as a train step on one device has it."""
        if self.optimizer is None or not self.parameter_bytes:
            return Update(0.0, 0.0)
        one = Mesh(data=1)
        with unfit_plans():
            step = train_step(
                self.model, plan_backend(one, self.hardware), self.optimizer, loss=self.loss,
                precision=self.precision, shapes=self._on_one,
            )  # fmt: skip
        held = sum(p.type.nbytes for p in step.plan.inputs if p.name in step.plan.optimizer)
        nodes = [n for s in step.plan.stages for n in s.program.graph.nodes]
        moved = sum(
            value.type.nbytes
            for node in nodes
            if node.phase == Phase.update and not node.op.is_view
            for value in (*node.inputs, *node.outputs)
        )
        seconds = min(moved, held * 3 + self.parameter_bytes * 3) / self.hardware.memory_bandwidth
        return Update(held / self.parameter_bytes, seconds / self.parameter_bytes)

    def cut(
        self, stages: int, memory: float = math.inf
    ) -> Mapping[str, int | tuple[int, ...]] | str:
        """Return the stages of layers, so that the slowest is fastest, or why there are none.

        Args:
            stages: how many.
            memory: bytes of parameters that a stage may hold.
        """
        assert isinstance(self.component, Composition)
        limit = memory if sum(self.layer_costs.bytes.values()) > memory else math.inf
        if (stages, limit) not in self._cuts:
            units = list_units(self.component, self.layer_costs, stages)
            try:
                self._cuts[stages, limit] = cut_optimally(units, stages, limit).places
            except PlanError as error:
                self._cuts[stages, limit] = str(error)
        return self._cuts[stages, limit]

    def open_backend(self, mesh: Mesh) -> Backend:
        """Return a backend to plan on: the one that is there, or one of devices that are not.

        Args:
            mesh: of a strategy.
        """
        return self.backend or plan_backend(mesh, self.hardware)

    def options(self) -> dict[str, Any]:
        """Return what every plan of it is compiled with."""
        options = {"shapes": dict(self.shapes), "precision": self.precision}
        return options if self.outputs is None else {**options, "outputs": self.outputs}


def find_component(model: Model | Layer, outputs: Sequence[str] | None) -> Composition | Layer:
    """Return a model's snapshot with the outputs that are wanted.

    Args:
        model: any.
        outputs: by name; None for its own.
    """
    found = component_of(model)
    return found if outputs is None else choose_outputs(found, outputs)


def _count_results(graph: Graph) -> float:
    """Return the bytes of all results of a graph, loops unrolled."""
    return sum(
        float(times * value.type.nbytes)
        for node, times in walk(graph)
        if not node.op.bodies and not node.op.is_view
        for value in node.outputs
    )


@contextmanager
def unfit_plans() -> Iterator[None]:
    """Make plans that no device has memory for without a word: they are only looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MithrilWarning)
        yield


__all__ = ["TunedModel", "Update", "unfit_plans"]
