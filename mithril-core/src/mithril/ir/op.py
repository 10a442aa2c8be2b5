"""The protocol every op follows, and the registry of ops by name.

An op is one frozen dataclass; its fields are its attributes. It gives shapes (`infer`), gradient
(`gradient`), sharding rule (`rule`) and cost (`cost`); a fused op also gives its decomposition
(`expand`), and an op that must know where its shard lies says how it runs there (`localize`).
Kernels belong to engines. No pass anywhere asks for an op by name.

An op may have graphs among its attributes, its `bodies`. Each body takes the op's operands, first
those that it hands on from one iteration to the next (`carries`), last those of which it takes one
slice an iteration (`slices`); the op's results are the last carries, then what it stacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from mithril.errors import GraphError
from mithril.types import TensorType

if TYPE_CHECKING:
    from mithril.ir.graph import Graph, Value
    from mithril.ir.rule import Rule
    from mithril.ir.tensor import Tensor

Types = Sequence[TensorType]
Tensors: TypeAlias = "Sequence[Tensor]"
Cotangents: TypeAlias = "Sequence[Tensor | None]"
OpClass = TypeVar("OpClass", bound="type[Op]")
_REGISTRY: dict[str, type[Op]] = {}


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one op: floating-point operations, and bytes read and written.

    Args:
        flops: operations.
        bytes: read and written.
        windows: where a window is put: what is done for each of them, besides its operations, takes
            time that devices may have a rate for.
    """

    flops: int
    bytes: int
    windows: int = 0


