"""What a layer function may ask for while it is traced: parameters, the seed, the mode.

The functions work only inside a layer function that is being traced; the layer they belong to is
held in a context variable, so a layer is written as if it were an ordinary function of tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from mithril.errors import GraphError, ShapeError, listing, nearest
from mithril.ir import Builder, Source, Tensor, Value
from mithril.ir.running import is_within, running_trace, tracing
from mithril.models.annotations import Annotation
from mithril.models.component import MOST_NESTED
from mithril.models.initializer_options import as_initializer
from mithril.models.initializers import Initializer
from mithril.models.unknown import UnknownBuilder, UnknownTensor
from mithril.ops import cast
from mithril.options import AS_THEY_COME, Precision
from mithril.types import DType, Shape, TensorType, as_dtype

SEED = "seed"


@dataclass(slots=True)
class Parameter:
    """A parameter met while tracing.

    Args:
        name: its full name.
        tensor: what layers read.
        initializer: how it starts, as its layer says.
        stacked: how many leading dimensions only stack parameters.
        met_as: the name it was met by first, which may be tied to its own.
    """

    name: str
    tensor: Tensor
    initializer: Initializer
    stacked: int = 0
    met_as: str = ""


@dataclass(slots=True)
class Trace:
    """One run over a model: what all its layers add to.

    Args:
        builder: where the nodes go.
        inference: whether dropout and its like do nothing.
        parameters: the parameters met, by full name.
        aliases: further names of parameters that several places share.
        seed: the hidden input, once a layer asked for it.
        seed_user: the first layer that did.
        inner: values inside loops and layers, by full name.
        prefix: of a loop's body, what the names of its parameters begin with outside.
        is_function: whether a function is traced, which has no parameters and no seed.
        owners: layers that were called in layers or added to the model, by their ids, and what
            the names of their parameters begin with.
        parts: what layers that were called in layers make, by their paths.
        ties: for each parameter that is tied to another the name of that one.
        statistics: of layers, by what goes out: what came in, and the number that it begins with.
        wishes: what the models inside loops say of how their values are split.
        given: inputs of the model as they come, by what layers are passed of them.
    """

    builder: Builder
    inference: bool
    precision: Precision = AS_THEY_COME
    parameters: dict[str, Parameter] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    seed: Tensor | None = None
    seed_user: str = ""
    inner: dict[str, Value] = field(default_factory=dict)
    prefix: str = ""
    is_function: bool = False
    owners: dict[int, tuple[object, str]] = field(default_factory=dict)
    parts: dict[str, Value] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    statistics: dict[Value, tuple[Value, float]] = field(default_factory=dict)
    wishes: dict[Value, Annotation] = field(default_factory=dict)
    given: dict[Value, Tensor] = field(default_factory=dict)

    def claim(self, component: object, label: str, prefix: str) -> None:
        """Note what the names of a layer's parameters begin with.

        Raises:
            GraphError: they begin with something else already.
        """
        _, known = self.owners.setdefault(id(component), (component, prefix))
        if known != prefix:
            raise GraphError(
                f"{label} is used as '{known.rstrip('.')}' and as '{prefix.rstrip('.')}', and its "
                f"parameters belong to one layer; make a layer for each, inside the body that "
                f"calls it"
            )

    def record_part(self, values: Mapping[str, Value]) -> None:
        """Note what a part of a layer makes, by the part's path."""
        for name, value in values.items():
            self.parts.setdefault(name, value)

    def name_parts(self) -> None:
        """Give what parts make the name of the part, where nobody gave it another one."""
        for name, value in self.parts.items():
            self.builder.assign_name(Tensor(self.builder, value), name)
        self.inner = {**self.parts, **self.inner}


class UnsaidInput(Tensor):
    """A running statistic that the model is given and nobody said the shape of.

    It is an input of the graph once the layer that keeps it has said it.
    """

    __slots__ = ("name",)

    def __init__(self, builder: Builder, name: str) -> None:
        self.builder = builder
        self.name = name

    def settle(self, shape: Shape) -> None:
        """Become an input of a shape."""
        self.value = self.builder.input(TensorType(shape, DType.float32), self.name).value


