"""What the mixture of experts refuses, and when."""

from __future__ import annotations

import mithril as ml
import pytest
from mithril import P
from mithril.errors import MithrilError, OptionError, ShapeError

MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"top_k": 5}, "MoE sends a token to top_k=5 of 4 experts; choose top_k up to num_experts"),
    ({"capacity_factor": 0}, "MoE option 'capacity_factor' is 0; it must be a positive number, or None for room for all tokens"),
    ({"capacity_factor": -1.0}, "MoE option 'capacity_factor' is -1.0; it must be a positive number, or None"),
    ({"capacity_factor": float("inf")}, "MoE option 'capacity_factor' is inf; it must be a positive number, or None for room for all tokens"),
    ({"overflow": "rerout"}, "MoE option 'overflow' is 'rerout'; it must be 'drop' or 'reroute'"),
    ({"activation": "selu"}, "MoE option 'activation' is 'selu'; it must be one of 'elu', 'gelu', 'gelu_tanh', 'hard_swish', 'leaky_relu', 'mish', 'relu', 'sigmoid', 'silu', 'softplus', 'tanh', 'geglu', 'reglu', 'swiglu', or a function of a tensor"),
    ({"jitter": 1.5}, "MoE option 'jitter' is 1.5; it must be a number from 0 up to, not including, 1"),
    ({"overflow": "reroute", "capacity_factor": None}, "MoE option overflow='reroute' has no effect with capacity_factor=None, where no expert is ever full; give a capacity_factor, or remove it"),
    ({"device_mesh": (3,)}, "MoE cannot place 4 experts on 3 devices equally; use a mesh dimension of 1 or 2 or 4 devices, or a multiple of 3 experts"),
    ({"device_mesh": (2,), "expert_distribution": "one_per_device"}, 'MoE places 4 experts on 4 devices, and the mesh dimension they are split over has 2; use a dimension of 4 devices, or expert_distribution="balanced"'),
    ({"expert_distribution": "ballanced"}, "MoE option 'expert_distribution' is 'ballanced'; it must be 'balanced', 'one_per_device' or a mapping from expert to device; did you mean 'balanced'?"),
    ({"expert_distribution": 3}, "MoE option 'expert_distribution' is 3; it must be 'balanced', 'one_per_device' or a mapping from expert to device"),
    ({"expert_distribution": {0: 0, 1: 1, 3: 0}}, "MoE option 'expert_distribution' has no device for expert 2; give one for each of 4 experts, 0…3"),
    ({"expert_distribution": {0: 0, 1: 1, 2: 0, 3: 1, 4: 1}}, "MoE option 'expert_distribution' places expert 4, and there are 4, 0…3; remove it"),
    ({"expert_distribution": {0: 0, 1: -1, 2: 0, 3: 1}}, "MoE option 'expert_distribution' places expert 1 on device -1; give an integer from 0, along the mesh dimension of the experts, of which 4 experts can use 4, 0…3"),
    ({"expert_distribution": {0: 0, 1: 1, 2: 0, 3: 10**9}}, "MoE option 'expert_distribution' places expert 3 on device 1000000000; give an integer from 0"),
    ({"expert_distribution": {0: 0, 1: 0, 2: 0, 3: 1}}, "MoE option 'expert_distribution' gives devices 0…1 [3, 1] experts; give each device equally many, as stacks are split evenly"),
    ({"expert_distribution": {0: 0, 1: 1, 2: 2, 3: 3}, "device_mesh": (2,)}, "MoE places 4 experts on 4 devices, and the mesh dimension they are split over has 2; use a dimension of 4 devices"),
    ({"device_mesh": (2, 2), "device_mesh_partition": (False, False)}, "MoE option device_mesh_partition is (False, False), which leaves no dimension to split experts over; allow one, or leave device_mesh out"),
    ({"device_mesh": (2, 2), "device_mesh_partition": (True,)}, "MoE option device_mesh_partition is (True,); give 2 values True or False"),
    ({"expert_distribution": "balanced", "sharding": {"experts.in.weight": P("data")}}, "MoE has both expert_distribution and sharding; give one of them"),
    ({"sharding": {"expert.in.weight": P("data")}}, "MoE has no parameter 'expert.in.weight' to shard"),
    ({"device_id": 1, "device_mesh": (2,)}, "MoE has both device_id=1 and device_mesh; a layer is on one device or split over several: remove one of them"),
    ({"device_id": 0, "expert_distribution": "balanced"}, "MoE has both device_id=0 and expert_distribution; a layer is on one device"),
    ({"dropless": True}, "MoE has no option 'dropless'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[m[:40] for _, m in MISTAKES])
def test_mistakes(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        ml.MoE(4, 8, **options)
    assert message in str(caught.value)


def test_mistakes_that_only_the_mesh_shows() -> None:
    backend = ml.NumpyBackend(device_mesh=(3,))
    for distribution, message in (
        ("balanced", "MoE cannot place 4 experts on 3 devices equally"),
        ("one_per_device", "MoE places 4 experts on 4 devices, and the mesh dimension they are "),
        ({0: 0, 1: 1, 2: 1, 3: 0}, "MoE places 4 experts on 2 devices, and the mesh dimension "),
    ):
        layer = ml.MoE(4, 8, expert_distribution=distribution)
        with pytest.raises(MithrilError, match=message) as caught:
            ml.compile(layer, backend, shapes={"input": (4, 4, 6)})
        assert "test_moe_refusals.py" in str(caught.value), "the message names the user's line"


def test_mistakes_that_only_the_input_shows() -> None:
    def compiled(layer: ml.Layer, shape: tuple[int, ...]) -> None:
        ml.compile(layer, ml.NumpyBackend(), shapes={"input": shape})

    with pytest.raises(
        ShapeError,
        match=r"layer 'moe' needs an input \[batch, sequence, features\] or \[rows, features\], not",
    ):
        compiled(ml.MoE(4, 8), (2, 3, 4, 6))
    with pytest.raises(ShapeError, match=r"cannot divide 12 tokens into 5 groups; choose groups"):
        compiled(ml.MoE(4, 8, groups=5), (3, 4, 6))
