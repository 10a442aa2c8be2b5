"""Programs as text: what people read is what runs, also where there is no Mithril."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P
from mithril.engine.shards import host_shards
from mithril.errors import BackendError, PlanError
from mithril.mesh import Mesh, Sharding
from mithril_torch.eject import standalone
from mithril_torch.eject.dependency_closure import DependencyClosure, parse_module
from mithril_torch.program import runtime_library
from mithril_torch.tensors import to_tensor, torch_dtype

from tests.torch.ejected import VICTIM, run_alone

SIZES = {"x": (9, 5), "target": (9,)}  # neither 9 rows nor 7 columns divide by 2


def perceptron(dropout: bool = False) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(7, name="up")(input="x", output="h")
    model += ml.Relu(name="bend")
    if dropout:
        model += ml.Dropout(0.5)
    model += ml.Linear(4, name="down")(output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    return model


def opened(mesh: Mesh, **options: Any) -> ml.Backend:
    return ml.open_backend(
        "torch", mesh, executor="lockstep" if mesh.size > 1 else "auto", **options
    )


def batch(backend: ml.Backend) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(SIZES["x"]).astype(np.float32)
    target = rng.integers(0, 4, SIZES["target"]).astype(np.int32)
    split = P("data") if "data" in backend.mesh.names else P()
    return {
        "x": backend.array(x, sharding=split), "target": backend.array(target, sharding=split),
    }  # fmt: skip


class Case:
    """A compiled model, its arrays, and what one evaluation gives."""

    def __init__(self, mesh: Mesh, dropout: bool = False, seed: int = 0, **options: Any) -> None:
        self.backend = opened(mesh, **options)
        self.compiled = ml.compile(perceptron(dropout), self.backend)
        self.params = self.compiled.randomize_params(3)
        self.inputs = batch(self.backend)
        outputs, gradients = self.compiled.evaluate(
            self.params, self.inputs, {"loss": 2.0}, seed=seed
        )
        self.expected = {name: x.numpy() for name, x in outputs.items()}
        self.expected |= {f"gradients.{name}": x.numpy() for name, x in gradients.items()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what goes in, whole."""
        arrays = {name: x.numpy() for name, x in {**self.params, **self.inputs}.items()}
        arrays["output_gradients.loss"] = np.float32(2.0)
        return {name: torch.tensor(x) for name, x in arrays.items()}

    def check(self, found: dict[str, torch.Tensor]) -> None:
        assert found.keys() == self.expected.keys()
        for name, x in found.items():
            assert x.dtype == torch.float32
            np.testing.assert_allclose(x.tolist(), self.expected[name], rtol=2e-5, atol=1e-7)


@pytest.fixture(scope="module")
def single() -> Case:
    return Case(Mesh())


@pytest.fixture(scope="module")
def grid() -> Case:
    return Case(Mesh(data=2, tensor=2))


