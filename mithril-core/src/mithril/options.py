"""Typed groups of options: plain data, checked when made, with no meaning hidden elsewhere.

`Precision` says in which dtypes a model keeps its parameters, multiplies, and passes values on,
`PipelineOptions` how stages run, `GradientCompression` how gradients travel.
`float_dtype` reads a single option, those of `mithril.option_checks` read others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from mithril.errors import OptionError, ShapeError, listing, nearest
from mithril.keywords import checked_options
from mithril.option_checks import check_choice, check_flag
from mithril.types import DType, as_dtype, to_python

FLOATS = tuple(dtype for dtype in DType if dtype.is_float)


@checked_options
@dataclass(frozen=True, slots=True)
class Precision:
    """In which dtypes a model keeps its parameters, multiplies, and passes values on.

    The rules, in the spirit of JAX's mixed-precision policies and of automatic mixed precision
    (Micikevicius et al., "Mixed precision training", 2018):

    * parameters are kept in `param_dtype`, and their gradients come back in it;
    * linear algebra (matrix products, convolutions, attention: every op that contracts two float
      operands) takes its float operands in `compute_dtype`;
    * every other value is kept in `activation_dtype`: float inputs are converted to it on entry,
      parameters where they meet an activation;
    * sums accumulate in at least float32, and a scalar output (a loss) leaves without being rounded
      after that;
    * a gradient has the dtype of what it is the gradient of, and an output's gradient may be given
      in any float dtype;
    * what a layer casts itself, and a parameter it declares with a dtype, stay as written.

    An option that is left out follows another: `param_dtype` and `compute_dtype` follow `dtype`,
    `activation_dtype` follows `compute_dtype`. With none given, parameters are float32 and values
    have the dtypes that inputs and parameters bring along, promoted by the array API standard.

    Args:
        dtype: the float dtype of new arrays, and what the others follow; float32 by default.
        param_dtype: the dtype parameters are kept in.
        compute_dtype: the dtype of the operands of linear algebra.
        activation_dtype: the dtype of values between layers.

    Raises:
        OptionError: a dtype is unknown, or not a float.

    >>> precision = Precision(compute_dtype="bfloat16")
    >>> str(precision.parameters), str(precision.compute), str(precision.activations)
    ('float32', 'bfloat16', 'bfloat16')
    """

    dtype: str | None = None
    param_dtype: str | None = None
    compute_dtype: str | None = None
    activation_dtype: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.list_given():
            object.__setattr__(self, name, float_dtype(name, value))

    @property
    def default(self) -> DType:
        """The float dtype of new arrays."""
        return DType(self.dtype or DType.float32)

    @property
    def parameters(self) -> DType:
        """The dtype parameters are kept in."""
        return DType(self.param_dtype or self.default)

    @property
    def compute(self) -> DType:
        """The dtype of the operands of linear algebra."""
        return DType(self.compute_dtype or self.default)

    @property
    def activations(self) -> DType:
        """The dtype of values between layers."""
        return DType(self.activation_dtype or self.compute)

    @property
    def is_given(self) -> bool:
        """Whether any option was given; otherwise values keep the dtypes they come with."""
        return any(True for _ in self.list_given())

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={str(value)!r}" for name, value in self.list_given())
        return f"Precision({given})"

    def list_given(self) -> Iterator[tuple[str, str]]:
        """Yield the options that were given, and their dtypes."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ((name, value) for name, value in pairs if value is not None)


