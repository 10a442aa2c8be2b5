"""Tests of the MLX backend; skipped where it is not installed."""

import pytest

pytest.importorskip("mithril_mlx")
