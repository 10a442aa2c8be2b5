"""jit: a function that is traced and planned once per kind of arguments, and then only runs.

What a plan depends on is the form of the arguments (their trees, names and static values) and the
type and sharding of every array in them. The first call of a kind traces, plans and lowers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, overload

from mithril.errors import BackendError, GraphError
from mithril.ir import Builder, Operand, Tensor
from mithril.ir.running import trace_around
from mithril.keywords import checked_keywords
from mithril.ops.constrain import constrained
from mithril.partition import explain
from mithril.plan import Plan
from mithril.runtime.array import Array, Kind
from mithril.runtime.backend import Backend
from mithril.runtime.functional.arguments import Choice, Form, Signature, name_of
from mithril.runtime.functional.donation import check_donated, give_up
from mithril.runtime.functional.step import Arriving, FunctionOptions, Step, make_step
from mithril.runtime.functional.tracing import lift
from mithril.runtime.functional.tree import flatten, rebuild, spread
from mithril.runtime.lru import LRUCache
from mithril.runtime.specification import TensorSpec

KEPT = 512
"""How many plans a function keeps; the one unused for longest goes first."""


@overload
def jit(
    function: Callable[..., Any],
    *,
    backend: Backend | None = None,
    in_shardings: object = None,
    out_shardings: object = None,
    donate: Choice = (),
    static: Choice = (),
) -> Function: ...


@overload
def jit(
    function: None = None,
    *,
    backend: Backend | None = None,
    in_shardings: object = None,
    out_shardings: object = None,
    donate: Choice = (),
    static: Choice = (),
) -> Callable[[Callable[..., Any]], Function]: ...


@checked_keywords()
def jit(
    function: Callable[..., Any] | None = None,
    *,
    backend: Backend | None = None,
    in_shardings: object = None,
    out_shardings: object = None,
    donate: Choice = (),
    static: Choice = (),
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Return a function that runs as one plan on a backend; also a decorator.

    The function is called with traced tensors when it meets new kinds of arguments; it may use
    the functions of `mithril.numpy`, operators, and arrays from around it. Arguments and results
    are arrays, NumPy arrays, numbers, and dicts, lists and tuples of them.

    Args:
        function: what to run.
        backend: where; by default where the arrays among the arguments are.
        in_shardings: how arguments shall lie: one `P` for all, or a tuple with a `P`, None (as it
            lies) or a tree of them for each argument that is not static.
        out_shardings: how results must leave: a `P`, None (as it was computed), or a tree of them.
        donate: positions or names of arguments whose arrays are given up: they cannot be used
            afterwards, and results may take their memory.
        static: positions or names of arguments that are values of Python, not arrays; each value
            is traced for itself.

    Raises:
        OptionError: an argument is named that does not exist.
        BackendError: `backend` is none.

    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(x=4))
    >>> double = jit(lambda x: x * 2, backend=backend, in_shardings=ml.P("x"))
    >>> double(backend.arange(4)).sharding
    Sharding(P('x'))
    """
    if function is None:
        return partial(
            jit,
            backend=backend,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            donate=donate,
            static=static,
        )
    if not callable(function):
        raise GraphError(f"jit() takes a function, not {function!r}; write jit(function, …)")
    if backend is not None and not isinstance(backend, Backend):
        raise BackendError(
            f"jit() is given backend={backend!r}, which is none; write backend=ml.NumpyBackend()"
        )
    signature = Signature(function)
    options = FunctionOptions(in_shardings, out_shardings, signature.chosen(donate, "donate"))
    return Function(function, backend, options, signature.chosen(static, "static"))


