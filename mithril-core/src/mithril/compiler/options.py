"""Keyword options of backends and of compile: which are known, and a refusal for the rest.

An option that is accepted has an effect. One that Mithril knows but has not built yet, and one that
nobody knows, are refused here, with the nearest known name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mithril.errors import OptionError
from mithril.keywords import read_entries
from mithril.option_checks import choose_name
from mithril.options import Precision, float_dtype
from mithril.types import DType, to_python

BACKEND_LATER = frozenset({"executor"})
"""Options of every backend that the guides describe and that are not available yet."""


OF_MODELS = {
    "activation_offload": "only a model has a forward and a backward; use ml.checkpoint",
    "all_reduce_fusion": "give it to the backend",
    "async_collective_ops": "give it to the backend",
    "collective_ops": "give it to the backend",
    "collective_optimization": "give it to the backend",
    "communication_optimization": "give it to the backend",
    "communication_overlap_strategy": "give it to the backend",
    "fusion_bytes": "give it to the backend",
    "host_arena": "give it to compile",
    "offload_threshold": "give it to compile",
    "overlap_communication": "give it to the backend",
    "pipeline_communication": "give it to the backend",
    "spill_threshold_mb": "give it to compile",
    "spill_to_host": "give it to compile",
    "auto_partition": "give it to ml.compile for a model",
    "max_memory_per_device": "give it to ml.compile for a model",
    "partition_constraints": "give it to ml.compile for a model",
    "partition_objective": "give it to ml.compile for a model",
    "partition_search_space": "give it to ml.compile for a model",
    "accumulate": "cut the batch in the function, with ml.scan",
    "gather_dtype": "only a model has parameters that are gathered",
    "gradient_compression": "only a model has parameters whose gradients are known",
    "differentiable": "gradients are those of ml.grad(function, argnums=…)",
    "gradient_accumulation": "cut the batch in the function, with ml.scan",
    "gradient_accumulation_steps": "cut the batch in the function, with ml.scan",
    "load_balancing": "only a model has stages",
    "load_balancing_algorithm": "only a model has stages",
    "partition_strategy": "only a model has parameters and stages",
    "profiling_based_partitioning": "only a model has stages",
    "inference": "a function does what its code says",
    "mixed_precision_policy": "a function computes in the dtypes of its arrays; write x.astype(…)",
    "pipeline": "only a model has stages",
    "pipeline_schedule": "only a model has stages",
    "precision": "a function computes in the dtypes of its arrays; write x.astype(…)",
    "zero": "say at_rest=",
    "zero_axis": "say at_rest=",
    "shapes": "call function.plan(ml.TensorSpec(…)) to plan without running",
}
"""Options of compile that make no sense for a function, and what to do instead."""

OF_FUNCTIONS = {
    "static": "a model has no values of Python among its inputs; give them to its layers",
}
"""Options of jit that make no sense for a model, and what to do instead."""


OF_STEPS = dict.fromkeys(("loss", "loss_scale", "offload_optimizer"), "give it to train_step()")
"""Options of train_step that make no sense where nothing is trained, and what to do instead."""


def refuse_of_other(call: str, given: Mapping[str, object], other: Mapping[str, str]) -> None:
    """Raise for the first option that makes sense elsewhere only.

    Args:
        call: what takes the options, for messages.
        given: options by name.
        other: those that belong elsewhere, and what to do instead.

    Raises:
        OptionError: there is one.
    """
    for name in given:
        if name in other:
            raise OptionError(f"option '{name}' makes no sense for {call}; {other[name]}")


def read_precision(precision: Precision | None, **flat: object) -> Precision:
    """Return the precision that `precision=`, or the flat options `dtype=` and so on, mean.

    Args:
        precision: the typed form.
        flat: the fields of `Precision` by name, and `weight_dtype`, another name of `param_dtype`;
            None where an option is not given.

    Raises:
        OptionError: both forms are given, both names of one option, or something that is no dtype.
    """
    given: dict[str, Any] = {name: value for name, value in flat.items() if value is not None}
    if precision is not None:
        if given:
            raise OptionError(
                f"precision= is given together with {next(iter(given))}=; give one form"
            )
        return check_precision(precision)
    names = [name for name in ("weight_dtype", "param_dtype") if name in given]
    if names:
        dtypes = [str(float_dtype(name, given.pop(name))) for name in names]
        given["param_dtype"] = choose_name(dict(zip(names, dtypes, strict=True)))[1]
    return Precision(**given)


def check_precision(precision: object) -> Precision:
    """Return a precision.

    Raises:
        OptionError: it is something else.
    """
    if not isinstance(precision, Precision):
        raise OptionError(
            f"precision={precision!r} is no Precision; write ml.Precision(compute_dtype='bfloat16')"
        )
    return precision


def check_uneven(policy: str) -> str:
    """Return the policy for sizes that do not divide.

    Raises:
        OptionError: there is no such policy.
    """
    if policy not in ("pad", "error"):
        raise OptionError(f"uneven={policy!r} is neither 'pad' nor 'error'; give one of them")
    return policy


def refuse_later(call: str, given: Mapping[str, object], later: Iterable[str]) -> None:
    """Raise for the first option that is known but not built yet.

    Raises:
        OptionError: there is one.
    """
    for name, value in given.items():
        if name in later:
            raise OptionError(
                f"option {name}={value!r} of {call} is not available yet; leave it out"
            )


POLICY = ("params", "compute", "gradients")


def read_policy(policy: object) -> tuple[Precision, DType | None]:
    """Return the precision that `mixed_precision_policy=` means, and the dtype of gradients.

    Args:
        policy: a mapping from `params`, `compute` and `gradients` to float dtypes; gradients have
            the dtype of their parameters by default.

    Raises:
        OptionError: it is no such mapping.
    """
    option = "mixed_precision_policy"
    said = read_entries(option, policy, POLICY, '{"params": "bfloat16", "compute": "float32"}')
    given = {name: float_dtype(f"{option} '{name}'", dtype) for name, dtype in said.items()}
    precision = Precision(param_dtype=given.get("params"), compute_dtype=given.get("compute"))
    gradients = given.get("gradients")
    return precision, None if gradients is None else DType(gradients)


def read_accumulate(accumulate: object, is_on: object, steps: object) -> int:
    """Return into how many micro-batches a batch is cut.

    Args:
        accumulate: the number; None where it is not given.
        is_on: `gradient_accumulation=`, which the guides give with the number of steps.
        steps: `gradient_accumulation_steps=`, another name of the number.

    Raises:
        OptionError: it is no positive integer, or these differ.
    """
    name, given = choose_name({"accumulate": accumulate, "gradient_accumulation_steps": steps})
    given = to_python(given)
    if is_on is not None and not isinstance(is_on, bool):
        raise OptionError(f"gradient_accumulation={is_on!r} is neither True nor False")
    if given is None and is_on:
        raise OptionError(
            "gradient_accumulation=True does not say over how many micro-batches; give "
            "gradient_accumulation_steps, too"
        )
    count = 1 if given is None else given
    if type(count) is not int or count < 1:
        raise OptionError(f"{name}={count!r} is no number of micro-batches; give 1 or more")
    if count > 1 and is_on is False:
        raise OptionError(
            f"gradient_accumulation=False is given together with {name}={count}; leave one out"
        )
    return count
