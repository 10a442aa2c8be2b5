"""Tests of the JAX backend; skipped where it is not installed."""

import pytest

pytest.importorskip("mithril_jax")