class Function:
    """A function that runs as one plan; made by `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        backend: Backend | None,
        options: FunctionOptions,
        static: frozenset[str],
        is_fixed: Callable[[object], bool] | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.name = name_of(function)
        self.options = options
        self._function = function
        self._backend = backend
        self._static = static
        self._is_fixed = is_fixed
        self._signature = Signature(function)
        self._made = 0
        self._arriving: LRUCache[Form, Arriving] = LRUCache(KEPT)
        self._steps: LRUCache[tuple[Form, tuple[Kind, ...]], Step] = LRUCache(KEPT)
        self._last: tuple[Form, list[Kind], Step] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; inside another function that is traced, become a part of it."""
        leaves: list[Any] = []
        form = self._read(args, kwargs, leaves)
        last = self._last
        if last is not None and last[0] == form and are_of(last[1], leaves):
            return self._run(last[2], leaves)
        outer = trace_around(leaves)
        if outer is not None:
            return self._inline(outer, form, leaves)
        backend, arrays = self._arrays(form, leaves)
        step = self._step(backend, form, [x.kind for x in arrays])
        step.check_numbers(leaves)
        return self._run(step, arrays)

    @property
    def recompiles(self) -> int:
        """How many plans were made so far: one per kind of arguments."""
        return self._made

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the plan for arguments like these, without running it.

        Args:
            args: arrays, or `TensorSpec`s in their place.
            kwargs: the same, by name.
        """
        leaves: list[Any] = []
        form = self._read(args, kwargs, leaves)
        backend = self._backend_of(leaves)
        specs = self._form(form).kinds(backend, leaves)
        return self._step(backend, form, specs).plan

    def explain(self, *args: Any, tensor: str | None = None, **kwargs: Any) -> str:
        """Return why the plan for arguments like these has its collectives.

        Args:
            args: arrays, or `TensorSpec`s in their place.
            tensor: name of an argument or result, such as `params.w`: why it lies as it does.
            kwargs: the same as `args`, by name.
        """
        return explain(self.plan(*args, **kwargs), tensor)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else partial(self, instance)

    def __repr__(self) -> str:
        return f"jit({self.name})"

    # ------------------------------------------------------------------ arguments

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Form:
        return self._signature.read(args, kwargs, self._static, leaves, self._is_fixed)

    def _backend_of(self, leaves: Sequence[object]) -> Backend:
        if self._backend is not None:
            return self._backend
        for leaf in leaves:
            if isinstance(leaf, Array):
                return leaf.backend
        raise BackendError(
            f"function '{self.name}' is called without an array of a backend and knows none; pass "
            f"backend.array(…), or write jit(function, backend=…)"
        )

    def _form(self, form: Form) -> Arriving:
        arriving = self._arriving.get(form)
        if arriving is None:
            arriving = Arriving.of(form, self.options, self._static, self.name)
            self._arriving.put(form, arriving)
        return arriving

    def _arrays(self, form: Form, leaves: list[Any]) -> tuple[Backend, list[Array]]:
        backend = self._backend_of(leaves)
        return backend, self._form(form).arrays(backend, leaves)

    # ------------------------------------------------------------------ running

    def _step(self, backend: Backend, form: Form, kinds: list[Kind]) -> Step:
        key = (form, tuple(kinds))
        step = self._steps.get(key)
        if step is None:
            arriving = self._form(form)
            step = make_step(
                self._function,
                self.name,
                backend,
                form,
                arriving,
                kinds,
                self.options,
                self._is_fixed,
            )
            self._made += 1
            self._steps.put(key, step)
        self._last = (form, kinds, step)
        return step

    def _run(self, step: Step, arrays: list[Array]) -> Any:
        if step.donated:
            given = [*arrays, *step.captured]
            check_donated(given, step.names, step.donated)
        results = step.run_on(arrays)
        for position in step.donated:
            give_up(arrays[position], f"function '{self.name}' as '{step.names[position]}'")
        return rebuild(step.structure, results)

    def _inline(self, outer: Builder, form: Form, leaves: list[Any]) -> Any:
        """Return the function's result as a part of another trace."""
        names = form.leaf_names()
        specs = self.options.specs(form, self._static, self.name)
        tensors: list[Tensor] = []
        for leaf, name, spec in zip(leaves, names, specs, strict=True):
            tensor = lift(outer, leaf, f"argument '{name}' of function '{self.name}'")
            tensors.append(tensor if spec is None else constrained(tensor, spec))
        with outer.within(self.name):
            returned = form.call(self._function, iter(tensors))
            made: list[Any] = []
            structure = flatten(returned, made)
            wanted = list(spread(self.options.outputs, structure, "result"))
            for position, (leaf, spec) in enumerate(zip(made, wanted, strict=True)):
                if spec is not None:
                    tensor = lift(outer, leaf, f"result of function '{self.name}'")
                    made[position] = constrained(tensor, spec)
        return rebuild(structure, made)


def are_of(kinds: list[Kind], leaves: list[Any]) -> bool:
    """Return whether leaves are arrays of these kinds."""
    return [getattr(x, "kind", None) for x in leaves] == kinds


def is_value(x: object) -> bool:
    """Return whether a leaf is a value of Python rather than an array or a number to compute with.

    >>> is_value("mean"), is_value(True), is_value(0.5)
    (True, True, False)
    """
    if isinstance(x, bool | str | bytes):
        return True
    return not isinstance(x, int | float | Operand | TensorSpec) and not hasattr(x, "shape")
