"""Options of recomputation that make no sense are refused, and say what would."""

from __future__ import annotations

from typing import Any

import mithril as ml
import pytest

from tests.recompute.models import looped, unrolled

SHAPES = {"input": (8, 8, 8)}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"checkpointing": "al"}, r"checkpointing='al' is not known; did you mean 'all'"),
    "word": ({"activation_checkpointing": "full"}, r"activation_checkpointing='full' is not known"),
    "no unit": ({"checkpointing": "2"}, r"checkpointing='2' is no number of bytes; give \"all\", \"selective\""),
    "wrong unit": ({"checkpointing": "2 GX"}, r"checkpointing='2 GX' is no number of bytes; give"),
    "percent": ({"checkpointing": "60%"}, r"checkpointing='60%' is no number of bytes; give .*, a fraction such as 0.6"),
    "no number": ({"checkpointing": "-2 GB"}, r"checkpointing='-2 GB' is no number of bytes; give"),
    "nothing": ({"checkpointing": "0 GB"}, r"checkpointing='0 GB' leaves no memory"),
    "bool": ({"checkpointing": True}, r"checkpointing is a bool; give \"all\", \"selective\""),
    "list": ({"checkpointing": ["all"]}, r"checkpointing is a list; give"),
    "too large": ({"checkpointing": 1.5}, r"checkpointing=1.5 is no fraction between 0 and 1"),
    "bytes as a number": ({"checkpointing": 2_000_000}, r"=2000000 is no fraction .* has no unit"),
    "zero": ({"checkpointing": 0.0}, r"checkpointing=0.0 is no fraction between 0 and 1"),
    "two that differ": ({"checkpointing": "all", "activation_checkpointing": "none"}, r"are two names of one option and differ"),
    "word of a layer": ({"checkpointing": {"model_0": "half"}}, r"checkpointing got 'model_0': 'half'; give \"all\" or \"none\" by patterns"),
    "no layers": ({"checkpointing": {}}, r"checkpointing names no layers; give"),
    "layer that is none": ({"checkpointing": {"modle_*": "all"}}, r"pattern 'modle_\*' of checkpointing=.* matches no layer; near paths: .*model_0"),
    "switch": ({"rematerialization": "yes"}, r"rematerialization='yes' is neither True nor False"),
    "switched off": ({"rematerialization": False, "checkpointing": "all"}, r"rematerialization=False is given together with checkpointing=, which asks"),
    "switched on": ({"rematerialization": True, "checkpointing": "none"}, r"rematerialization=True is given together with checkpointing=, which keeps"),
    "granularity": ({"checkpointing": "all", "recomputation_granularity": "block"}, r"recomputation_granularity='block' is neither 'layer' nor 'operation'"),
    "operations of layers": ({"checkpointing": "all", "recomputation_granularity": "operation"}, r"'operation' is for a budget, which chooses operations"),
    "granularity of nothing": ({"checkpointing": "none", "recomputation_granularity": "layer"}, r"recomputation_granularity='layer' has no effect where nothing is computed again"),
    "policy of nothing": ({"rematerialization_policy": {"data": "full"}}, r"rematerialization_policy=.* has no effect where nothing"),
    "policy without axes": ({"checkpointing": "all", "rematerialization_policy": "minimal"}, r"rematerialization_policy='minimal' says nothing by mesh axis"),
    "policy of a word": ({"checkpointing": "all", "rematerialization_policy": {"data": "none"}}, r"rematerialization_policy got 'data': 'none'; give 'minimal', which keeps"),
    "axis": ({"checkpointing": "all", "rematerialization_policy": {"dat": "full"}}, r"rematerialization_policy names axis 'dat', which the mesh lacks; did you mean 'data'"),
    "alias": ({"checkpointing": "all", "rematerialization_policy": {"model_parallel": "full"}}, r"names axis 'model_parallel', which the mesh lacks"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_options_of_compile_are_refused(name: str) -> None:
    options, match = CASES[name]
    with pytest.raises(ml.OptionError, match=match):
        ml.compile(unrolled(1), ml.NumpyBackend(ml.Mesh(data=2)), shapes=SHAPES, **options)


@pytest.mark.parametrize("name", ["misspelt", "two that differ", "granularity of nothing"])
def test_options_of_jit_are_refused(name: str) -> None:
    options, match = CASES[name]
    with pytest.raises(ml.OptionError, match=match):
        ml.jit(lambda x: x, **options)


def test_jit_knows_the_mesh_when_it_is_called() -> None:
    function = ml.jit(
        lambda x: x * 2, rematerialization=True, rematerialization_policy={"b": "full"}
    )
    with pytest.raises(ml.OptionError, match="names axis 'b', which the mesh lacks"):
        function(ml.NumpyBackend(ml.Mesh(a=2)).ones(4))


def test_patterns_are_of_what_is_in_loops_too() -> None:
    with pytest.raises(ml.OptionError, match="matches no layer"):
        ml.compile(looped(), ml.NumpyBackend(), shapes=SHAPES, checkpointing={"blocks.mpl": "all"})


def test_a_compiler_that_partitions_by_itself_recomputes_nothing() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2), pjit_lowering_strategy="gspmd")
    compiled = ml.compile(unrolled(1), backend, checkpointing="all")
    x = backend.ones(8, 8, 8)
    with pytest.raises(ml.BackendError, match="which pjit_lowering_strategy='gspmd' does not run"):
        compiled.evaluate(compiled.randomize_params(seed=0), {"input": x}, {"output": x}, seed=1)