@dataclass(slots=True)
class LayerScope:
    """The layer being traced.

    Args:
        trace: the run it belongs to.
        path: its path in the model, such as `block_0.attn`.
        prefix: what its parameter names begin with; a reused layer keeps that of its first use.
        own_prefix: what they would begin with had the layer not been used before.
        declared: the parameter names it may use.
        source: the user's line that made the layer.
        section: what names of parameters and parts begin with now.
        used: the parameters it used.
        parts: the layers and models that it called, by name.
        of_parts: the parameters of these, by name.
        initializers: how its parameters start, where the user says so.
        depth: how many layers call each other up to it, itself included.
    """

    trace: Trace
    path: str
    prefix: str
    own_prefix: str
    declared: Sequence[str]
    source: Source | None
    initializers: Mapping[str, Initializer] = field(default_factory=dict)
    section: str = ""
    used: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    of_parts: dict[str, None] = field(default_factory=dict)
    depth: int = 1


_current: ContextVar[LayerScope] = ContextVar("mithril_layer")


def parameter(
    name: str,
    shape: Sequence[int],
    initializer: Initializer,
    dtype: object = None,
    *,
    stacked: int = 0,
) -> Tensor:
    """Return a parameter of the layer being traced.

    Args:
        name: one of the names the layer declared; inside `section("q")` the name follows `q.`.
        shape: its size in each dimension.
        initializer: the distribution of its first values, or a function of key, shape and box;
            the user of the layer may say another.
        dtype: element type; by default the backend's `param_dtype` (float32), and the layer gets
            the parameter in the backend's `activation_dtype`.
        stacked: how many leading dimensions only stack weights, as those of experts; fan_in and
            fan_out of an initializer come from the others.

    Raises:
        GraphError: no layer is being traced, or the layer did not declare the name.
        OptionError: the initializer is none.
        ShapeError: a reused layer needs another shape here than at its first use.
    """
    scope = current("parameter")
    local = scope.section + name
    if isinstance(scope.trace.builder, UnknownBuilder):
        return UnknownTensor(scope.trace.builder)
    precision = scope.trace.precision
    kept = precision.parameters if dtype is None else as_dtype(dtype)
    seen = precision.activations if dtype is None and precision.is_given else kept
    type = TensorType(tuple(shape), seen)
    if local not in scope.declared:
        raise GraphError(
            f"layer '{scope.path}' uses parameter '{local}' without declaring it; declared: "
            f"{listing(scope.declared)}{nearest(local, scope.declared)} (add it to "
            f"@layer(parameters=…))"
        )
    if local not in scope.used:
        start = as_initializer(initializer, f"initializer of parameter '{scope.prefix}{local}'")
        start = scope.initializers.get(local, start)
        stored = _tensor(scope, local, TensorType(type.shape, kept), start, stacked)
        scope.used[local] = cast(stored, seen)
    tensor = scope.used[local]
    if tensor.type != type:
        raise ShapeError(
            f"layer '{scope.path}' needs parameter '{local}' as {type}, and shares it as "
            f"{tensor.type} with '{scope.prefix}{local}'; give each place its own layer, or "
            f"inputs of the same size"
        )
    return tensor


def seed() -> Tensor:
    """Return the seed of this evaluation: a hidden uint32 input shared by all random layers.

    Raises:
        GraphError: no layer is being traced.
    """
    scope = current("seed")
    trace = scope.trace
    if trace.is_function:
        raise GraphError(
            f"layer '{scope.path}' needs a seed, and is called in a function, which has none; add "
            f"it to a model, or pass random numbers as an argument"
        )
    if trace.seed is None:
        trace.seed = trace.builder.input(TensorType((), DType.uint32), SEED)
        trace.seed_user = scope.path
    running = running_trace()
    if running is None or not is_within(running, trace.builder):
        return trace.seed
    return running.own(trace.seed)  # what is drawn inside a checkpoint belongs to its body


