"""Layer bodies run before any shape is known, to learn which layers they call.

Names of parameters are asked for before shapes are: when a model is printed, when patterns are
matched, when parameters are made. So a body is run once with `UnknownTensor`s: whatever is computed
with them is another one, a size is an `UnknownSize`, and nothing is recorded. Where a size decides
(`if size % heads: raise …`), the answer is a guess, and another one after an error. A body that has
to know a size or a dtype cannot go on; the error says where. What is found holds if the
body says the same when shapes are known.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from mithril.errors import GraphError
from mithril.ir import Builder, Op, Operand, Tensor, Value
from mithril.ir.source import at, user_source
from mithril.types import DType, Scalar, TensorType


class Guesses:
    """Answers to what only sizes decide: each is no at first, and yes after an error behind it."""

    def __init__(self) -> None:
        self._answers: list[bool] = []
        self._asked = 0

    def answer(self) -> bool:
        """Return the answer to the next question."""
        if self._asked == len(self._answers):
            self._answers.append(False)
        self._asked += 1
        return self._answers[self._asked - 1]

    def change(self) -> bool:
        """Begin again with other answers; return whether there are any."""
        self._asked = 0
        while self._answers and self._answers[-1]:
            self._answers.pop()
        if self._answers:
            self._answers[-1] = True
        return bool(self._answers)


class UnknownBuilder(Builder):
    """Records nothing: whatever is computed is unknown.

    Args:
        guesses: what sizes decide.
    """

    records = False

    def __init__(self, guesses: Guesses) -> None:
        super().__init__()
        self.guesses = guesses

    def input(self, type: TensorType, name: str) -> Tensor:
        """Return an unknown tensor."""
        return UnknownTensor(self)

    def constant(self, value: Scalar, dtype: DType) -> Tensor:
        """Return an unknown tensor."""
        return UnknownTensor(self)

    def adopt(self, x: object, dtype: DType | None = None) -> Tensor | None:
        """Return an unknown tensor."""
        return UnknownTensor(self)

    def own(self, operand: Operand) -> Tensor:
        """Return the operand."""
        return operand if isinstance(operand, Tensor) else UnknownTensor(self)

    def apply(self, op: Op, *operands: Tensor) -> Any:
        """Return any number of unknown tensors."""
        return UnknownTensor(self)

    def attempt(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what any function returns."""
        return UnknownTensor(self)


class _Sequence:
    """Any number of things, until somebody has to know how many."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        count = _count_wanted(sys._getframe(1))
        if count is None:
            _ask("for how many there are")
        return iter([self._item() for _ in range(count)])

    def __len__(self) -> int:
        count = _count_wanted(sys._getframe(1))  # `f(*x.shape)` makes room before it iterates
        if count is None:
            _ask("for the number of dimensions")
        return count

    def _item(self) -> Any:
        raise NotImplementedError


class UnknownTensor(_Sequence, Tensor):
    """A tensor of which nothing is known; also a tuple of such, where a function returns one."""

    __slots__ = ()
    builder: UnknownBuilder

    def __init__(self, builder: UnknownBuilder) -> None:
        super().__init__(builder, Value(TensorType((), DType.bool_)))

    @property
    def type(self) -> TensorType:
        """Shape and dtype: not known."""
        _ask("for a shape and dtype")

    @property
    def dtype(self) -> DType:
        """Element type: not known."""
        _ask("for a dtype")

    @property
    def ndim(self) -> Any:
        """Number of dimensions."""
        return UnknownSize(self.builder.guesses)

    @property
    def size(self) -> Any:
        """Number of elements."""
        return UnknownSize(self.builder.guesses)

    @property
    def shape(self) -> Any:
        """Size of each dimension."""
        return UnknownShape(self.builder.guesses)

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The transpose."""
        return self._item()

    def _item(self) -> UnknownTensor:
        return UnknownTensor(self.builder)


class UnknownShape(_Sequence):
    """The sizes of some dimensions."""

    __slots__ = ("_guesses",)

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses

    def __getitem__(self, index: object) -> Any:
        return UnknownShape(self._guesses) if isinstance(index, slice) else self._item()

    def __add__(self, other: object) -> UnknownShape:
        return self

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        return self._guesses.answer()

    __hash__ = None  # type: ignore[assignment]

    def _item(self) -> UnknownSize:
        return UnknownSize(self._guesses)


class UnknownSize:
    """A size, or what is computed of sizes and numbers."""

    __slots__ = ("_guesses",)

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses

    def _compute(self, other: object = None) -> UnknownSize:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _compute
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = _compute
    __neg__ = __pow__ = __rpow__ = _compute

    def _guess(self, other: object = None) -> bool:
        return self._guesses.answer()

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _guess
    __eq__ = __ne__ = _guess

    def _refuse(self, *others: object) -> NoReturn:
        _ask("for a size")

    __index__ = __int__ = __float__ = __hash__ = __iter__ = _refuse

    def __repr__(self) -> str:
        return "?"


def _count_wanted(frame: FrameType) -> int | None:
    """Return how many things the line of a frame takes out of a sequence, None if it is not said.

    `a, b = x.shape` takes two, `a, *rest = x.shape` and `f(*x.shape)` as many as there are, for
    which one stands in. Python tells a sequence nothing of it, but the instruction that iterates
    says so.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    kind, count = dis.opname[code[at]], code[at + 1]
    if kind == "UNPACK_SEQUENCE":
        return count
    if kind == "UNPACK_EX":  # behind the star: in the upper byte of the argument
        return count + 1 + (code[at - 1] if dis.opname[code[at - 2]] == "EXTENDED_ARG" else 0)
    return 1 if kind == "LIST_EXTEND" else None


def _ask(what: str) -> NoReturn:
    raise GraphError(f"it asks {what}{at(user_source())}")


__all__ = ["Guesses", "UnknownBuilder", "UnknownSize", "UnknownTensor"]
