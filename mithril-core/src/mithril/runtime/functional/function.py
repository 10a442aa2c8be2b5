"""jit: a function that is traced and planned once per kind of arguments, and then only runs.

What a plan depends on is the form of the arguments (their trees, names and static values) and the
type and sharding of every array in them. The first call of a kind traces, plans and lowers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, Unpack, overload

from mithril.compiler.options import OF_MODELS, OF_STEPS, refuse_of_other
from mithril.errors import BackendError, GraphError
from mithril.ir import Builder, Operand, Tensor
from mithril.ir.running import running_trace, trace_of_call
from mithril.keywords import checked_keywords, refuse_unknown
from mithril.mesh import PartitionSpec
from mithril.ops.constrain import apply_constraint
from mithril.plan import Plan
from mithril.report import explain
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.runtime.bindings import Bindings
from mithril.runtime.call import Bound
from mithril.runtime.creation import Creation
from mithril.runtime.donation import give_up_moved
from mithril.runtime.functional.arguments import Form, Signature, name_of
from mithril.runtime.functional.arriving import Arriving
from mithril.runtime.functional.binding import TracedFunction, bind_function
from mithril.runtime.functional.options import FunctionOptions, JitOptions
from mithril.runtime.functional.tracing import check_traced_spec, lift
from mithril.runtime.functional.written_function import WrittenFunction, can_write, write_function
from mithril.runtime.interrupts import hold_interrupts
from mithril.runtime.lru import LRUCache
from mithril.runtime.specification import TensorSpec
from mithril.trees import flatten, rebuild, spread

KEPT = 512
"""How many plans a function keeps; the one unused for longest goes first."""


@overload
def jit(function: Callable[..., Any], **options: Unpack[JitOptions]) -> Function: ...


@overload
def jit(
    function: None = None, **options: Unpack[JitOptions]
) -> Callable[[Callable[..., Any]], Function]: ...


@checked_keywords()
def jit(
    function: Callable[..., Any] | None = None, **options: Unpack[JitOptions]
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
        at_rest: how arrays are kept between calls, by patterns of the names of leaves such as
            `{"params.*.weight": P("data")}`, or one `P` for all: they are brought there, gathered
            when they are needed, and their gradients leave so. What stands behind the argument's
            name may be matched alone. Scalars are not kept, unless they are named. `in_shardings`
            then say how they are computed with.
        uneven: what happens when a dimension is split that does not divide: `pad` its parts, or
            `error`; by default as the backend does.
        max_reshard_bytes: refuse a plan that moves more bytes than this, per device and time, only
            because two shardings do not fit together (reductions and what is kept at rest aside).
        partition_hooks: put each function that is called, and each collective, into a range of the
            framework's profiler that has its name.
        memory_planning: `greedy` or `dynamic`, as for `compile`.
        passes: of plugins, by name, as for `compile`.
        checkpointing, activation_checkpointing, rematerialization, rematerialization_policy,
            recomputation_granularity: what the gradients that the function takes compute again, as
            `compile` has them.
        options: the keywords above; those of `compile` that make no sense here are refused.

    Raises:
        OptionError: an argument is named that does not exist, or an option is unknown.
        BackendError: `backend` is none.
        ShardingError: `at_rest` gives no specs.

    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(x=4))
    >>> double = jit(lambda x: x * 2, backend=backend, in_shardings=ml.P("x"))
    >>> double(backend.arange(4)).sharding
    Sharding(P('x'))
    """
    refuse_of_other("jit()", options, OF_MODELS | OF_STEPS)
    refuse_unknown("jit()", options, ["function", *JitOptions.__annotations__])
    if function is None:
        return partial(jit, **options)
    if not callable(function):
        raise GraphError(f"jit() takes a function, not {function!r}; write jit(function, …)")
    backend = options.get("backend")
    if backend is not None and not isinstance(backend, Creation):
        raise BackendError(
            f"jit() is given backend={backend!r}, which is none; write backend=ml.NumpyBackend()"
        )
    return Function(function, backend, FunctionOptions.read(Signature(function), options))


