"""Brings an op of the name that acme-kinds has."""

from collections.abc import Mapping

from mithril.spi import hookimpl


@hookimpl
def mithril_ops() -> Mapping[str, str]:
    """Another swish."""
    return {"swish": "acme_claims.ops:swish"}
