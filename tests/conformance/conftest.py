"""XLA optimises what it compiles in the whole run only: here its time goes into compilation."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.profiles import runs_all


@pytest.fixture(scope="package", autouse=True)
def _xla_compiles_fast() -> Iterator[None]:
    if runs_all() or find_spec("jax") is None:
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