def is_inference() -> bool:
    """Return whether the model is traced for inference, when dropout does nothing.

    Raises:
        GraphError: no layer is being traced.
    """
    return current("is_inference").trace.inference


def layer_path() -> str:
    """Return the path of the layer being traced, such as `block_0.dropout_1`.

    Raises:
        GraphError: no layer is being traced.
    """
    return current("layer_path").path


def layer_salt(part: str = "") -> int:
    """Return what tells apart the draws of the layer being traced from those of all others.

    It is the same from run to run, unlike `hash()`.

    Args:
        part: tells apart draws of one layer.

    Raises:
        GraphError: no layer is being traced.
    """
    path = current("layer_salt").path
    return zlib.crc32((f"{path}.{part}" if part else path).encode()) >> 1


@contextmanager
def section(name: str) -> Iterator[None]:
    """Give a part of a layer its own name: parameters and nodes inside are `name.…`.

    Raises:
        GraphError: no layer is being traced.
    """
    scope = current("section")
    before = scope.section
    scope.section = f"{before}{name}."
    try:
        with scope.trace.builder.at(scope=f"{scope.path}.{before}{name}"):
            yield
    finally:
        scope.section = before


@contextmanager
def inside(scope: LayerScope) -> Iterator[None]:
    """Make a layer the one being traced.

    Raises:
        GraphError: too many layers call each other up to it.
    """
    around = _current.get(None)
    scope.depth = 1 if around is None else around.depth + 1
    if scope.depth > MOST_NESTED:
        raise GraphError(
            f"layers call each other {scope.depth} deep, and {MOST_NESTED} is the most; "
            f"end the calls of a layer that calls itself, or call some in a loop"
        )
    token, builder, running = _current.set(scope), scope.trace.builder, running_trace()
    if running is not None and is_within(running, builder):
        builder = running  # the body of a loop in a layer
    try:
        with tracing(builder), builder.at(scope=scope.path, source=scope.source):
            yield
    finally:
        _current.reset(token)


def _tensor(
    scope: LayerScope, local: str, type: TensorType, initializer: Initializer, stacked: int
) -> Tensor:
    trace, met_as = scope.trace, scope.prefix + local
    name = trace.ties.get(met_as, met_as)
    found = trace.parameters.get(name)
    if found is None:
        tensor = trace.builder.input(type, trace.prefix + name)
        found = Parameter(name, tensor, initializer, stacked, met_as)
        trace.parameters[name] = found
    elif met_as == name != found.met_as:  # the one whose name is kept says how it starts
        found.initializer, found.stacked = initializer, stacked
    if found.tensor.type != type and (met_as != name or found.met_as != name):
        other = found.met_as if met_as == name else name
        raise ShapeError(
            f"parameters '{met_as}' {type} and '{other}' {found.tensor.type} are tied and differ; "
            f"give both one shape and dtype, or remove model.tie"
        )
    if scope.own_prefix != scope.prefix:
        trace.aliases[scope.own_prefix + local] = name
    return found.tensor


def mark_parts() -> Callable[[], None]:
    """Return what makes the layer being traced forget the parts that it calls from now on.

    For a function that is called again, for the same results in other dtypes.
    """
    scope = find_traced_layer()
    if scope is None:
        return lambda: None
    parts, values = dict(scope.parts), dict(scope.trace.parts)

    def forget() -> None:
        scope.parts, scope.trace.parts = parts, values

    return forget


def find_traced_layer() -> LayerScope | None:
    """Return the layer being traced, None if none is."""
    return _current.get(None)


def current(function: str) -> LayerScope:
    """Return the layer being traced.

    Args:
        function: who asks, for the message.

    Raises:
        GraphError: no layer is being traced.
    """
    scope = _current.get(None)
    if scope is None:
        raise GraphError(
            f"{function}() is called outside a layer; call it in a function decorated with "
            f"@ml.layer(), while a model is compiled"
        )
    return scope