def loaded(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return found


class TestCode:
    def test_the_text_names_layers_tensors_and_reasons(self, grid: Case) -> None:
        text = grid.compiled.code()
        assert text.startswith("# Forward and backward, on each of 4 devices (data=2, tensor=2)\n")
        assert "# forward: up (test_eject.py:" in text
        assert "# backward: down (test_eject.py:" in text
        assert "x,  # float32[9, 5], P('data', None): [5, 5] here" in text
        assert "# all_reduce over data: 4 gradients, " in text
        assert "loss,  # loss: float32[]" in text
        assert "gradients_up_weight,  # gradients.up.weight: float32[7, 5], P('tensor'" in text
        assert "step[0]" not in text
        ast.parse(text)

    def test_the_direction_is_that_of_the_last_plan_or_as_asked(self, single: Case) -> None:
        compiled = ml.compile(perceptron(), single.backend)
        with pytest.raises(PlanError, match="plan is not known before the shapes"):
            compiled.code()
        compiled.evaluate(single.params, single.inputs)
        forward = compiled.code()
        assert forward.startswith("# Forward, on 1 device\n")
        assert "backward" not in forward
        joint = compiled.code(gradients=True)
        assert joint == single.compiled.code()
        assert joint.splitlines()[2:] != forward.splitlines()[2:]
        assert single.compiled.code(gradients=False) == forward
        assert compiled.code() == forward  # reading does not change the last plan

    def test_the_text_computes_what_evaluate_does(self, single: Case) -> None:
        names: dict[str, Any] = {**vars(runtime_library), "device": "cpu"}
        exec(single.compiled.code(), names)
        program = single.compiled.plan.stages[0].program
        given = single.tensors()
        results = names["run"]([given[port.name] for port in program.inputs])
        made = [port.name for port in program.outputs]
        single.check(dict(zip(made, results, strict=True)))


class TestFile:
    @pytest.mark.slow
    def test_one_device(self, single: Case, tmp_path: Path) -> None:
        file = single.compiled.eject(tmp_path / "step.py")
        assert [path.name for path in tmp_path.iterdir()] == ["step.py"]
        torch.save(single.tensors(), tmp_path / "in.pt")
        done = run_alone(
            str(file), "--tensors", str(tmp_path / "in.pt"), "--save", str(tmp_path / "out.pt")
        )
        assert (done.returncode, done.stderr) == (0, "")
        single.check(loaded(tmp_path / "out.pt"))
        first, *others = done.stdout.splitlines()
        assert float(first.removeprefix("loss ")) == pytest.approx(single.expected["loss"])
        norm = np.linalg.norm(single.expected["gradients.up.weight"])
        (line,) = (line for line in others if line.startswith("gradients.up.weight [7, 5] norm "))
        assert float(line.split()[-1]) == pytest.approx(norm, rel=1e-5)

    @pytest.mark.slow
    def test_four_ranks_of_which_one_is_killed_at_first(self, grid: Case, tmp_path: Path) -> None:
        file = grid.compiled.eject(tmp_path / "step.py")
        assert "4 gradients" in file.read_text()  # in one buffer
        torch.save(grid.tensors(), tmp_path / "in.pt")
        arguments = ("--tensors", str(tmp_path / "in.pt"), "--save", str(tmp_path / "out.pt"))
        done = run_alone(str(file), *arguments, ranks=4, boot=VICTIM)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("loss ") == 1  # rank 0 of the second attempt
        if sys.platform == "linux":
            assert done.stdout.count("threads of groups: 0") == 4
        assert "Signal 9" in done.stderr or "-9" in done.stderr
        grid.check(loaded(tmp_path / "out.pt"))

    @pytest.mark.slow
    def test_a_loop_with_attention_and_dropout(self, tmp_path: Path) -> None:
        block = ml.Model()
        block |= ml.LayerNorm(name="norm")(input="x", output="n")
        block |= ml.MultiHeadAttention(2, name="attention")(input="n", output="a")
        block |= ml.Dropout(0.3)(input="a", output="d")
        block |= ml.Add()(inputs=["x", "d"], output="y")
        model = ml.Model()
        model |= ml.Embedding(7, 8, name="table")(input="ids", output="rows")
        model |= ml.Repeat(block, 3, name="blocks")(input="rows", output="out")
        model |= ml.Mean()(input="out", output="loss")
        compiled = ml.compile(model, opened(Mesh()))
        params, ids = compiled.randomize_params(0), np.arange(10, dtype=np.int32).reshape(2, 5) % 7
        outputs, gradients = compiled.evaluate(params, {"ids": ids}, {"loss": 1.0}, seed=4)
        expected = outputs | {f"gradients.{name}": x for name, x in gradients.items()}
        tensors = {name: torch.tensor(x.numpy()) for name, x in params.items()}
        torch.save(tensors | {"ids": torch.tensor(ids)}, tmp_path / "in.pt")
        paths = ("--tensors", str(tmp_path / "in.pt"), "--save", str(tmp_path / "out.pt"))
        done = run_alone(str(compiled.eject(tmp_path / "step.py")), *paths, "--seed", "4")
        assert done.returncode == 0, done.stderr
        found = loaded(tmp_path / "out.pt")
        assert found.keys() == expected.keys()
        assert any(x.abs().max() > 1e-3 for x in found.values())
        for name, x in found.items():
            np.testing.assert_allclose(x.tolist(), expected[name].numpy(), rtol=1e-5, atol=1e-7)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch compiling itself
    def test_the_file_of_a_compiled_program(self, tmp_path: Path) -> None:
        case = Case(Mesh(), jit=True)
        file = case.compiled.eject(tmp_path / "step.py")
        assert "run = torch.compile(run" in file.read_text()
        torch.save(case.tensors(), tmp_path / "in.pt")
        paths = ("--tensors", str(tmp_path / "in.pt"), "--save", str(tmp_path / "out.pt"))
        done = run_alone(str(file), *paths)
        assert done.returncode == 0, done.stderr
        case.check(loaded(tmp_path / "out.pt"))

    def test_dropout_depends_on_the_seed(self, tmp_path: Path) -> None:
        case = Case(Mesh(), dropout=True, seed=5)
        names = run_file(case.compiled.eject(tmp_path / "step.py"))
        torch.save(case.tensors(), tmp_path / "in.pt")
        for seed, is_same in (("5", True), ("6", False)):
            paths = {"--tensors": tmp_path / "in.pt", "--save": tmp_path / f"{seed}.pt"}
            step(names, "--seed", seed, **paths)
            loss = loaded(tmp_path / f"{seed}.pt")["loss"].item()
            assert (loss == pytest.approx(case.expected["loss"])) is is_same

    def test_random_tensors_depend_on_the_seed(
        self, single: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = run_file(single.compiled.eject(tmp_path / "step.py", gradients=False))
        said = []
        for seed in ("1", "1", "2"):
            step(names, "--seed", seed)
            said.append(capsys.readouterr().out)
        assert said[0] == said[1] != said[2]
        assert all(np.isfinite(float(text.removeprefix("loss "))) for text in said)

    def test_options_of_the_backend_hold_in_the_file(self, tmp_path: Path) -> None:
        case = Case(Mesh(), use_module_hooks=True, allow_tf32=False)
        names = run_file(case.compiled.eject(tmp_path / "step.py"))
        torch.save(case.tensors(), tmp_path / "in.pt")
        step(names, **{"--tensors": tmp_path / "in.pt", "--save": tmp_path / "out.pt"})
        case.check(loaded(tmp_path / "out.pt"))


def run_file(path: Path) -> dict[str, Any]:
    """Return the names of a file, run as a module in this process."""
    names: dict[str, Any] = {"__name__": "step"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def step(names: dict[str, Any], *arguments: str, **paths: Path) -> None:
    both = [*arguments, *(text for pair in paths.items() for text in map(str, pair))]
    names["main"](names["RANKS"], names["INPUTS"], names["OUTPUTS"], names["load"], both)


class TestParts:
    @pytest.mark.parametrize("shape", [(9, 7), (1, 3), (8, 4), (0, 5)], ids=str)
    @pytest.mark.parametrize(
        "spec",
        [P(), P("data", "tensor"), P(("data", "tensor")), P(None, ("tensor", "data"))],
        ids=repr,
    )
    def test_a_part_is_what_the_engine_holds(self, shape: tuple[int, int], spec: P) -> None:
        mesh = Mesh(data=3, tensor=2)
        sharding = Sharding.of(mesh, spec, 2)
        whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        type = ml.TensorSpec(shape).type
        sizes = {axis.name: axis.size for axis in mesh.axes}
        port = standalone.Port(
            "x", "input", shape, torch_dtype(type.dtype), sharding.dims, sizes, mesh.flat
        )
        expected = host_shards(type, sharding, lambda box: whole[box])
        for rank in range(mesh.size):
            assert standalone.box_of(port, rank) == sharding.box(rank, shape)
            part = standalone.part_of(to_tensor(whole), port, rank, "cpu")
            assert part is not None
            assert torch.equal(part, to_tensor(expected[rank]))

    def test_a_port_on_sub_axes_is_said_on_the_mesh_of_the_program(self, tmp_path: Path) -> None:
        model = ml.Model()
        model |= ml.Linear(8, device_mesh=(2,), weight_shard_spec=(0,))(input="x", output="y")
        compiled = ml.compile(model, opened(Mesh(data=4)), shapes={"x": (4, 4)})
        names = run_file(compiled.eject(tmp_path / "step.py"))
        mesh = compiled.plan.stages[0].program.mesh
        assert names["RANKS"] == 4
        for port in names["INPUTS"]:
            assert {axis for axes in port.split for axis in axes} <= set(port.axes)
            assert port.axes.items() <= mesh.sizes.items()
            assert port.ranks == (0, 1, 2, 3)


class TestCollected:
    def test_everything_that_programs_may_call_loads_without_mithril(self) -> None:
        collected = DependencyClosure()
        collected.add("mithril_torch.eject.standalone", ["main"])
        collected.add("mithril_torch.program.runtime_library", runtime_library.__all__)
        lines = ["from __future__ import annotations", *collected.imports]
        text = "\n\n".join([*lines, *collected.definitions.values()])
        assert "mithril" not in text.replace("Mithril", "")
        assert "numpy" not in text
        names: dict[str, Any] = {"__name__": "collected"}
        exec(text, names)
        for name in runtime_library.__all__:
            assert name in names or name == "torch"
        # What is compiled of the text has the code of all its functions in it.
        assert undefined(compile(text, "collected", "exec"), names) == set()

    def test_what_is_not_used_stays_out(self) -> None:
        collected = DependencyClosure()
        collected.add("mithril_torch.program.runtime_library", ["axis_index"])
        assert list(collected.definitions) == ["Group", "axis_index"]
        assert (
            "make_group" in parse_module("mithril_torch.program.runtime_library.groups").definitions
        )


def undefined(code: Any, names: dict[str, Any]) -> set[str]:
    """Return the global names that code, and what is defined in it, reads and are not there."""
    import builtins
    import dis

    read = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    missing = {name for name in read if name not in names and not hasattr(builtins, name)}
    inside = [found for found in code.co_consts if inspect.iscode(found)]
    return missing.union(*(undefined(found, names) for found in inside))


class TestRefusals:
    def test_a_kernel_of_a_users_own(self, tmp_path: Path) -> None:
        double = ml.define_op(
            "eject.double",
            shapes=lambda x: x,
            rule="elementwise",
            kernels={"torch": lambda x: x * 2, "numpy": lambda x: x * 2},
            gradient=lambda inputs, outputs, cotangents: [cotangents[0] * 2.0],
        )

        @ml.layer
        def Double(x):  # noqa: N802
            return double(x)

        model = ml.Model()
        model |= Double()(x="x", output="y")
        compiled = ml.compile(model, opened(Mesh()), shapes={"x": (2,)})
        assert "user_0(" in compiled.code()
        text = "ops 'eject.double' have kernels of their own for 'torch', which a file without"
        with pytest.raises(BackendError, match=text):
            compiled.eject(tmp_path / "step.py")
        assert not list(tmp_path.iterdir())

    def test_a_file_that_cannot_be_written(self, single: Case, tmp_path: Path) -> None:
        for path in (tmp_path / "absent" / "step.py", tmp_path):
            with pytest.raises(BackendError, match=r"cannot be written; .*; give another path"):
                single.compiled.eject(path)
        assert not list(tmp_path.iterdir())
        assert not list(tmp_path.parent.glob(".*.part"))

    def test_a_file_says_what_it_cannot_take(
        self, grid: Case, single: Case, tmp_path: Path
    ) -> None:
        names = run_file(grid.compiled.eject(tmp_path / "grid.py"))
        with pytest.raises(SystemExit, match="is for 4 processes, not 1; start it by torchrun"):
            step(names)
        names = run_file(single.compiled.eject(tmp_path / "single.py"))
        right = single.tensors()
        missing = {name: x for name, x in right.items() if name != "x"}
        wrong = right | {"x": torch.zeros(9, 4)}
        for given, text in (
            (right | {"y": right["x"]}, "has 'y', which the program does not take"),
            (missing, "has no input 'x'"),
            (wrong, r"input 'x' in .* is torch.float32\[9, 4\]; the program takes"),
        ):
            torch.save(given, tmp_path / "in.pt")
            with pytest.raises(SystemExit, match=text):
                step(names, **{"--tensors": tmp_path / "in.pt"})


SCRIPT = """
import mithril as ml
model = ml.Model()
model |= ml.Linear(6, name="up")(input="x", output="h")
model += ml.Linear(8, name="down")(output="y")
model.shard({"down.weight": ml.P("tensor", None)})
planned = ml.compile(model, ml.TorchBackend(), shapes={"x": (4, 5)})
"""


class TestCommand:
    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "train.py"
        path.write_text(SCRIPT)
        return path

    @pytest.mark.slow
    def test_a_model_and_a_compiled_model(self, script: Path, tmp_path: Path) -> None:
        command(f"{script}:planned", "-o", str(tmp_path / "1.py"))
        command(f"{script}:model", "--shapes", "x=4x5", "-o", str(tmp_path / "2.py"))
        texts = [(tmp_path / name).read_text() for name in ("1.py", "2.py")]
        assert texts[0].replace("1.py", "2.py") == texts[1]
        assert run_alone(str(tmp_path / "1.py")).stdout.startswith("y [4, 8] norm ")

    @pytest.mark.slow
    def test_a_mesh_larger_than_this_machine(self, script: Path, tmp_path: Path) -> None:
        mesh = ("--mesh", "data=64,tensor=8", "--shapes", "x=4096x5@data", "--forward")
        command(f"{script}:model", "--backend", "torch", *mesh, "-o", str(tmp_path / "1.py"))
        assert "torchrun --nproc-per-node 512 1.py" in (tmp_path / "1.py").read_text()


def command(*arguments: str) -> None:
    """Run `mithril eject`."""
    path = str(Path(sys.executable).with_name("mithril"))
    done = subprocess.run([path, "eject", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
