"""Pure passes from graph to graph: mix precisions, narrow, differentiate, update, expand, clean."""

from mithril.plan.names import cotangent_name, gradient_of
from mithril.transform.checkpoint import inline_checkpoints
from mithril.transform.differentiate import cast_gradients, differentiate
from mithril.transform.expand import expand, expand_local, expand_nodes
from mithril.transform.own_kernels import use_own_kernels
from mithril.transform.positions import compute_read_positions
from mithril.transform.precision import mix, output_types
from mithril.transform.simplify import eliminate_dead, runnable
from mithril.transform.substitute import substitute
from mithril.transform.update import Update, append_update

__all__ = [
    "Update",
    "append_update",
    "cast_gradients",
    "compute_read_positions",
    "differentiate",
    "eliminate_dead",
    "expand",
    "expand_local",
    "expand_nodes",
    "gradient_of",
    "inline_checkpoints",
    "mix",
    "output_types",
    "runnable",
    "substitute",
    "use_own_kernels",
    "cotangent_name",
]
