"""Mistakes a user makes: each has its own typed error that names the thing and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.plugins.published import PUBLISHED, Package


def backend(*shape: int) -> ml.Backend:
    return ml.NumpyBackend(device_mesh=shape or None)


def strict(*shape: int) -> ml.Backend:
    return ml.NumpyBackend(device_mesh=shape, uneven="error")


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(dimension=8, name="first")(input="input", output="hidden")
    model += ml.Relu()(input="hidden", output="act")
    model += ml.Linear(dimension=4, name="second")(input="act", output="output")
    return model


def compiled(on: ml.Backend | None = None) -> ml.CompiledModel:
    return ml.compile(mlp(), on or backend())


def evaluate(inputs: object = None, params: object = None, gradients: object = None) -> None:
    model = compiled()
    x = {"input": np.ones((4, 6), np.float32)} if inputs is None else inputs
    model.evaluate(model.randomize_params() if params is None else params, x, gradients)


def evaluate_stale() -> None:
    model = compiled()
    params = model.randomize_params()
    model.evaluate(params, {"input": np.ones((4, 6), np.float32)})
    model.evaluate(params, {"input": np.ones((4, 7), np.float32)})


def mixed_backends() -> None:
    one, other = backend(2), backend(2)
    _ = one.ones(4) + other.ones(4)


def foreign_input() -> None:
    model = compiled(backend(2))
    model.evaluate(model.randomize_params(), {"input": backend(2).ones(4, 6)})


def read_pending() -> None:
    _ = compiled().randomize_params()["first.weight"].shape


def annotated(
    spec: object, mesh: tuple[int, ...] = (2,), uneven: str = "pad", **options: object
) -> None:
    layer = ml.Linear(6, weight_shard_spec=spec, **options)
    ml.compile(layer, backend(*mesh), uneven=uneven, shapes={"input": (4, 5)})


def shard_nothing() -> None:
    model = mlp()
    model.shard({"frist.*": P("data")})
    ml.compile(model, backend(2), shapes={"input": (4, 6)})


def unknown_axis() -> None:
    model = mlp()
    model.shard({"first.weight": P("tensor")})
    ml.compile(model, backend(2), shapes={"input": (4, 6)})


def branch_on_value() -> None:
    @ml.layer
    def Branch(input):  # noqa: N802
        """Branch on a value."""
        return input if input.sum() > 0 else -input

    ml.compile(Branch(), backend(), shapes={"input": (4,)})


def mismatch_in_model() -> None:
    model = ml.Model()
    model |= ml.Linear(8, name="wide")(input="a", output="left")
    model |= ml.Linear(6, name="narrow")(input="a", output="right")
    model += ml.Add(name="sum")(inputs=["left", "right"], output="output")
    ml.compile(model, backend(), shapes={"a": (4, 5)})


def cycle() -> None:
    model = ml.Model()
    model |= ml.Linear(4)(input="a", output="b")
    model |= ml.Linear(4)(input="b", output="c")
    model.connect(source="c", destination="a")


def duplicate_output() -> None:
    model = ml.Model()
    model |= ml.Relu()(input="a", output="b")
    model |= ml.Relu()(input="a", output="b")


def open_missing() -> None:
    with patch.dict(PUBLISHED, gpu9=Package("gpu9", "mithril-gpu9", ())):
        ml.open_backend("gpu9", (2,))


def split_lookup(last: int) -> ml.Array:
    model = ml.Embedding(8, 4, sharding={"weight": P("data", None)})
    compiled = ml.compile(model, backend(4))
    ids = np.array([1, last], np.int32)
    return compiled.evaluate(compiled.randomize_params(), {"input": ids})["output"]


def lookup_in_model(last: int) -> None:
    model = ml.Model()
    model |= ml.Repeat(ml.Relu(), 2, name="loop")(input="x", output="seen")
    model |= ml.Embedding(8, 4, name="embed")(input="ids", output="output")
    run = ml.compile(model, backend(2))
    inputs = {"ids": np.array([last], np.int32), "x": np.ones(2, FLOAT)}
    run.evaluate(run.randomize_params(), inputs)


FLOAT = np.float32
ONE = backend()
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "backend option": (lambda: ml.NumpyBackend(device_mehs=(2,)), ml.OptionError, r"no option 'device_mehs'"),
    "backend option of all": (lambda: ml.NumpyBackend(compute_dtyp="bfloat16"), ml.OptionError, r"backend 'numpy' has no option 'compute_dtyp'; did you mean 'compute_dtype'\?; options: 'device_mesh', 'mesh_axis_names', 'uneven', 'dtype'"),
    "option of array": (lambda: ONE.array([1], shrding=P()), ml.OptionError, r"array\(\) has no option 'shrding'; did you mean 'sharding'\?; options: 'values', 'dtype', 'device_mesh', 'tensor_split', 'sharding'$"),
    "option of randn": (lambda: ONE.randn(3, shrding=P()), ml.OptionError, r"randn\(\) has no option 'shrding'; did you mean 'sharding'\?; options: 'seed', 'dtype'"),
    "option of an eager function": (lambda: ONE.mean(ONE.ones(2), axs=0), ml.OptionError, r"mean\(\) has no option 'axs'; did you mean 'axis'\?; options: 'x', 'axis', 'keepdims'"),
    "mean of None": (lambda: ONE.mean(None), ml.GraphError, r"op 'mean' takes tensors, not None; pass an array of a backend, such as backend.array\("),
    "sum of a list": (lambda: ONE.sum([1, 2]), ml.GraphError, r"op 'sum' takes tensors, not a list; pass an array"),
    "attention to numbers": (lambda: ONE.attention(1.0, 2.0, 3.0), ml.GraphError, r"op 'attention' takes tensors, not a float; pass"),
    "backend option of later": (lambda: ml.NumpyBackend(executor="pool"), ml.OptionError, r"executor='pool' .* is not available yet; leave it out"),
    "dtype misspelt": (lambda: ml.NumpyBackend(compute_dtype="bfloat61"), ml.OptionError, r"compute_dtype='bfloat61' is no dtype of Mithril; did you mean 'bfloat16'\?; use one of 'bfloat16', 'float16'"),
    "dtype of 8 bits": (lambda: ml.NumpyBackend(compute_dtype="float8_e4m3fn"), ml.OptionError, r"compute_dtype='float8_e4m3fn' is not available: values of 8 bits need a scale for each tensor, which layers do not keep; use 'bfloat16'"),
    "dtype of no kind": (lambda: ml.NumpyBackend(dtype=5), ml.OptionError, r"dtype=5 is no dtype of Mithril"),
    "integer dtype": (lambda: ml.NumpyBackend(weight_dtype="int8"), ml.OptionError, r"weight_dtype='int8' does not hold fractions; use one of"),
    "two names of param_dtype": (lambda: ml.NumpyBackend(weight_dtype="bfloat16", param_dtype="float32"), ml.OptionError, r"weight_dtype='bfloat16' and param_dtype='float32' are two names of one option and differ"),
    "precision in two forms": (lambda: ml.NumpyBackend(precision=ml.Precision(), dtype="float64"), ml.OptionError, r"precision= is given together with dtype=; give one form"),
    "precision as text": (lambda: ml.NumpyBackend(precision="bfloat16"), ml.OptionError, r"precision='bfloat16' is no Precision; write ml.Precision\("),
    "precision of compile": (lambda: ml.compile(mlp(), backend(), precision="bf16"), ml.OptionError, r"precision='bf16' is no Precision"),
    "like no array": (lambda: ONE.zeros_like((2, 3)), ml.BackendError, r"full_like takes an array to be like, not a tuple; use full\(shape"),
    "arange that stands still": (lambda: ONE.arange(0, 4, 0), ml.ShapeError, r"arange has step 0 and would never end"),
    "linspace of integers": (lambda: ONE.linspace(0, 4, 5, dtype="int32"), ml.ShapeError, r"linspace makes floats, not int32; use randint or arange"),
    "float as an index": (lambda: range(ONE.ones()), ml.ShapeError, r"array float32\[\] is no index; an integer scalar is one"),
    "view of an array": (lambda: np.array(ONE.ones(2), copy=False), ml.BackendError, r"lies on devices and reaches NumPy as a copy only; leave copy=False out"),
    "stack of nothing": (lambda: ONE.stack([]), ml.ShapeError, r"cannot stack no tensors; pass at least one"),
    "stack of two shapes": (lambda: ONE.stack([ONE.ones(2), ONE.ones(3)]), ml.ShapeError, r"cannot stack float32\[2\] and float32\[3\]; the shapes must be equal"),
    "squeeze of two": (lambda: ONE.squeeze(ONE.ones(2), 0), ml.ShapeError, r"cannot squeeze dimension 0 of float32\[2\]; only one of size 1 can be left out"),
    "moveaxis lists": (lambda: ONE.moveaxis(ONE.ones(2, 3), (0, 1), 0), ml.ShapeError, r"moveaxis moves 2 dimensions to 1 positions; give one position each"),
    "moveaxis twice": (lambda: ONE.moveaxis(ONE.ones(2, 3), (0, 0), (0, 1)), ml.ShapeError, r"moveaxis names a position twice in \(0, 0\); name each once"),
    "negative tile": (lambda: ONE.tile(ONE.ones(2), (-1,)), ml.ShapeError, r"tile repeats \(-1,\) times; numbers of repetitions are 0 or more"),
    "outer of matrices": (lambda: ONE.outer(ONE.ones(2, 2), ONE.ones(2)), ml.ShapeError, r"outer takes two vectors, not float32\[2, 2\]; reshape it first"),
    "tensordot sizes": (lambda: ONE.tensordot(ONE.ones(2, 3), ONE.ones(2, 3), 1), ml.ShapeError, r"tensordot contracts dimensions \(1,\) of float32\[2, 3\] with \(0,\) of float32\[2, 3\]; their sizes must be equal"),
    "tril of a vector": (lambda: ONE.tril(ONE.ones(2)), ml.ShapeError, r"tril takes matrices, not float32\[2\]; it needs two dimensions"),
    "eager function misspelt": (lambda: ONE.argmx, AttributeError, r"backend 'numpy' has no function 'argmx'; did you mean 'argmax'"),
    "backend missing": (open_missing, ml.BackendError, r"backend 'gpu9' is not installed; pip install mithril-gpu9"),
    "backend unknown": (lambda: ml.open_backend("nunpy"), ml.BackendError, r"'nunpy' does not exist; .* did you mean 'numpy'"),
    "mesh of zero": (lambda: backend(0), ml.MeshError, r"device_mesh is \(0,\); give positive integers"),
    "mesh axis names": (lambda: ml.NumpyBackend(device_mesh=(2, 2), mesh_axis_names=["a"]), ml.MeshError, r"has 1 names for a mesh of 2 dimensions"),
    "mesh axis repeated": (lambda: ml.NumpyBackend(device_mesh=(2, 2), mesh_axis_names=["a", "a"]), ml.MeshError, r"repeats a name"),
    "names without mesh": (lambda: ml.NumpyBackend(mesh_axis_names=["a"]), ml.MeshError, r"mesh_axis_names is given without device_mesh; give both"),
    "names with Mesh": (lambda: ml.NumpyBackend(ml.Mesh(a=2), mesh_axis_names=["a"]), ml.MeshError, r"together with a Mesh"),
    "device_mesh too large": (lambda: backend(2).ones(4, device_mesh=(4,)), ml.MeshError, r"device_mesh=\(4,\) of tensor does not fit the mesh \(2,\) of Mesh\(data=2\)"),
    "tensor_split beyond rank": (lambda: backend(2).ones(4, tensor_split=(1,)), ml.ShardingError, r"names dimension 1 of tensor, which has rank 1"),
    "tensor_split too long": (lambda: backend(2).ones(4, tensor_split=(0, 0)), ml.ShardingError, r"2 entries for 1 mesh dimensions; give at most one per mesh dimension"),
    "two ways to shard": (lambda: backend(2).ones(4, tensor_split=(0,), sharding=P("data")), ml.OptionError, r"give one form"),
    "spec longer than rank": (lambda: backend(2).ones(4, sharding=P("data", None)), ml.ShardingError, r"has 2 entries for tensor of rank 1"),
    "spec with unknown axis": (lambda: backend(2).ones(4, sharding=P("dta")), ml.MeshError, r"no axis 'dta'; axes: 'data'; did you mean 'data'"),
    "axis used twice": (lambda: P("data", "data"), ml.ShardingError, r"uses mesh axis 'data' 2 times"),
    "spec entry": (lambda: P(0), ml.ShardingError, r"entry 0 is not an axis"),
    "no spec": (lambda: backend(2).ones(4, sharding="data"), ml.ShardingError, r"is not a partition spec"),
    "foreign sharding": (lambda: backend(2).ones(4, sharding=backend(4).ones(4, tensor_split=0).sharding), ml.MeshError, r"sharding of tensor is on Mesh\(data=4\), the backend on Mesh\(data=2\); use one mesh"),
    "indivisible size": (lambda: strict(4).ones(10, tensor_split=(0,)), ml.ShardingError, r"dimension 0 \(10\) of tensor over mesh axis 'data' \(4\); .* use a size of 8 or 12"),
    "indivisible batch": (lambda: ml.compile(ml.Linear(4), strict(4), shapes={"input": ml.TensorSpec((6, 2), sharding=P("data"))}), ml.ShardingError, r"dimension 0 \(6\) of input 'input' over mesh axis 'data' \(4\)"),
    "indivisible at compile": (lambda: ml.compile(ml.Linear(4), backend(4), uneven="error", shapes={"input": ml.TensorSpec((6, 2), sharding=P("data"))}), ml.ShardingError, r"6 is not a multiple of 4; use a size of 4 or 8, replicate it, or allow padding"),
    "uneven policy": (lambda: ml.NumpyBackend(uneven="refuse"), ml.OptionError, r"uneven='refuse' is neither 'pad' nor 'error'"),
    "uneven policy at compile": (lambda: ml.compile(ml.Linear(4), backend(), uneven=True), ml.OptionError, r"uneven=True is neither 'pad' nor 'error'"),
    "shape not integer": (lambda: backend().ones(2.5), ml.ShapeError, r"shape 2.5 is not made of integers; write ones\(2, 3\)"),
    "shape of randn": (lambda: ONE.randn(3.0), ml.ShapeError, r"shape 3.0 is not made of integers; write randn\(2, 3\)"),
    "shape of full": (lambda: ONE.full("a", 1), ml.ShapeError, r"shape 'a' is not made of integers; write full\(\(2, 3\), 1\)"),
    "array of None": (lambda: ONE.array(None), ml.ShapeError, r"values are None; give a number, numbers in nested lists"),
    "shapes no mapping": (lambda: ml.compile(mlp(), backend(), shapes=(8, 4)), ml.GraphError, r"shapes is a tuple; give a mapping of input names to shapes, such as {'input': \(8, 4\)}"),
    "input of None": (lambda: evaluate({"input": None}), ml.BackendError, r"input 'input' is None, not an array of backend 'numpy'; make one with backend.array"),
    "input an object": (lambda: evaluate({"input": object()}), ml.BackendError, r"input 'input' is an object, not an array of backend"),
    "jax of an array": (lambda: ONE.ones(2).jax(), AttributeError, r"has no attribute 'jax'; backend 'jax' has it$"),
    "code of a model": (lambda: compiled().code(), AttributeError, r"has no attribute 'code'; backend 'torch' has it$"),
    "negative size": (lambda: backend().ones(-1), ml.ShapeError, r"shape \(-1,\) has a negative size"),
    "unknown dtype": (lambda: backend().ones(2, dtype="flaot32"), ml.ShapeError, r"'flaot32' is not supported; .* did you mean 'float32'"),
    "dtype of nothing": (lambda: backend().ones(2, dtype=3), ml.ShapeError, r"dtype '3' is not supported; known: 'bool'"),
    "dtype of objects": (lambda: ONE.ones(2).astype((1, 2)), ml.ShapeError, r"dtype '\(1, 2\)' is not supported"),
    "slice of floats": (lambda: ONE.ones(4)[0.5:2], ml.ShapeError, r"cannot slice from 0.5 to 2 in steps of None; give integers, or dynamic_slice for a start that is computed"),
    "stack of None": (lambda: ONE.stack([ONE.ones(2), None]), ml.ShapeError, r"cannot stack None; give tensors of one shape"),
    "empty range": (lambda: backend().randint(3, 3, (2,)), ml.ShapeError, r"has low 3 and high 3; give integers, the second larger"),
    "unknown function": (lambda: backend().argmaxx(1), AttributeError, r"no function 'argmaxx'; did you mean 'argmax'"),
    "arrays of two backends": (mixed_backends, ml.BackendError, r"belongs to another backend"),
    "item of many": (lambda: backend().ones(2).item(), ml.ShapeError, r"has 2 elements; item\(\) needs exactly one; index the array, or use numpy"),
    "broadcast": (lambda: ONE.ones(2) + ONE.ones(3), ml.ShapeError, r"cannot broadcast shapes \(2,\) and \(3,\)"),
    "matmul": (lambda: ONE.ones(2, 3) @ ONE.ones(2, 3), ml.ShapeError, r"cannot multiply float32\[2, 3\] @ float32\[2, 3\]"),
    "int with float array": (lambda: ONE.ones(2) + ONE.ones(2, dtype="int32"), ml.ShapeError, r"float32 and int32 do not mix"),
    "missing input": (lambda: evaluate({}), ml.GraphError, r"input 'input' is missing"),
    "misspelt input": (lambda: evaluate({"inptu": np.ones((4, 6), FLOAT)}), ml.GraphError, r"no input 'inptu'; did you mean 'input'"),
    "extra input": (lambda: evaluate({"input": np.ones((4, 6), FLOAT), "more": np.ones(1)}), ml.GraphError, r"no input 'more'"),
    "inputs no mapping": (lambda: evaluate(np.ones((4, 6))), ml.GraphError, r"inputs are given as a numpy.ndarray; give a mapping"),
    "missing parameter": (lambda: evaluate(params={}), ml.GraphError, r"parameters 'first.weight', .* are missing; parameters: 'first.weight'"),
    "misspelt parameter": (lambda: evaluate(params={**compiled().randomize_params(), "first.wieght": 1}), ml.GraphError, r"no parameter 'first.wieght'"),
    "input of another kind": (lambda: evaluate({"input": "text"}), ml.BackendError, r"input 'input' is a str"),
    "foreign input": (foreign_input, ml.BackendError, r"input 'input' belongs to another backend"),
    "stale parameters": (evaluate_stale, ml.ShapeError, r"'first.weight' is float32\[8, 6\]; .* needs float32\[8, 7\]"),
    "gradient of no output": (lambda: evaluate(gradients={"outptu": np.ones((4, 4), FLOAT)}), ml.GraphError, r"names 'outptu', which is no output; did you mean 'output'"),
    "gradient shape": (lambda: evaluate(gradients={"output": np.ones((4, 5), FLOAT)}), ml.ShapeError, r"gradient of output 'output' is float32\[4, 5\]; the output is float32\[4, 4\]"),
    "gradients no mapping": (lambda: evaluate(gradients=np.ones((4, 4), FLOAT)), ml.GraphError, r"output_gradients is a numpy.ndarray; give a mapping"),
    "scalar input": (lambda: evaluate({"input": np.float32(1)}), ml.ShapeError, r"first"),
    "integer input": (lambda: evaluate({"input": np.ones((4, 6), np.int32)}), ml.ShapeError, r"int32"),
    "pending parameter": (read_pending, ml.BackendError, r"'first.weight' has no size yet"),
    "plan before shapes": (lambda: compiled().plan, ml.PlanError, r"not known before the shapes"),
    "explain unknown": (lambda: ml.compile(mlp(), backend(), shapes={"input": (4, 6)}).explain("frist.weight"), ml.PlanError, r"no tensor 'frist.weight'; did you mean 'first.weight'"),
    "shape of input": (lambda: ml.compile(mlp(), backend(), shapes={"input": "4x6"}), ml.ShapeError, r"shape of input 'input' is '4x6'; give a tuple of integers or ml.TensorSpec\("),
    "seed": (lambda: compiled_dropout(-1), ml.OptionError, r"seed=-1 is not an integer"),
    "compile option": (lambda: ml.compile(mlp(), backend(), inferense=True), ml.OptionError, r"no option 'inferense'; did you mean 'inference'"),
    "compile no model": (lambda: ml.compile("model", backend()), ml.GraphError, r"takes a Model or a layer, not a str; make one, such as ml.Linear"),
    "out_shardings name": (lambda: ml.compile(mlp(), backend(2), out_shardings={"outptu": P()}), ml.GraphError, r"'outptu', which is no output; did you mean 'output'"),
    "weight on another mesh": (lambda: annotated((0, None), device_mesh=(4,)), ml.MeshError, r"device_mesh"),
    "weight indivisible": (lambda: annotated((0, None), mesh=(4,), uneven="error"), ml.ShardingError, r"dimension 0 \(6\) of parameter 'weight' over mesh axis 'data' \(4\)"),
    "pattern without match": (shard_nothing, ml.ShardingError, r"frist"),
    "pattern with unknown axis": (unknown_axis, ml.MeshError, r"^P\('tensor'\) of 'first.weight' \(test_bad_input.py:\d+\) does not fit; mesh Mesh\(data=2\) has no axis 'tensor'; axes: 'data'$"),
    "layer with unknown axis": (lambda: ml.compile(ml.Linear(3, sharding={"weight": P("dta")}), backend(2), shapes={"input": (2, 4)}), ml.MeshError, r"^P\('dta'\) of 'weight' \(test_bad_input.py:\d+\) does not fit; mesh"),
    "at rest with unknown axis": (lambda: ml.compile(ml.Linear(3, at_rest=P("dta")), backend(2), shapes={"input": (2, 4)}), ml.MeshError, r"^P\('dta'\) of 'weight' \(test_bad_input.py:\d+\) does not fit; mesh"),
    "input with unknown axis": (lambda: ml.compile(mlp(), backend(2), shapes={"input": ml.TensorSpec((4, 6), sharding=P("dta"))}), ml.MeshError, r"^P\('dta'\) of input 'input' does not fit; mesh"),
    "branch on a value": (branch_on_value, ml.GraphError, r"has no truth value; .* use where"),
    "shapes that do not meet": (mismatch_in_model, ml.ShapeError, r"\(4, 8\) and \(4, 6\).*sum"),
    "cycle": (cycle, ml.GraphError, r"cycle"),
    "duplicate output": (duplicate_output, ml.GraphError, r"'b'"),
    "layer option": (lambda: ml.Linear(dimention=4), ml.OptionError, r"dimention.*dimension"),
    "backend name": (lambda: ml.open_backend(3), ml.BackendError, r"backend name 3 is not a string; give one, such as 'numpy'"),
    "mesh names as a string": (lambda: ml.NumpyBackend(device_mesh=(2, 2), mesh_axis_names="ab"), ml.MeshError, r"mesh_axis_names is the string 'ab'"),
    "tensor_split of floats": (lambda: backend(2).ones(4, tensor_split=(0.0,)), ml.ShardingError, r"tensor_split=\(0.0,\) of tensor is not made of dimensions"),
    "tensor_split of flags": (lambda: backend(2).ones(4, tensor_split=(True,)), ml.ShardingError, r"is not made of dimensions; give an integer"),
    "ragged array": (lambda: backend().array([[1], [2, 3]]), ml.ShapeError, r"values do not form an array"),
    "array of text": (lambda: backend().array(["a"]), ml.ShapeError, r"values are of type <U1"),
    "integers out of range": (lambda: backend().array([300], dtype="int8"), ml.ShapeError, r"values reach from 300 to 300, int8 from -128 to 127"),
    "floats out of range": (lambda: backend().array([-1.0, 500.5], dtype="uint8"), ml.ShapeError, r"values reach from -1\.0 to 500\.5, uint8 from 0 to 255"),
    "no integers": (lambda: backend().array([1.7, np.nan], dtype="int32"), ml.ShapeError, r"values are not finite in places, as no int32 is; give a float dtype, or replace them"),
    "array of records": (lambda: backend().array(np.zeros(2, [("a", int)])), ml.ShapeError, r"values are of type \[\('a', '<i8'\)\], which is no dtype of Mithril"),
    "randint out of range": (lambda: backend().randint(0, 2**40, (4,)), ml.ShapeError, r"int32 from -2147483648 to 2147483647; give a wider dtype"),
    "randint of floats": (lambda: backend().randint(0.5, 2, (4,)), ml.ShapeError, r"low 0.5 and high 2; give integers"),
    "random integers as floats": (lambda: backend().rand(4, dtype="int32"), ml.ShapeError, r"rand makes floats, not int32; use randint"),
    "seed of randn": (lambda: backend().randn(4, seed="x"), ml.OptionError, r"seed='x' is not an integer"),
    "seed of parameters": (lambda: compiled().randomize_params(seed=1.5), ml.OptionError, r"seed=1.5 is not an integer"),
    "seed nobody draws from": (lambda: compiled().evaluate({}, {}, seed=-1), ml.OptionError, r"seed=-1 is not an integer"),
    "TensorSpec shape": (lambda: ml.TensorSpec(8), ml.ShapeError, r"TensorSpec has shape 8; give a tuple of integers"),
    "TensorSpec sharding": (lambda: ml.TensorSpec((8,), sharding="data"), ml.ShardingError, r"TensorSpec has sharding 'data'; give a spec"),
    "negative shape": (lambda: ml.compile(mlp(), backend(), shapes={"input": (-2, 4)}), ml.ShapeError, r"shape of input 'input' is \(-2, 4\)"),
    "compile without a backend": (lambda: ml.compile(mlp()), ml.BackendError, r"compile\(\) takes a backend, not None; open one"),
    "explain a number": (lambda: compiled().explain(3), ml.OptionError, r"explain\(\) takes the name of a tensor, not 3; give one, such as 'output', or none"),
    "observed by a number": (lambda: compiled().evaluate({}, {}, observe=3), ml.OptionError, r"observe=3 cannot be called; give a function of what is issued"),
    "option of evaluate": (lambda: compiled().evaluate({}, {}, sed=1), ml.OptionError, r"evaluate\(\) has no option 'sed'; did you mean 'seed'\?; options: 'params', 'inputs', 'output_gradients', 'seed', 'observe', 'donate'$"),
    "option of randomize_params": (lambda: compiled().randomize_params(sed=1), ml.OptionError, r"randomize_params\(\) has no option 'sed'; did you mean 'seed'"),
    "option of TensorSpec": (lambda: ml.TensorSpec((2,), dtyp="int32"), ml.OptionError, r"TensorSpec has no option 'dtyp'; did you mean 'dtype'"),
    "device_mesh twice": (lambda: ml.NumpyBackend(ml.Mesh(data=2), device_mesh=(4,)), ml.OptionError, r"NumpyBackend\(\) is given 'device_mesh' by position and by name; give it once"),
    "array changed in place": (lambda: ONE.ones(3).__setitem__(0, 1), ml.BackendError, r"array float32\[3\] does not change in place; make a new one with backend.where\(mask"),
    "out_shardings as a string": (lambda: ml.compile(mlp(), backend(2), out_shardings="data"), ml.ShardingError, r"out_shardings='data' is no partition spec"),
    "out_shardings of None": (lambda: ml.compile(mlp(), backend(2), out_shardings={"output": None}), ml.ShardingError, r"out_shardings of 'output' is None; give a spec"),
    "out_shardings axis": (lambda: ml.compile(mlp(), backend(2), out_shardings=P("dta")), ml.MeshError, r"out_shardings P\('dta'\) of output 'output' does not fit; mesh Mesh\(data=2\) has no axis 'dta'; axes: 'data'; did you mean"),
    "compile without backend": (lambda: ml.compile(mlp(), "numpy"), ml.BackendError, r"compile\(\) takes a backend, not 'numpy'; open one"),
    "inference no flag": (lambda: ml.compile(mlp(), backend(), inference="no"), ml.OptionError, r"inference='no' is neither True nor False"),
    "shard no mapping": (lambda: mlp().shard("x"), ml.ShardingError, r"model.shard got 'x'.*; give a mapping from name patterns"),
    "index by two arrays": (lambda: ONE.ones(3, 3)[ONE.array([1]), ONE.array([1])], ml.ShapeError, r"cannot index float32\[3, 3\] with a tensor together with another tensor or an integer; index twice"),
    "index by floats": (lambda: ONE.ones(3)[ONE.ones(2)], ml.ShapeError, r"op 'take' needs integer ids, not float32"),
    "id beyond a split table": (lambda: split_lookup(8), ml.ShapeError, r"take meets id 8; ids must lie in 0…7; check the ids, .* \(in 'embedding', test_bad_input.py:\d+\)$"),
    "id beyond the table of a layer": (lambda: lookup_in_model(9), ml.ShapeError, r"take meets id 9; .* \(in 'embed', test_bad_input.py:\d+\)$"),
    "axis of another kind": (lambda: ONE.sum(ONE.ones(3), axis="a"), ml.ShapeError, r"sum names dimension 'a' of a tensor of rank 1"),
    "unknown name": (lambda: ml.Linaer, AttributeError, r"^mithril has no 'Linaer'; did you mean 'Linear'"),
}  # fmt: skip


def compiled_dropout(seed: int) -> None:
    model = ml.compile(ml.Dropout(rate=0.5), backend())
    model.evaluate({}, {"input": np.ones((4, 4), FLOAT)}, seed=seed)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_answered(mistake: str) -> None:
    cause, error, text = MISTAKES[mistake]
    with pytest.raises(error, match=text):
        cause()


def test_state_after_a_mistake_is_as_before() -> None:
    on = backend(2)
    model = compiled(on)
    params = model.randomize_params()
    with pytest.raises(ml.ShapeError):
        model.evaluate(params, {"input": np.ones((4, 6), np.int32)})
    assert not params["first.weight"].is_materialised
    outputs = model.evaluate(params, {"input": on.ones(4, 6)})
    with pytest.raises(ml.GraphError):
        model.evaluate(params, {"input": on.ones(4, 6)}, {"nothing": on.ones(1)})
    again = model.evaluate(params, {"input": on.ones(4, 6)})
    np.testing.assert_array_equal(outputs["output"].numpy(), again["output"].numpy())


def test_zero_size_batch_gives_an_empty_result() -> None:
    model = compiled()
    outputs, gradients = model.evaluate(
        model.randomize_params(),
        {"input": np.ones((0, 6), FLOAT)},
        {"output": np.ones((0, 4), FLOAT)},
    )
    assert outputs["output"].shape == (0, 4)
    np.testing.assert_array_equal(gradients["first.weight"].numpy(), np.zeros((8, 6)))
