"""Print what every reshard on a (4, 2) mesh moves, beside gathering everything.

python benchmarks/resharding.py
"""

from __future__ import annotations

import itertools

from mithril.cost import SIMULATED
from mithril.mesh import Mesh, P, Sharding
from mithril.sharding import Resharder
from mithril.types import DType, TensorType

MESH = Mesh(data=4, model=2)
TYPE = TensorType((1024, 1024), DType.float32)
SPECS = (
    P(), P("data"), P("model"), P(None, "data"), P(None, "model"), P("data", "model"),
    P("model", "data"), P(("data", "model")), P(("model", "data")), P(None, ("data", "model")),
    P(None, ("model", "data")),
)  # fmt: skip


def moved(resharder: Resharder, start: P, goal: P) -> tuple[int, str]:
    """Return bytes received per device (those of all moves), and the moves by name."""
    path = resharder.path(Sharding.of(MESH, start, 2), Sharding.of(MESH, goal, 2), TYPE)
    total = 0
    for move in path.moves:
        if move.is_collective:
            total += resharder.move_bytes(move, TYPE)
    return total, " + ".join(f"{m.kind}({','.join(m.axes)})" for m in path.moves) or "nothing"


def main() -> None:
    """Print the table and its summary."""
    resharder = Resharder(MESH, SIMULATED)
    print(f"{TYPE} on {MESH!r}; bytes per device, as the plan counts them")
    print(f"{'from':30}{'to':30}{'bytes':>10}{'gather all':>12}  moves")
    pairs = [pair for pair in itertools.product(SPECS, SPECS) if pair[0] != pair[1]]
    total = everything = more = 0
    for start, goal in pairs:
        bytes_moved, moves = moved(resharder, start, goal)
        whole, _ = moved(resharder, start, P())
        total, everything = total + bytes_moved, everything + whole
        more += bytes_moved > whole
        print(f"{start!r:30}{goal!r:30}{bytes_moved:>10}{whole:>12}  {moves}")
    share = 100 * total / everything
    print(f"{len(pairs)} pairs; {more} move more than gathering; {share:.1f} % of its bytes in all")


if __name__ == "__main__":
    main()
