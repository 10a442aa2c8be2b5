"""One step of a GPT on MLX: outputs and gradients, against `mx.value_and_grad` by hand.

On one device, or with the batch split over the ranks of a ring: by hand
`mlx.nn.average_gradients` then brings the gradients together. `--rate` has the ring behind a link of
limited speed (`network.py`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mithril as ml
import mlx.core as mx
import numpy as np
from mithril.cli.gpt import Sizes, gpt, with_loss

from benchmarks import mlx_by_hand
from benchmarks.harness import Limit, interleave, ratio, report
from benchmarks.mlx_sides import (
    LIMIT,
    VERSION,
    ByHand,
    Ours,
    check_sides,
    hand_in,
    in_job,
    plain,
    settle_mlx,
    together,
)
from benchmarks.network import behind, limit
from benchmarks.sides import (
    INPUTS,
    SIZES,
    VOCABULARIES,
    Data,
    Functions,
    data_of,
    planned,
    sizes_of,
)

BEHIND_A_LINK = 0.95
"""The limit where what is sent takes most of the time."""


def mithril_side(
    sizes: Sizes, vocabulary: int, mesh: ml.Mesh, data: Data, rate: str | None = None
) -> Ours:
    """Return Mithril's side, the batch split over `data`."""
    backend = ml.MLXBackend(mesh, device="cpu")
    backend.hardware = behind(backend.hardware, rate, mesh.size)
    split = ml.P("data") if "data" in mesh.names else ml.P()
    inputs = {name: backend.array(x, sharding=split) for name, x in data.items()}
    return planned(Ours, with_loss(gpt(vocabulary, sizes)), backend, inputs)


def alone(sizes: Sizes, vocabulary: int) -> Functions:
    """Return both sides on one device, after a check that they give the same numbers."""
    data = data_of(sizes, vocabulary)
    mithril = mithril_side(sizes, vocabulary, ml.Mesh(), data)
    tokens, target = (mx.array(data[name]) for name in INPUTS)
    step = mlx_by_hand.step(mlx_by_hand.gpt(sizes.heads))
    by_hand = ByHand(step, plain(mithril.params, "gpt."), (tokens, target))
    check_sides(mithril, by_hand, "gpt.")
    return {"mithril": mithril.step, "by hand": by_hand.step}


def spread(sizes: Sizes, vocabulary: int, ranks: int, rate: str | None = None) -> Functions:
    """Return both sides of a rank, after a check that they give the same numbers."""
    data = data_of(sizes, vocabulary)
    mithril = mithril_side(sizes, vocabulary, ml.Mesh(data=ranks), data, rate)
    group = mx.distributed.init()
    tokens, target = (mx.array(np.split(data[name], ranks)[group.rank()]) for name in INPUTS)
    step = mlx_by_hand.step(mlx_by_hand.gpt(sizes.heads), group)
    by_hand = ByHand(step, plain(mithril.params, "gpt."), (tokens, target))
    check_sides(mithril, by_hand, "gpt.", is_split=True)
    return {"mithril, data": mithril.step, "average_gradients": by_hand.step}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--width", choices=SIZES, default="256")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--rate", help="of the link between ranks, such as 200mbit")
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    if given.rate is not None and given.ranks == 1:
        parser.error("--rate is for --ranks 2")
    settle_mlx("benchmarks.mlx_gpt")
    sizes, vocabulary, warm_up = sizes_of(given.width, given.ranks), VOCABULARIES[given.width], 5
    if given.times:
        functions = spread(sizes, vocabulary, given.ranks, given.rate)
        hand_in(interleave(functions, given.rounds, warm_up, ready=together), given.times)
        return 0
    if given.ranks == 1:
        times = interleave(alone(sizes, vocabulary), given.rounds, warm_up)
    else:
        passed = ["--ranks", str(given.ranks), "--width", given.width]
        passed += ["--rounds", str(given.rounds)]
        passed += [] if given.rate is None else ["--rate", given.rate]
        with limit(given.rate) as inside:
            times = in_job(Path(__file__), given.ranks, passed, inside)
    ours, by_hand = times
    most = LIMIT if given.rate is None else BEHIND_A_LINK
    verdict = Limit(f"{ours} to {by_hand}", ratio(times, ours, by_hand), most)
    link = "" if given.rate is None else f" behind {given.rate}"
    title = f"GPT {sizes}, vocabulary {vocabulary}, {given.ranks} ranks{link}, {VERSION}"
    return report(title, times, [verdict])


if __name__ == "__main__":
    sys.exit(main())
