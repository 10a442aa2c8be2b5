"""Programs that are replayed as CUDA graphs: what they return is that of calls one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import numpy as mnp
from mithril.spi import BackendError, OptionError
from mithril_torch.executors import local
from mithril_torch.executors.captured import WARM_UP, CapturedRun, Replay, capture_cuda_graph
from mithril_torch.executors.local import LocalExecutor
from mithril_torch.options import TorchOptions

from tests.tolerances import TOLERANCE

CALLS = WARM_UP + 3
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Memory:
    """Captures as CUDA does: a replay reads and writes the memory of the capture."""

    def __init__(self) -> None:
        self.captured = 0

    def capture(self, run: Callable[[], list[torch.Tensor]]) -> tuple[Replay, list[torch.Tensor]]:
        self.captured += 1
        results = run()

        def replay() -> None:
            for place, made in zip(results, run(), strict=True):
                place.copy_(made)

        return replay, results


def update(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One result is new, one is made in the place of an operand."""
    x, y = inputs
    total = x + y
    return [total, x.add_(1.0)]


def test_results_are_those_of_the_program_and_stay() -> None:
    memory = Memory()
    run, x = CapturedRun(update, memory.capture), torch.zeros(3)
    kept = []
    for call in range(CALLS):
        total, x = run([x, torch.full((3,), float(call))])
        kept.append((total, x.tolist()))  # which is given up
    assert memory.captured == 1
    for call, (total, moved) in enumerate(kept):
        assert total.tolist() == [2.0 * call] * 3
        assert moved == [call + 1.0] * 3


def test_operands_that_are_captured_stay_as_they_are() -> None:
    run, x = CapturedRun(update, Memory().capture), torch.zeros(3)
    for _ in range(WARM_UP):
        run([x.clone(), x])
    run([x, x])
    run([x, x])
    assert x.tolist() == [0.0] * 3


@pytest.mark.parametrize("accumulate", [1, 2])  # of two, programs run one after another
def test_steps_are_those_of_numpy(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, mesh = Memory(), ml.Mesh()
    monkeypatch.setattr(local, "capture_cuda_graph", memory.capture)
    on = ml.TorchBackend(mesh, device="cpu")
    monkeypatch.setitem(vars(on.engine), "executor", LocalExecutor(mesh, "cpu", captures=True))
    losses = []
    for backend in (on, ml.NumpyBackend()):
        model = ml.Model()
        model |= ml.Linear(5, name="up")(input="x", output="h")
        model |= ml.Linear(3, name="down")(input="h", output="y")
        model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
        rng = np.random.default_rng(0)
        batch = {name: rng.standard_normal((4, n), np.float32) for name, n in (("x", 2), ("t", 3))}
        given = {name: backend.array(x) for name, x in batch.items()}
        step = ml.train_step(
            model, backend, ml.optim.adamw(0.1), shapes=given, accumulate=accumulate
        )
        state, found = step.init(seed=0), []
        for _ in range(CALLS):
            state, metrics = step(state, given)
            found.append(float(metrics["loss"].item()))
        losses.append(found)
    assert memory.captured
    np.testing.assert_allclose(*losses, *TOLERANCE["float32"])


def test_what_offloads_is_refused() -> None:
    from tests.offload.test_activations import ON, compile_model, take_gradients

    engine = ml.TorchBackend(device="cpu").engine
    graphs = replace(engine, options=TorchOptions(cuda_graphs=True))
    compiled = compile_model("layers", ml.TorchBackend(device="cpu"), **ON)
    take_gradients(compiled)
    with pytest.raises(OptionError, match="cuda_graphs=True, and a CUDA graph cannot copy to"):
        graphs.lower_plan(compiled.plan)


def test_a_cpu_has_no_graphs() -> None:
    with pytest.raises(OptionError, match="cuda_graphs=True needs a CUDA device") as refused:
        ml.TorchBackend(device="cpu", cuda_graphs=True)
    assert "leave it out" in str(refused.value)


def test_several_devices_exchange_data_which_is_not_captured() -> None:
    with pytest.raises(OptionError, match="cuda_graphs=True is for one device, and the mesh has 2"):
        TorchOptions(cuda_graphs=True).check_graphs("cuda", 2)


@pytest.mark.parametrize("option", ["jit", "use_module_hooks"])
def test_what_a_graph_leaves_no_room_for_is_refused(option: str) -> None:
    with pytest.raises(OptionError, match=f"{option}=True does not go with cuda_graphs=True"):
        ml.TorchBackend(device="cuda", cuda_graphs=True, **{option: True})


@needs_cuda
def test_a_program_on_cuda_is_replayed() -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    backend = ml.TorchBackend(device="cuda", cuda_graphs=True)
    run = ml.jit(ml.grad(lambda x: (mnp.tanh(x) ** 3.0).sum()))
    wanted = run(ml.NumpyBackend().array(given)).numpy()
    for _ in range(CALLS):
        np.testing.assert_allclose(run(backend.array(given)).numpy(), wanted, *TOLERANCE["float32"])


@needs_cuda
def test_what_waits_for_the_device_cannot_be_captured() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(BackendError, match="cannot be captured as a CUDA graph"):
        capture_cuda_graph(lambda: [x * x.sum().item()])
