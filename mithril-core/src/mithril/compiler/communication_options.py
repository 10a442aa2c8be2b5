"""The options of communication: what they mean together, and which do not go together.

`collective_optimization` and `communication_optimization` stand for all passes over communication.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mithril.compiler.algorithm_options import OPTION as ALGORITHMS
from mithril.compiler.algorithm_options import read_algorithms
from mithril.compiler.overlap_options import (
    CHUNKS,
    FLAG,
    STRATEGY,
    read_chunks,
    read_overlap,
)
from mithril.compiler.request import PlanOptions
from mithril.cost.profiles.units import BYTES
from mithril.errors import OptionError
from mithril.mesh import Mesh
from mithril.option_checks import check_flag, choose_name
from mithril.partition.algorithms import AS_ENGINES_DO, Algorithms
from mithril.partition.fusion import FUSE_AS_IT_PAYS, Fusion
from mithril.partition.overlap import AS_IT_PAYS, Overlap
from mithril.partition.overlap.asked import AUTO, NONE
from mithril.types import to_python

FUSION, FUSION_BYTES = "all_reduce_fusion", "fusion_bytes"
_FORMS = 'give a number of bytes above 0, such as 2_000_000 or "2 MB"'


@dataclass(frozen=True, slots=True)
class Communication:
    """How a plan communicates.

    Args:
        overlap: how collectives are placed beside what computes.
        fusion: which of them travel together.
        algorithms: how they are carried out.
        said: the option that stands for all passes, as it was given; empty where it was not.
    """

    overlap: Overlap = AS_IT_PAYS
    fusion: Fusion = FUSE_AS_IT_PAYS
    algorithms: Algorithms = AS_ENGINES_DO
    said: str = ""

    def apply(self, options: PlanOptions) -> PlanOptions:
        """Return options of planning with these in the place of theirs."""
        return replace(
            options,
            overlap=self.overlap,
            fusion=self.fusion,
            algorithms=self.algorithms,
            optimization=self.said,
        )

    def with_algorithms(
        self, given: object, mesh: Mesh, library: str, backend: str, *, is_said: bool = True
    ) -> Communication:
        """Return the same with collectives that are carried out as `collective_ops=` says.

        Args:
            given: the option; None where it is not given, and what stands for all passes decides.
            mesh: of the backend.
            library: what carries data between its devices.
            backend: its name, for messages.
            is_said: whether what stands for all passes is said beside it, and not before.

        Raises:
            OptionError: as `read_algorithms` does, or no pass is to run.
        """
        is_on = is_said and self.said.endswith("=True")
        if given is not None and is_said and self.said and not is_on and given != library:
            raise OptionError(
                f"{self.said} is given together with {ALGORITHMS}={given!r}, which says the "
                f"opposite; leave one of them out"
            )
        if given is None and is_on:
            found = read_algorithms(AUTO, mesh, library, backend)
            return replace(self, algorithms=replace(found, said=f"algorithms of {self.said}"))
        found = read_algorithms(given, mesh, library, backend, self.algorithms)
        return replace(self, algorithms=found)


COMMUNICATE_AS_IT_PAYS = Communication()
"""Nothing was asked for."""


def read_communication(
    *,
    collective_optimization: object = None,
    communication_optimization: object = None,
    overlap_communication: object = None,
    async_collective_ops: object = None,
    overlap_comm: object = None,
    communication_overlap_strategy: object = None,
    pipeline_communication: object = None,
    all_reduce_fusion: object = None,
    fusion_bytes: object = None,
    overlap_comm_name: str = "overlap_comm",
    default: Communication = COMMUNICATE_AS_IT_PAYS,
) -> Communication:
    """Return how a plan is to communicate.

    Args:
        collective_optimization: whether all passes over communication are on `auto`, or none runs.
        communication_optimization: another name of that.
        overlap_communication: whether collectives go on beside what computes.
        async_collective_ops: another name of that.
        overlap_comm: a third one.
        communication_overlap_strategy: how they do.
        pipeline_communication: whether what is large travels in chunks.
        all_reduce_fusion: whether all-reduces travel together.
        fusion_bytes: the most that a buffer holds.
        overlap_comm_name: what `overlap_comm` is called, for messages.
        default: what holds where nothing is given.

    Raises:
        OptionError: a value is of a wrong form, or two options say the opposite.

    >>> read_communication(collective_optimization=False).overlap.strategy
    'none'
    """
    passes = {
        "collective_optimization": collective_optimization,
        "communication_optimization": communication_optimization,
    }
    for option, value in passes.items():
        if value is not None:
            check_flag(option, value)
    name, is_on = choose_name(passes)
    flags = {
        FLAG: overlap_communication,
        "async_collective_ops": async_collective_ops,
        overlap_comm_name: overlap_comm,
    }
    for option, value in flags.items():
        if value is not None:
            check_flag(option, value)
    flag, overlaps = choose_name(flags)
    said = "" if is_on is None else f"{name}={is_on}"
    if is_on is not None:
        given = {
            flag: overlaps,
            STRATEGY: communication_overlap_strategy,
            CHUNKS: pipeline_communication,
            FUSION: all_reduce_fusion,
            FUSION_BYTES: fusion_bytes,
        }
        _refuse_opposites(said, bool(is_on), given)
        default = _stand_for_all(said, bool(is_on))
    overlap = read_overlap(overlaps, communication_overlap_strategy, default.overlap, flag)
    return Communication(
        read_chunks(pipeline_communication, overlap, default.overlap),
        read_fusion(all_reduce_fusion, fusion_bytes, default.fusion),
        default.algorithms,
        said or default.said,
    )


def _stand_for_all(said: str, is_on: bool) -> Communication:
    """Return what one option means for every pass over communication."""
    if not is_on:
        return Communication(
            Overlap(NONE, said), Fusion(False, False, None, said), AS_ENGINES_DO, said
        )
    return Communication(
        Overlap(AUTO, f"overlap of {said}", in_chunks=True), Fusion(said=said), AS_ENGINES_DO, said
    )


def _refuse_opposites(said: str, is_on: bool, given: dict[str, object]) -> None:
    """Raise where a single option says the opposite of that which stands for all passes."""
    for option, value in given.items():
        if value is None:
            continue
        is_off = value is False or (option == STRATEGY and value == NONE)
        if is_on == is_off:
            raise OptionError(
                f"{said} is given together with {option}={value!r}, which says the opposite; leave "
                f"one of them out"
            )


def read_fusion(all_reduces: object, nbytes: object, default: Fusion = FUSE_AS_IT_PAYS) -> Fusion:
    """Return which collectives are to travel together.

    Args:
        all_reduces: `all_reduce_fusion=`; None where it is not given.
        nbytes: `fusion_bytes=`; None where it is not given.
        default: what holds where neither is.

    Raises:
        OptionError: a value is of a wrong form, or nothing is to travel in buffers of a size.

    >>> read_fusion(None, "2 MB").nbytes
    2000000
    """
    if all_reduces is None and nbytes is None:
        return default
    is_on = True if all_reduces is None else check_flag(FUSION, all_reduces)
    if nbytes is None:
        # Sums travel together in the buffers that were asked for before.
        kept = default.nbytes if is_on else None
        return Fusion(is_on, nbytes=kept, said=f"{FUSION}={is_on}")
    size = _read_bytes(nbytes)
    if not is_on:
        raise OptionError(
            f"{FUSION}=False is given together with {FUSION_BYTES}={nbytes!r}, the size of what "
            f"travels together; leave one of them out"
        )
    return Fusion(nbytes=size, said=f"{FUSION_BYTES}={nbytes!r}")


def _read_bytes(given: object) -> int:
    number = to_python(given)
    if isinstance(number, str):
        try:
            number = int(BYTES.read(number, FUSION_BYTES))
        except OptionError:  # which does not know that numbers are taken, too
            number = None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise OptionError(f"{FUSION_BYTES}={given!r} is no size of a buffer; {_FORMS}")
    return number


__all__ = ["COMMUNICATE_AS_IT_PAYS", "Communication", "read_communication", "read_fusion"]