class Group(Protocol):
    """The devices that hold the parts of a split factor, for an op that exchanges parts itself."""

    @property
    def parts(self) -> Sequence[int]:
        """How much each device has of the factor, without padding."""
        ...

    @property
    def index(self) -> Tensor:
        """The number of this device's part, an int32 scalar."""
        ...

    def permute(
        self,
        x: Tensor,
        pairs: tuple[tuple[int, int], ...],
        reason: str,
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Tensor:
        """Send x from one device to another for each pair (from, to).

        Args:
            x: what is sent.
            pairs: numbers of parts.
            reason: for `explain`: how it is needed.
            operands: for `explain`: the operands of the op that x carries parts of.
            results: the same for results.
        """
        ...

    def gather(
        self, x: Tensor, reason: str, operands: Sequence[int] = (), results: Sequence[int] = ()
    ) -> Tensor:
        """Return the x of all devices, one after the other along a first dimension of their own.

        Args:
            x: what this device has.
            reason: for `explain`: how it is needed.
            operands: for `explain`: the operands of the op that x carries parts of.
            results: the same for results.
        """
        ...

    def reduce(
        self,
        x: Tensor,
        reduction: str,
        reason: str,
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Tensor:
        """Return the reduction of the x of all devices.

        Args:
            x: what this device has.
            reduction: `sum`, `max` or `min`.
            reason: for `explain`: how it is needed.
            operands: for `explain`: the operands of the op that x carries parts of.
            results: the same for results.
        """
        ...

    def stretch(self, x: Tensor, dimension: int) -> Tensor:
        """Return x, whole along the factor, with the padding that its parts have."""
        ...

    def trim(self, x: Tensor, dimension: int) -> Tensor:
        """Return x, whole along the factor, without the padding that its parts have."""
        ...


class Shard(Protocol):
    """What `Op.localize` may ask about the shard it runs on."""

    outputs: Types

    def size(self, factor: str) -> int:
        """Return the local size of a factor."""
        ...

    def whole(self, factor: str) -> int:
        """Return the global size of a factor."""
        ...

    def offset(self, factor: str) -> Tensor | None:
        """Return where the local part of a factor starts, or None when it is not split."""
        ...

    def count(self, factor: str) -> Tensor | None:
        """Return how much of the local part of a factor is no padding, or None when all is."""
        ...

    def group(self, factor: str) -> Group | None:
        """Return who shares a special factor of the rule, or None when it is not split."""
        ...

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        """Append a node to the local program."""
        ...


@dataclass(frozen=True)
class Op:
    """Base of all ops; see the module's text. Fields of a subclass are the op's attributes."""

    name: ClassVar[str] = ""
    is_collective: ClassVar[bool] = False
    """Whether devices exchange data in it, or begin to."""
    is_view: ClassVar[bool] = False
    """Whether its result may be other strides over the memory of its first operand."""
    is_pointwise: ClassVar[bool] = False
    """Whether each element of the result is computed by itself, in the kernel of its neighbours."""
    is_product: ClassVar[bool] = False
    """Whether it is made of products of tensors, though its rule does not say so."""
    has_kernel: ClassVar[bool] = True
    """Whether engines run it; one without kernel is gone from local programs (see `plain`)."""
    indices: ClassVar[tuple[int, ...]] = ()
    """Operands that are used as indices: they must be in range in the padding of a shard, too."""
    overwrites: ClassVar[tuple[tuple[int, int], ...]] = ()
    """(operand, result): an engine may make one in the memory of the other if that is given up."""
    bodies: ClassVar[tuple[Graph, ...]] = ()
    """The graphs that the op runs; see the module's text. No property, as all passes ask for it."""
    origin: ClassVar[str] = ""
    """Where a user defined the op: the same place may define it again."""

    def infer(self, inputs: Types) -> Types:
        """Return the result types.

        Raises:
            ShapeError: the operands do not fit.
        """
        raise NotImplementedError

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        """Return the cotangent of each input, or None where none flows.

        `cotangents` has one entry per output; None means zero, and not all are None.
        """
        raise NotImplementedError

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        """Return the sharding rule."""
        raise NotImplementedError

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        """Return the work; by default one operation per result element."""
        flops = sum(output.size for output in outputs)
        return Cost(flops, sum(t.nbytes for t in (*inputs, *outputs)))

    def contracts(self, inputs: Types, outputs: Types) -> bool:
        """Return whether it is linear algebra: sums over a factor that two float operands share."""
        floats = [position for position, t in enumerate(inputs) if t.dtype.is_float]
        if len(floats) < 2 or self.is_pointwise:
            return False
        rule = self.rule(inputs, outputs)
        kept = {factor for dims in rule.results for dim in dims for factor in dim}
        held = [{factor for dim in rule.operands[i] for factor in dim} - kept for i in floats]
        return any(a & b for i, a in enumerate(held) for b in held[:i])

    def expand(self, inputs: Tensors) -> Tensors | None:
        """Return the results computed from smaller ops, or None for a primitive."""
        del inputs
        return None

    def check_index(self, inputs: Types, index: Any) -> None:
        """Raise unless integers can be the operand that is used as indices; by default all can.

        Args:
            inputs: types of the operands.
            index: the integers, a NumPy array.

        Raises:
            ShapeError: one chooses nothing.
        """

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        """Emit the op on one shard; by default the same op, resized."""
        return shard.apply(self.resize(shard.outputs), *inputs)

    def resize(self, outputs: Types) -> Op:
        """Return the op with attributes for these local result types; by default unchanged."""
        del outputs
        return self

    def reuse(self, operands: Sequence[int]) -> Op:
        """Return the op marked as one that may write into the memory of some of its operands."""
        assert not operands, f"op '{self.name}' writes into no operand"
        return self

    def selection(self, inputs: Types) -> Sequence[range] | None:
        """Return which positions of its one operand the result is made of, for each dimension.

        None is said by ops that do more than leave positions out.
        """
        del inputs
        return None

    def plain(self, outputs: Types) -> Op:
        """Return the op that computes the same where nothing is said about the mesh."""
        del outputs
        return self

    def with_bodies(self, bodies: Sequence[Graph]) -> Op:
        """Return the op with other bodies, one for each it has."""
        assert not bodies, f"op '{self.name}' has no bodies"
        return self

    @property
    def iterations(self) -> int:
        """How often the bodies run where the op runs once."""
        return 1

    @property
    def carries(self) -> tuple[Value, ...]:
        """The bodies' inputs that an iteration gets as the one before left them."""
        return ()

    @property
    def slices(self) -> tuple[Value, ...]:
        """The bodies' inputs that are slices of stacked operands."""
        return ()

    def narrow(self, wanted: Sequence[bool]) -> tuple[Op, Sequence[bool]]:
        """Return the op with as few results as it can have.

        Args:
            wanted: of each result, whether it is needed.

        Returns:
            The op, and for each result whether it still makes it.
        """
        return self, [True] * len(wanted)

    def refusal(self, inputs: Types, axis: str, count: int) -> str:
        """Return why no factor its rule proposes can be split over an axis, and a remedy."""
        del inputs
        return f"nothing it proposes can be split over '{axis}' ({count})"

    @property
    def attributes(self) -> Mapping[str, object]:
        """Attributes by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_show(value)}" for name, value in self.attributes.items())
        return f"{self.name}[{shown}]" if shown else self.name


def register(cls: OpClass) -> OpClass:
    """Add an op class to the registry under its `name`.

    Raises:
        GraphError: the name is missing, or taken by a definition in another place.
    """
    if not cls.name:
        raise GraphError(f"op class {cls.__name__} has no name; set the class attribute `name`")
    taken = _REGISTRY.get(cls.name)
    if taken is not None and not (taken.origin and taken.origin == cls.origin):
        raise GraphError(
            f"op '{cls.name}' is already defined by {taken.origin or taken.__module__}; choose "
            f"another name"
        )
    _REGISTRY[cls.name] = cls
    return cls


def registry() -> Mapping[str, type[Op]]:
    """Return all registered op classes by name."""
    return _REGISTRY


def _show(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)
