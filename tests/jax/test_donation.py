"""Outputs take the memory of the donated inputs that they replace, as the compiled HLO says."""

from __future__ import annotations

import re

import mithril as ml
import numpy as np
import pytest
from mithril_jax.executable import JaxExecutable

from tests.tolerances import TOLERANCE

SHAPES = {"a": (8, 4), "b": (4, 8), "c": (8, 4), "d": (32,), "e": (4, 8)}
MESHES = [None, ml.Mesh(data=2)]


def momentum(p, g, m):
    new = {name: 0.9 * m[name] + 0.1 * g[name] for name in p}
    return {name: p[name] - 0.001 * new[name] for name in p}, new


def adam(p, g, m, v):
    m = {name: 0.9 * m[name] + 0.1 * g[name] for name in p}
    v = {name: 0.99 * v[name] + 0.01 * g[name] * g[name] for name in p}
    rate = {name: 0.01 * m[name] / (v[name] ** 0.5 + 1e-8) for name in p}
    return {name: p[name] - (rate[name] + 0.1 * p[name]) for name in p}, m, v


def interleave(trees):
    """Return the arrays of trees in turn, and the name each had."""
    return [(tree[name], number, name) for name in trees[0] for number, tree in enumerate(trees)]


ORDERS = {
    "as given": lambda trees: [(x, i, n) for i, tree in enumerate(trees) for n, x in tree.items()],
    "state first": lambda trees: [
        (x, i, n) for i, tree in reversed(list(enumerate(trees))) for n, x in tree.items()
    ],
    "interleaved": interleave,
    "backwards": lambda trees: interleave(trees)[::-1],
}


def compiled_with(monkeypatch, function, backend, *arguments, donate):
    """Return what a call runs, and what XLA made of it."""
    seen, run = [], JaxExecutable.__call__

    def look(self, inputs, observe=None):
        seen.append((self, self._compile(inputs).as_text()))
        return run(self, inputs, observe)

    monkeypatch.setattr(JaxExecutable, "__call__", look)
    result = ml.jit(function, backend=backend, donate=donate)(*arguments)
    monkeypatch.undo()
    (found,) = seen
    return *found, result


def aliases(executable, text) -> list[int | None]:
    """Return for each output the position of the input whose memory XLA gives it."""
    head = text[: text.index("entry_computation_layout")]
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}, \w+-alias\)", head)
    entered = executable._enter_order or range(len(executable.program.inputs))
    found = {int(output or 0): entered[int(source)] for output, source in pairs}
    count = len(executable.program.outputs)
    return [found.get(at) for at in executable._restore_order or range(count)]


@pytest.mark.parametrize("mesh", MESHES, ids=["one", "two"])
@pytest.mark.parametrize("update", [momentum, adam])
@pytest.mark.parametrize("order", ORDERS)
def test_every_update_takes_the_memory_of_what_it_replaces(monkeypatch, mesh, update, order):
    backend = ml.JaxBackend() if mesh is None else ml.JaxBackend(mesh)
    letters = "pgmv"[: update.__code__.co_argcount]
    rng = np.random.default_rng(0)
    values = {
        letter: {n: rng.uniform(0.1, 1, s).astype(np.float32) for n, s in SHAPES.items()}
        for letter in letters
    }
    state = letters.replace("g", "")

    def arranged(*trees):
        return [x for x, _, _ in ORDERS[order](update(*trees))]

    given = [{n: backend.array(x) for n, x in values[letter].items()} for letter in letters]
    donate = tuple(i for i, letter in enumerate(letters) if letter != "g")
    executable, text, result = compiled_with(monkeypatch, arranged, backend, *given, donate=donate)
    expected = ORDERS[order](update(*values.values()))
    names = [f"{letter}.{name}" for letter in letters for name in SHAPES]
    found = [names[source] for source in aliases(executable, text)]
    assert found == [f"{state[number]}.{name}" for _, number, name in expected]
    for x, (y, _, _) in zip(result, expected, strict=True):
        np.testing.assert_allclose(x.numpy(), y, *TOLERANCE["float32"])


@pytest.mark.parametrize("mesh", MESHES, ids=["one", "two"])
def test_an_input_without_successor_takes_no_place_of_another(monkeypatch, mesh) -> None:
    """Two arrays of a kind are given up, and one is replaced: the second."""
    backend = ml.JaxBackend() if mesh is None else ml.JaxBackend(mesh)
    x, y = backend.ones(8, 4), backend.ones(8, 4)
    executable, text, (z, total) = compiled_with(
        monkeypatch, lambda x, y: (y + 1.0, x.sum()), backend, x, y, donate=(0, 1)
    )
    assert aliases(executable, text) == [1, None]
    assert (z.numpy() == 2).all()
    assert total.numpy() == 32


def test_what_replaces_nothing_takes_what_is_left(monkeypatch) -> None:
    backend = ml.JaxBackend()
    executable, text, (z,) = compiled_with(
        monkeypatch, lambda x: [x.sum() * ml.numpy.ones((8, 4))], backend, backend.ones(8, 4),
        donate=0,
    )  # fmt: skip
    assert aliases(executable, text) == [0]
    assert (z.numpy() == 32).all()


def test_outputs_of_elementwise_ops_stay_in_order(monkeypatch) -> None:
    """Those of one that multiplies leave by size: `lower.output_order`."""
    backend, rng = ml.JaxBackend(), np.random.default_rng(0)
    a, b = (backend.array(rng.standard_normal(s).astype(np.float32)) for s in ((8, 8), (8,)))

    def multiply(a, b):
        return a @ a, b * 2

    def update(a, b):
        return a * 3, b * 2

    kept, _, made = compiled_with(monkeypatch, update, backend, a, b, donate=())
    assert kept._restore_order is None
    moved, _, product = compiled_with(monkeypatch, multiply, backend, a, b, donate=())
    assert moved._restore_order == [1, 0]
    np.testing.assert_allclose(made[0].numpy(), 3 * a.numpy(), *TOLERANCE["float32"])
    np.testing.assert_allclose(product[0].numpy(), a.numpy() @ a.numpy(), *TOLERANCE["float32"])
    np.testing.assert_allclose(product[1].numpy(), 2 * b.numpy(), *TOLERANCE["float32"])
