"""Tests of the PyTorch backend; skipped where it is not installed."""

import pytest

pytest.importorskip("mithril_torch")
