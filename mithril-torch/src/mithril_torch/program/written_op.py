"""Ops that programs are written with, and that are none of the core's."""

from __future__ import annotations

from mithril.spi import Op


class WrittenOp(Op):
    """Base of the ops that exist only while a program is written.

    Passes over local graphs put them where PyTorch has one function for what is several ops of the
    core, or says what the core does not: where a result lies in memory.
    """


__all__ = ["WrittenOp"]
