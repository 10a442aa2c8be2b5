"""Fixtures of the op tests."""

from tests.ops.custom_ops import moments, norm, softsign

__all__ = ["moments", "norm", "softsign"]