class Function:
    """A function that runs as one plan; made by `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        backend: ArrayBackend | None,
        options: FunctionOptions,
        is_fixed: Callable[[object], bool] | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.name = name_of(function)
        self.options = options
        self._function = function
        self._backend = backend
        self._is_fixed = is_fixed
        self._signature = Signature(function)
        self._arriving: LRUCache[Form, Arriving] = LRUCache(KEPT)
        self._bindings: Bindings[Form, TracedFunction] = Bindings(KEPT)
        self._written: tuple[WrittenFunction, Bound[TracedFunction]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; inside another function that is traced, become a part of it."""
        if self._written is not None and not kwargs and running_trace() is None:
            written, bound = self._written
            arrays = written.collect(args)
            if arrays is not None:
                return written.run(bound, arrays)
        leaves: list[Any] = []
        form = self._read(args, kwargs, leaves)
        outer = trace_of_call(leaves)
        if outer is not None:
            return self._inline(outer, form, leaves)
        found = self._bindings.of_last(form, leaves)
        if found is not None:
            self._write(found, form, leaves)
            return _run(found, leaves)
        backend = self._backend_of(leaves)
        arriving = self._form(form)
        convert = partial(arriving.arrays, backend, leaves)
        arrays, known, others = self._bindings.of_last_said(form, leaves, convert)
        bound = known or self._bind(backend, form, arriving.say([x.kind for x in arrays]))
        bound.interface.source.check_numbers(leaves)
        bound.interface.source.check_indices(leaves)
        arrays = bound.settle(arrays, others)
        if known is None:
            self._bindings.remember(form, arrays, bound)
        return _run(bound, arrays, leaves)

    @property
    def recompiles(self) -> int:
        """How many plans were made so far: one per kind of arguments."""
        return self._bindings.made

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the plan for arguments like these, without running it.

        Args:
            args: arrays, or `TensorSpec`s in their place.
            kwargs: the same, by name.
        """
        leaves: list[Any] = []
        form = self._read(args, kwargs, leaves)
        backend = self._backend_of(leaves)
        arriving = self._form(form)
        kinds = arriving.say(arriving.kinds(backend, leaves))
        return self._bind(backend, form, kinds).plan

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
        return self._signature.read(args, kwargs, self.options.static, leaves, self._is_fixed)

    def _backend_of(self, leaves: Sequence[object]) -> ArrayBackend:
        return self._backend or find_backend(self.name, leaves)

    def _form(self, form: Form) -> Arriving:
        arriving = self._arriving.get(form)
        if arriving is None:
            arriving = Arriving.of(form, self.options, self.name)
            self._arriving.put(form, arriving)
        return arriving

    # ------------------------------------------------------------------ running

    def _bind(
        self, backend: ArrayBackend, form: Form, kinds: Sequence[Kind]
    ) -> Bound[TracedFunction]:
        bound = self._bindings.find(form, kinds)
        if bound is None:
            bound = bind_function(
                self._function,
                self.name,
                backend,
                form,
                self._form(form),
                kinds,
                self.options,
                self._is_fixed,
            )
            self._bindings.keep(form, kinds, bound)
        return bound

    def _write(self, bound: Bound[TracedFunction], form: Form, arrays: Sequence[Array]) -> None:
        """Have the next call like this one, and like the one before, run without a detour."""
        if not can_write(form) or not bound.is_settled:
            return
        if form not in bound.written:
            bound.written[form] = write_function(bound, form, [x.kind for x in arrays])
        self._written = bound.written[form], bound

    def _inline(self, outer: Builder, form: Form, leaves: list[Any]) -> Any:
        """Return the function's result as a part of another trace.

        Raises:
            MeshError: its shardings are of another mesh than that of the function around it.
        """
        names = form.leaf_names()
        specs, whose = self.options.specs(form, self.name), f"function '{self.name}'"
        tensors: list[Tensor] = []
        for leaf, name, spec in zip(leaves, names, specs, strict=True):
            tensors.append(_constrain(outer, leaf, spec, f"argument '{name}' of {whose}"))
        with outer.within(self.name):
            returned = form.call(self._function, iter(tensors))
            made: list[Any] = []
            structure = flatten(returned, made)
            wanted = list(spread(self.options.out_shardings, structure, "result"))
            for position, (leaf, spec) in enumerate(zip(made, wanted, strict=True)):
                if spec is not None:
                    made[position] = _constrain(outer, leaf, spec, f"result of {whose}")
        return rebuild(structure, made)


def _constrain(outer: Builder, leaf: object, spec: PartitionSpec | None, what: str) -> Tensor:
    """Return a leaf as a tensor of a trace, lying as a spec says."""
    tensor = lift(outer, leaf, what)
    if spec is None:
        return tensor
    check_traced_spec(outer, spec, what)
    return apply_constraint(tensor, spec)


def find_backend(name: str, leaves: Sequence[object]) -> ArrayBackend:
    """Return the backend of the arrays that a function is called with.

    Args:
        name: of the function.
        leaves: of its arguments.

    Raises:
        BackendError: there is no array of a backend among them.
    """
    for leaf in leaves:
        if isinstance(leaf, Array):
            return leaf.backend
    raise BackendError(
        f"function '{name}' is called without an array of a backend and knows none; pass "
        f"backend.array(…), or write jit(function, backend=…)"
    )


def _run(
    bound: Bound[TracedFunction], arrays: list[Array], leaves: Sequence[Any] | None = None
) -> Any:
    """Return what a function returns for arrays of the kinds that were planned for.

    Args:
        bound: what runs.
        arrays: of the arguments.
        leaves: what users passed for them, if it is not the same.
    """
    captured = bound.interface.source.captured
    # Another plan may have moved what is unplaced of them, and one may be an argument, too.
    given = bound.settle([*arrays, *captured.held]) if captured.arrays else arrays
    return hold_interrupts(bool(bound.interface.donated), _run_settled, bound, given, leaves)


def _run_settled(
    bound: Bound[TracedFunction], arrays: list[Array], leaves: Sequence[Any] | None
) -> Any:
    made = bound.run(arrays)
    if leaves is not None:
        give_up_moved(leaves, arrays, bound.interface.donated)
    return rebuild(bound.interface.source.structure, made)


def is_value(x: object) -> bool:
    """Return whether a leaf is a value of Python rather than an array or a number to compute with.

    >>> is_value("mean"), is_value(True), is_value(0.5)
    (True, True, False)
    """
    if isinstance(x, bool | str | bytes):
        return True
    return not isinstance(x, int | float | Operand | TensorSpec) and not hasattr(x, "shape")
