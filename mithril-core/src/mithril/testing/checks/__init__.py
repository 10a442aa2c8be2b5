"""What the kit tries, by families; `list_checks` has all of it."""

from __future__ import annotations

from mithril.testing.check import Check
from mithril.testing.checks.arrays import list_array_checks
from mithril.testing.checks.collectives import list_collective_checks
from mithril.testing.checks.engine import list_engine_checks
from mithril.testing.checks.features import list_feature_checks
from mithril.testing.checks.layers import list_layer_checks
from mithril.testing.checks.leaks import list_leak_checks
from mithril.testing.checks.models import list_model_checks
from mithril.testing.checks.ops import list_op_checks
from mithril.testing.checks.random import list_random_checks
from mithril.testing.checks.singular import list_singular_checks
from mithril.testing.checks.values import list_value_checks
from mithril.testing.checks.waiting import list_waiting_checks


def list_checks() -> list[Check]:
    """Return every check of the kit, in the order in which they are run."""
    return [
        *list_engine_checks(),
        *list_waiting_checks(),
        *list_op_checks(),
        *list_value_checks(),
        *list_singular_checks(),
        *list_collective_checks(),
        *list_random_checks(),
        *list_array_checks(),
        *list_model_checks(),
        *list_feature_checks(),
        *list_layer_checks(),
        *list_leak_checks(),
    ]
