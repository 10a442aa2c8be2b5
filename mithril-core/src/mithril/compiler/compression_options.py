"""`gradient_compression=` of backends, `compile` and `train_step`: its forms, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from mithril.compiler.axis_names import find_axis
from mithril.errors import OptionError, kind_of, listing, near_names
from mithril.mesh import Mesh
from mithril.option_checks import check_choice
from mithril.options import COMPRESSED_FORMS, GradientCompression
from mithril.partition.compression import PLAIN, Compression
from mithril.types import DType

OPTION = "gradient_compression"
GATHERED = {
    "bf16": DType.bfloat16,
    "fp16": DType.float16,
    "bfloat16": DType.bfloat16,
    "float16": DType.float16,
}
"""Names of the dtypes in which parameters may be gathered."""


def read_compression(given: object, mesh: Mesh, default: Compression = PLAIN) -> Compression:
    """Return what `gradient_compression=` means.

    Args:
        given: a form, a `GradientCompression`, or a mapping from patterns of parameter names to
            these, or to None for plain sums; None where it is not given.
        mesh: of the backend.
        default: what holds where it is not given.

    Raises:
        OptionError: it is something else, or the mesh lacks an axis.

    >>> read_compression({"*.weight": "bf16"}, Mesh(data=2)).rules
    (('*.weight', GradientCompression('bf16')),)
    """
    if given is None:
        return default
    said = f"{OPTION}={given!r}"
    if isinstance(given, Mapping):
        rules = tuple(_read_rule(pattern, form, mesh) for pattern, form in given.items())
        return Compression(rules, said)
    form = _name_axes(_read_form(given), mesh)
    return Compression(((form.names, form),), said)


def read_gather_dtype(given: object, default: DType | None = None) -> DType | None:
    """Return the dtype in which parameters at rest are gathered; None for their own.

    Args:
        given: `gather_dtype=`; None where it is not given.
        default: what holds then.

    Raises:
        OptionError: it is none of 16 bits.

    >>> str(read_gather_dtype("bf16"))
    'bfloat16'
    """
    if given is None:
        return default
    check_choice("gather_dtype", str(given), tuple(GATHERED))
    return GATHERED[str(given)]


def check_names(asked: Compression, names: Sequence[str]) -> None:
    """Raise where a pattern is for no parameter of a model.

    Args:
        asked: how gradients travel.
        names: of the parameters.

    Raises:
        OptionError: a pattern matches none.
    """
    for pattern, _ in asked.rules:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError(
                f"pattern '{pattern}' of {OPTION} matches no parameter; near names: "
                f"{listing(near_names(pattern, names))}"
            )


def check_stateless(asked: Compression) -> None:
    """Raise where something is kept from step to step.

    Args:
        asked: how gradients travel that no train step makes.

    Raises:
        OptionError: it is.
    """
    if asked.keeps_state:
        raise OptionError(
            f"{asked.said} keeps a state from step to step, which gradients of evaluate() have no "
            f"place for; give it to ml.train_step, or plan outputs alone with inference=True"
        )


def _read_rule(
    pattern: object, given: object, mesh: Mesh
) -> tuple[str, GradientCompression | None]:
    if not isinstance(pattern, str) or not pattern:
        raise OptionError(
            f"{OPTION} has {pattern!r} in the place of a pattern of parameter names; give one, "
            f"such as '*.weight'"
        )
    if given is None:
        return pattern, None
    form = _read_form(given)
    if form.names != "*":
        raise OptionError(
            f"{OPTION} has names={form.names!r} under the pattern '{pattern}'; say the names once"
        )
    return pattern, _name_axes(form, mesh)


def _read_form(given: object) -> GradientCompression:
    if isinstance(given, GradientCompression):
        return given
    if isinstance(given, str):
        return GradientCompression(given)
    raise OptionError(
        f"{OPTION} is {kind_of(given)}; give one of {listing(COMPRESSED_FORMS)}, an "
        f"ml.GradientCompression, or a mapping from patterns of parameter names to these"
    )


def _name_axes(form: GradientCompression, mesh: Mesh) -> GradientCompression:
    """Return a form with the axes of a mesh in the place of other names of theirs."""
    if form.axes is None or mesh.size == 1:
        return form
    return replace(form, axes=tuple(find_axis(name, mesh, OPTION) for name in form.axes))


__all__ = ["check_names", "check_stateless", "read_compression", "read_gather_dtype"]
