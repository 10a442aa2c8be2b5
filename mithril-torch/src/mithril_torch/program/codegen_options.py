"""Options of code generation, besides what a program computes; this module imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mithril.spi import Arena, Graph, Writing

from mithril_torch.options import AUTO, TorchOptions


@dataclass(frozen=True)
class CodegenOptions:
    """How a program is written.

    Args:
        compiled: have `torch.compile` compile it: collectives are functions that it can trace,
            nothing is done in place, and no steps are noted.
        cross_memory: processes of one host read each other's memory, if they may.
        fusions: have PyTorch's compiler make kernels of elementwise ops and reductions that read
            each other.
        tracks_steps: note the steps in `step`.
        bucket_views: results stay in the buffers of their collectives; otherwise each gets memory
            of its own.
        ranges: collectives stand in named ranges of PyTorch's profiler.
        layer_ranges: what belongs to one layer stands in such a range.
        channels_last: images of convolutions lie with their channels last.
        contiguous_results: what such programs return lies in the order of its dimensions all the
            same, but for what an update makes, or what takes the place of a donated input.
        early: start to receive before a stage runs what is needed after it; messages between two
            devices then keep no order.
        timed: it tells `mark` when it comes from one segment to the next.
        precision: that of products of float32, `ieee` or `tf32`; as PyTorch is set if left out.
        onednn: large products of float32 may be oneDNN's; see `program.onednn`.
        arrange: chooses where results lie in one block a device, which is made when the program is
            loaded; None for memory that is taken as it runs.
    """

    compiled: bool = False
    cross_memory: bool = True
    fusions: bool = False
    tracks_steps: bool = True
    bucket_views: bool = True
    ranges: bool = False
    layer_ranges: bool = False
    channels_last: bool = False
    contiguous_results: bool = False
    early: bool = False
    timed: bool = False
    precision: str | None = None
    onednn: bool = False
    arrange: Callable[[Graph, Writing], Arena] | None = None

    @property
    def uses_onednn(self) -> bool:
        """Whether products are oneDNN's, which makes them in memory of its own: in no arena."""
        return self.onednn and not self.compiled and self.arrange is None


DEFAULT_CODEGEN = CodegenOptions()
"""Plain, for a pool that watches its workers."""


def in_range(name: str) -> str:
    """Return the head of a block that stands in a named range of the profiler.

    >>> in_range("end of linear_0")
    "with record_function('end of linear_0'):"
    """
    return f"with record_function({name!r}):"


def wrap_function(name: str, codegen: CodegenOptions) -> list[str]:
    """Return the lines after a function that make more of it.

    >>> wrap_function("run", CodegenOptions(precision="ieee"))
    ["run = float32_products('ieee', run)"]
    """
    lines = []
    if codegen.compiled:
        lines.append(f"{name} = torch.compile({name}, fullgraph=True)")
    if codegen.precision is not None:
        lines.append(f"{name} = float32_products({codegen.precision!r}, {name})")
    return lines


def codegen_options_of(options: TorchOptions, device: str) -> CodegenOptions:
    """Return how options want programs to be written for a kind of device.

    >>> codegen_options_of(TorchOptions(allow_tf32=True), "cpu").precision
    'tf32'
    """
    precision = None
    if options.allow_tf32 is not None:
        precision = "tf32" if options.allow_tf32 else "ieee"
    return CodegenOptions(
        compiled=options.jit is True,
        cross_memory=options.cross_memory,
        fusions=options.jit == AUTO,
        bucket_views=options.gradient_as_bucket_view,
        ranges=options.use_module_hooks,
        channels_last=options.lays_out_images(device),
        contiguous_results=options.memory_format == AUTO,
        precision=precision,
    )