@checked_options
@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How the stages of a pipeline run.

    Args:
        schedule: `gpipe`, `1f1b`, `interleaved`, `zb-h1`, the path of a CSV file with a table, or
            the lines of a table, one for each device; by default `1f1b`, or `interleaved` where
            devices have several stages.
        microbatch_size: samples of a micro-batch, of each data-parallel replica; by default what
            the pipeline says, or else the batch is not cut.
        axis: the mesh axis the stages go along; by default what the pipeline says.
        batch: the input whose leading dimension is cut; by default what the first stage of a
            Pipeline reads, or else the model's first input. What belongs to it is cut with it.
        most_held: how many micro-batches of its stages a device may hold activations of.

    Raises:
        OptionError: an option has a value of the wrong form.

    >>> PipelineOptions(schedule="zb-h1", microbatch_size=4).schedule
    'zb-h1'
    """

    schedule: str | tuple[str, ...] | None = None
    microbatch_size: int | None = None
    axis: str | None = None
    most_held: int | None = None
    batch: str | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None:
            object.__setattr__(self, "schedule", check_schedule_form("schedule", self.schedule))
        for option, what in (("microbatch_size", "samples"), ("most_held", "micro-batches")):
            value = getattr(self, option)
            if value is not None and not (type(value) is int and value > 0):
                raise OptionError(f"{option}={value!r} is no number of {what} above 0; give one")
        for option, what in (("axis", "a mesh axis"), ("batch", "an input")):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise OptionError(f"{option}={value!r} is no name of {what}; give one")

    def __repr__(self) -> str:
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        shown = (f"{name}={value!r}" for name, value in pairs if value is not None)
        return f"PipelineOptions({', '.join(shown)})"


COMPRESSED_FORMS = ("fp16", "bf16", "int8", "powersgd")
BLOCK, RANK = 256, 1


@checked_options
@dataclass(frozen=True, slots=True)
class GradientCompression:
    """How gradients travel where devices add them up.

    Args:
        form: `fp16` and `bf16` cast each gradient for the way, `int8` sends blocks of 8-bit
            integers, each with a scale, `powersgd` two thin factors of each matrix (Vogels,
            Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
            Distributed Optimization", 2019), which only `ml.train_step` has the state for.
        axes: the mesh axis, or axes, over which sums are compressed; by default all of them. The
            part of a sum over other axes is plain, and taken first; what is scattered is summed
            axis after axis, as they cut it.
        names: the parameters whose gradients are compressed: a pattern of names, as `fnmatch`
            reads it.
        block: of `int8`: how many numbers share a scale; 256 by default.
        rank: of `powersgd`: how many columns the factors have; 1 by default.
        warmup: of `powersgd`: how many steps are made before gradients are compressed; 0 by
            default.
        error_feedback: whether each device adds what was lost of its terms to those of the next
            step; that is kept in the state of the step. By default only for `powersgd`.

    Raises:
        OptionError: an option has a value of the wrong form, or has no effect on this form.

    >>> GradientCompression("int8", names="*.weight").block
    256
    >>> GradientCompression("powersgd", rank=4).keeps_error
    True
    """

    form: str
    axes: str | Sequence[str] | None = None
    names: str = "*"
    block: int | None = None
    rank: int | None = None
    warmup: int | None = None
    error_feedback: bool | None = None

    def __post_init__(self) -> None:
        check_choice("gradient_compression", self.form, COMPRESSED_FORMS)
        if not isinstance(self.names, str) or not self.names:
            raise OptionError(
                f"names={self.names!r} of GradientCompression is no pattern of parameter names; "
                f"give one, such as '*.weight'"
            )
        for option, of, default, least, what in _NUMBERS:
            value = _read_number(option, getattr(self, option), self.form, of, default, least, what)
            object.__setattr__(self, option, value)
        if self.error_feedback is not None:
            check_flag("error_feedback", self.error_feedback)
        object.__setattr__(self, "axes", _read_axes(self.axes))

    @property
    def keeps_error(self) -> bool:
        """Whether what is lost is added to the gradients of the next step."""
        is_low_rank = self.form == "powersgd"
        return is_low_rank if self.error_feedback is None else self.error_feedback

    @property
    def keeps_state(self) -> bool:
        """Whether something is kept from step to step."""
        return self.keeps_error or self.form == "powersgd"

    def __repr__(self) -> str:
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self)[1:])
        defaults = {"names": "*", "warmup": 0}
        shown = [f"{n}={x!r}" for n, x in pairs if x is not None and x != defaults.get(n)]
        return f"GradientCompression({', '.join([repr(self.form), *shown])})"


_NUMBERS = (
    ("block", "int8", BLOCK, 1, "elements"),
    ("rank", "powersgd", RANK, 1, "columns"),
    ("warmup", "powersgd", 0, 0, "steps"),
)
"""Options that are numbers: of which form, the default, the least, and of what."""


def _read_number(
    option: str, given: object, form: str, of: str, default: int, least: int, what: str
) -> int | None:
    """Return a number of a form of compression; None for the other forms."""
    value = to_python(given)
    if form != of:
        if value is not None:
            raise OptionError(
                f"{option}={value!r} has no effect on gradient_compression='{form}'; it is for "
                f"'{of}'; leave it out"
            )
        return None
    if value is not None and (type(value) is not int or value < least):
        raise OptionError(
            f"{option}={value!r} of GradientCompression is no number of {what}; give {least} or "
            f"more"
        )
    return default if value is None else value


def _read_axes(axes: object) -> tuple[str, ...] | None:
    """Return the names of mesh axes; None for all."""
    if axes is None:
        return None
    given = (axes,) if isinstance(axes, str) else axes
    if not isinstance(given, Sequence) or not given or not all(isinstance(a, str) for a in given):
        raise OptionError(
            f"axes={axes!r} of GradientCompression names no mesh axes; give one, such as 'data', "
            f"or several"
        )
    return tuple(dict.fromkeys(given))


def check_schedule_form(option: str, schedule: object) -> str | tuple[str, ...]:
    """Return a schedule: a name, a path, or the lines of a table.

    Args:
        option: the option's name, for messages.
        schedule: what it is given.

    Raises:
        OptionError: it is none of these.
    """
    lines = schedule if isinstance(schedule, list | tuple) else (schedule,)
    if not lines or not all(isinstance(line, str) for line in lines):
        raise OptionError(
            f"{option}={schedule!r} is no pipeline schedule; give a name, such as '1f1b', the path "
            f"of a CSV file, or the lines of a table"
        )
    return schedule if isinstance(schedule, str) else tuple(lines)


AS_THEY_COME = Precision()
"""No precision is asked for: values keep the dtypes they come with."""


def float_dtype(option: str, value: object) -> DType:
    """Return the float dtype an option means.

    Args:
        option: the option's name, for messages.
        value: a name, a NumPy dtype or a `DType`.

    Raises:
        OptionError: it is no dtype, or one without fractions.
    """
    try:
        dtype = as_dtype(value)
    except (ShapeError, TypeError):
        if "float8" in str(value):
            raise OptionError(
                f"{option}={value!r} is not available: values of 8 bits need a scale for each "
                f"tensor, which layers do not keep; use 'bfloat16'"
            ) from None
        hint = nearest(str(value), FLOATS)
        raise OptionError(
            f"{option}={value!r} is no dtype of Mithril{hint}; use one of {listing(FLOATS)}"
        ) from None
    if not dtype.is_float:
        raise OptionError(
            f"{option}='{dtype}' does not hold fractions; use one of {listing(FLOATS)}"
        )
    return dtype
