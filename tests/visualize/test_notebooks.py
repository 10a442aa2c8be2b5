"""What notebooks show of meshes, plans, models and arrays: small, escaped, without large values."""

from __future__ import annotations

from html.parser import HTMLParser

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.tables import PALETTE, Table, render_html, shade, text_color

from tests.visualize.pictures import compile_mlp, mlp

GRID = ml.Mesh(data=2, tensor=2)
VOID = {"br", "hr"}


class Reader(HTMLParser):
    """Collects tags and texts; refuses what is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(shown: object) -> Reader:
    return Reader(shown._repr_html_())  # type: ignore[attr-defined]


def test_a_mesh_shows_its_devices() -> None:
    found = read(ml.Mesh(data=2, tensor=4))
    assert found.texts[0] == "Mesh(data=2, tensor=4), 8 devices"
    assert found.tags.count("td") == 2 + 8
    assert read(ml.Mesh()).texts[-1] == "0"
    assert "devices=" not in "".join(read(ml.Mesh(data=2, pipeline=2).part({"pipeline": 1})).texts)
    assert read(ml.Mesh(data=2, pipeline=2).part({"pipeline": 1})).texts[-1] == "3"


def test_a_large_mesh_stays_small() -> None:
    assert len(read(ml.Mesh(data=64, tensor=64)).tags) < 400


def test_a_plan_shows_tensors_and_collectives() -> None:
    found = read(compile_mlp(GRID).plan)
    assert found.texts[0] == "plan on Mesh(data=2, tensor=2)"
    assert {"up.weight", "float32[64, 32]", "P('tensor', None)", "(32, 32)"} <= set(found.texts)
    assert {"all_reduce", "tensor", "inputs: 6", "forward"} <= set(found.texts)


def test_a_plan_of_stages_shows_them() -> None:
    model = ml.Model()
    model += ml.Linear(8, device_id=0)
    model += ml.Linear(8, device_id=1)
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    found = read(ml.compile(model, backend, shapes={"input": (4, 8)}).plan)
    assert {"stages: 4", "device 1", "send"} <= set(found.texts)


def test_a_model_shows_its_layers() -> None:
    found = read(mlp())
    assert found.texts[0] == "model: 3 layers, inputs input, outputs output"
    assert {"up", "relu_0", "down"} <= set(found.texts)
    assert len(read(ml.Model()).texts) == 1


def test_a_deep_model_stays_small() -> None:
    model = ml.Model()
    for _ in range(96):
        model += ml.Linear(8)
    found = read(model)
    assert {"linear_0", "linear_95", "… 81 more"} <= set(found.texts)
    assert "linear_50" not in found.texts


def test_a_compiled_model_shows_model_and_plan() -> None:
    found = read(compile_mlp(GRID))
    assert any("on Backend('numpy', Mesh(data=2, tensor=2))" in text for text in found.texts)
    assert "plan on Mesh(data=2, tensor=2)" in found.texts
    without = read(ml.compile(mlp(), ml.NumpyBackend(GRID)))
    assert without.texts[-1] == "no plan yet: no shapes are known"
    assert "Linear" in read(ml.compile(ml.Linear(4), ml.NumpyBackend())).texts[0]


def test_an_array_shows_where_it_lies_and_no_large_values() -> None:
    backend = ml.NumpyBackend(GRID)
    x = backend.array(np.full((64, 64), 7.25, np.float32), sharding=P("data", "tensor"))
    found = read(x)
    assert {"0:32", "32:64", "3", "each device holds (32, 32)"} <= set(found.texts)
    assert "7.25" not in x._repr_html_()
    assert "[7.25, 7.25]" in read(backend.array([7.25, 7.25])).texts


def test_an_array_without_a_size_says_so() -> None:
    compiled = ml.compile(mlp(), ml.NumpyBackend())
    (x, *_) = compiled.randomize_params().values()
    assert read(x).texts == ["Array 'up.weight', size not known yet"]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a & b", '"quoted"'])
def test_names_are_escaped(name: str) -> None:
    model = ml.Model()
    model += ml.Linear(8, name=name.replace(".", "_"))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": (4, 8)})
    for shown in (model, compiled, compiled.plan):
        found = read(shown)
        assert "script" not in found.tags
        assert any(name in text for text in "".join(found.texts).split("\n"))


def test_every_text_of_a_table_is_escaped() -> None:
    evil = "<i>&"
    table = Table(evil, (evil,), ((evil,),), (("#ffffff",),), (evil,))
    found = Reader(render_html([table]))
    assert "i" not in found.tags
    assert "".join(found.texts) == evil * 4


@pytest.mark.parametrize("color", [*PALETTE, *(shade(at / 10) for at in range(11))])
def test_texts_can_be_read_on_their_colours(color: str) -> None:
    """The contrast is at least 4.5 : 1, as WCAG 2 asks for."""

    def luminance(code: str) -> float:
        levels = [int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in levels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(color), luminance(text_color(color))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5
