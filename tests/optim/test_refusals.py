"""Bad input is refused, where it can be seen, with what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, nan

import mithril as ml
import numpy as np
import pytest
from mithril import GraphError, OptionError, ShapeError, optim

BACKEND = ml.NumpyBackend()
W = {"w": BACKEND.array([[1.0, 2.0]]), "b": BACKEND.array([3.0])}


def init(optimizer: optim.Transformation, params: object = W) -> object:
    return optimizer.init(params)


def update(
    optimizer: optim.Transformation, gradients: object = W, state: object = None, params: object = W
) -> object:
    return optimizer.apply(gradients, optimizer.init(params) if state is None else state, params)


NUMBERS = [
    (lambda: optim.sgd(-0.1), "an optimiser is given learning_rate=-0.1, no finite number of at least 0; give such a one"),
    (lambda: optim.sgd(0.1, nesterov="no"), "nesterov='no' is neither True nor False; give one of them"),
    (lambda: optim.adam(nan), "an optimiser is given learning_rate=nan, no finite number of at least 0; give such a one"),
    (lambda: optim.lion(inf), "an optimiser is given learning_rate=inf, no finite number of at least 0; give such a one"),
    (lambda: optim.adamw("1e-3"), "an optimiser is given learning_rate='1e-3', no finite number of at least 0; give such a one"),
    (lambda: optim.adagrad(True), "an optimiser is given learning_rate=True, no finite number of at least 0; give such a one"),
    (lambda: optim.sgd(0.1, 1.0), "sgd() is given momentum=1.0, no finite number of at least 0 and below 1; give such a one"),
    (lambda: optim.sgd(0.1, nesterov=True), "sgd(nesterov=True) is given momentum=0.0, no finite number above 0 and below 1; give such a one"),
    (lambda: optim.sgd(0.1, 0.9, nesterov=1), "nesterov=1 is neither True nor False; give one of them"),
    (lambda: optim.adam(0.1, b1=1.5), "scale_by_adam() is given b1=1.5, no finite number of at least 0 and below 1; give such a one"),
    (lambda: optim.adam(0.1, b2=-1), "scale_by_adam() is given b2=-1, no finite number of at least 0 and below 1; give such a one"),
    (lambda: optim.adam(0.1, eps=nan), "scale_by_adam() is given eps=nan, no finite number of at least 0; give such a one"),
    (lambda: optim.adamw(0.1, weight_decay=-1.0), "add_decayed_weights() is given weight_decay=-1.0, no finite number of at least 0; give such a one"),
    (lambda: optim.lion(0.1, b2=1.0), "scale_by_lion() is given b2=1.0, no finite number of at least 0 and below 1; give such a one"),
    (lambda: optim.rmsprop(0.1, momentum=2), "rmsprop() is given momentum=2, no finite number of at least 0 and below 1; give such a one"),
    (lambda: optim.rmsprop(0.1, centered="yes"), "centered='yes' is neither True nor False; give one of them"),
    (lambda: optim.adagrad(0.1, -0.5), "scale_by_sum_of_squares() is given initial_accumulator=-0.5, no finite number of at least 0; give such a one"),
    (lambda: optim.adafactor(0.1, decay_rate=2), "scale_by_factored_rms() is given decay_rate=2, no finite number above 0 and below 1; give such a one"),
    (lambda: optim.adafactor(0.1, clipping_threshold=0), "clip_by_block_rms() is given threshold=0, no finite number above 0; give such a one"),
    (lambda: optim.adafactor(0.1, min_dim_size_to_factor=2.5), "scale_by_factored_rms() is given min_dim_size_to_factor=2.5, no whole number from 1 on; give such a one"),
    (lambda: optim.scale_by_parameter_scale(-1), "scale_by_parameter_scale() is given least=-1, no finite number of at least 0; give such a one"),
    (lambda: optim.muon(0.1, steps=0), "scale_by_muon() is given steps=0, no whole number from 1 on; give such a one"),
    (lambda: optim.muon(0.1, coefficients=(1, 2)), "Newton-Schulz is given the coefficients (1, 2); give three numbers, such as (3.4445, -4.775, 2.0315)"),
    (lambda: optim.clip(0.0), "clip() is given bound=0.0, no finite number above 0; give such a one"),
    (lambda: optim.clip_by_global_norm(-1), "clip_by_global_norm() is given max_norm=-1, no finite number above 0; give such a one"),
    (lambda: optim.scale(nan), "scale() is given factor=nan, no finite number; give such a one"),
    (lambda: optim.with_ema(optim.sgd(0.1), 1.0), "with_ema() is given decay=1.0, no finite number of at least 0 and below 1; give such a one"),
    (lambda: optim.sgd(0.1, monentum=0.9), "sgd() has no option 'monentum'; did you mean 'momentum'?; options: 'learning_rate', 'momentum', 'nesterov', 'mask'"),
]  # fmt: skip

SCHEDULES = [
    (lambda: optim.constant_schedule(nan), "constant_schedule() is given value=nan, no finite number of at least 0; give such a one"),
    (lambda: optim.linear_schedule(-1.0, 0.0, 5), "linear_schedule() is given init_value=-1.0, no finite number of at least 0; give such a one"),
    (lambda: optim.linear_schedule(1.0, 0.0, 0), "linear_schedule() is given transition_steps=0, no whole number from 1 on; give such a one"),
    (lambda: optim.cosine_decay_schedule(1.0, 10.5), "cosine_decay_schedule() is given decay_steps=10.5, no whole number from 1 on; give such a one"),
    (lambda: optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10), "warmup_cosine_decay_schedule() has decay_steps=10, the warm-up's 10 included; give more than warmup_steps"),
    (lambda: optim.warmup_stable_decay_schedule(1.0, 1, 1, 1, end_value=inf), "warmup_stable_decay_schedule() is given end_value=inf, no finite number of at least 0; give such a one"),
    (lambda: optim.piecewise_constant_schedule(1.0, [10]), "piecewise_constant_schedule() is given a list as boundaries_and_scales; give a dict from steps to factors, such as {1000: 0.1}"),
    (lambda: optim.piecewise_constant_schedule(1.0, {10: -1}), "piecewise_constant_schedule() is given the factor of 10=-1, no finite number of at least 0; give such a one"),
    (lambda: optim.join_schedules([0.1], []), "join_schedules() is given [0.1]; give schedules, one at least"),
    (lambda: optim.join_schedules([optim.constant_schedule(1.0)] * 3, [5, 5]), "join_schedules() is given 3 schedules and the boundaries [5, 5]; give rising steps, one fewer than schedules"),
    (lambda: init(optim.sgd(lambda step: nan)), "an optimiser is given a schedule with the value=nan, no finite number of at least 0; give such a one"),
    (lambda: init(optim.sgd(lambda step: 0.0 / (step * 1.0))), "a schedule gives the learning rate nan at step 0; give one that returns a finite number of at least 0"),
    (lambda: init(optim.sgd(lambda step: step - 1.0)), "a schedule gives the learning rate -1.0 at step 0; give one that returns a finite number of at least 0"),
]  # fmt: skip

MASKS = [
    (lambda: init(optim.adamw(0.1, decay_mask="*.weigth")), "pattern '*.weigth' of a mask matches no parameter; near names: 'w', 'b'"),
    (lambda: init(optim.adam(0.1, mask={"w": False, "b": False})), "mask {'w': False, 'b': False} is False for every parameter; give one that some are in; near names: 'w', 'b'"),
    (lambda: init(optim.clip(1.0, mask=lambda params: [])), "mask is of another form than the parameters, a list where they have keys 'w', 'b'; give a bool for each, or patterns of names"),
    (lambda: optim.clip(1.0, mask=3), "masked() is given an int as a mask; give patterns of names, such as \"*.weight\", a tree of booleans, or a function of the parameters"),
    (lambda: init(optim.clip(1.0, mask=lambda params: None)), "mask= is given None as a mask; give patterns of names"),
    (lambda: init(optim.clip(1.0, mask={"w": 1})), "mask has 'w': 1; give a bool for each pattern of names, or a tree of them in the form of the parameters"),
    (lambda: init(optim.freeze(optim.sgd(0.1), "*")), "freeze() leaves no parameter to train; give a mask that some parameters are not in"),
    (lambda: optim.freeze("*", "*"), "freeze() takes transformations, not a str; give one, such as ml.optim.adamw(1e-3)"),
    (lambda: optim.partition({}, {}), "partition() is given a dict, no optimiser by label; give a dict, such as {\"head\": adamw(1e-3), \"body\": adamw(1e-4)}"),
    (lambda: optim.partition({"a": optim.sgd(0.1)}, 3), "partition() is given an int as labels; give a label by pattern, a tree of labels, or a function of the parameters"),
    (lambda: init(optim.partition({"a": optim.sgd(0.1)}, {"*": "a", "b": "c"})), "parameter 'b' has the label 'c' in partition(); labels of optimisers: 'a'"),
    (lambda: init(optim.partition({"a": optim.sgd(0.1)}, {"?": "a", "*.weight": "a"})), "pattern '*.weight' of a label matches no parameter; near names: 'w', 'b'"),
    (lambda: init(optim.partition({"a": optim.sgd(0.1), "z": optim.sgd(1.0)}, {"*": "a"})), "optimiser 'z' of partition() has no parameters; label some, or leave it out"),
]  # fmt: skip

OTHER = {"w": BACKEND.array([[1.0, 2.0]]), "bias": BACKEND.array([3.0])}
LARGE = {"w": BACKEND.ones(3, 2), "b": BACKEND.array([3.0])}
TREES: list[tuple[Callable[[], object], type, str]] = [
    (optim.chain, OptionError, "chain() is given no transformation; give at least one, such as sgd(0.1)"),
    (lambda: optim.chain(optim.clip(1.0), optim.adam), OptionError, "chain() takes transformations, not a function; call it first"),
    (lambda: init(optim.sgd(0.1), {}), GraphError, "an optimiser is given no parameters to make a state for; give a tree of arrays, such as compiled.randomize_params()"),
    (lambda: init(optim.sgd(0.1), {"w": 1.0}), GraphError, "parameters have a float as 'w', no array; give arrays of a backend, or call it inside of ml.jit"),
    (lambda: update(optim.sgd(0.1), OTHER), GraphError, "gradients have 'bias', which is none of the parameters; near names: 'b'"),
    (lambda: update(optim.sgd(0.1), {"w": W["b"]}), ShapeError, "gradients have [1] for 'w', whose parameter has [1, 2]; give those of these parameters"),
    (lambda: update(optim.sgd(0.1), {"w": BACKEND.array([[1, 2]])}), ShapeError, "gradient of 'w' is of int32, not of floats; give None for what is not trained"),
    (lambda: update(optim.adam(0.1), W, optim.adam(0.1).init(OTHER)), GraphError, "moments 'mu' of scale_by_adam() have 'bias', which is none of the parameters"),
    (lambda: update(optim.adam(0.1), W, optim.adam(0.1).init(LARGE)), ShapeError, "the state of scale_by_adam() has [3, 2] for 'w', whose parameter has [1, 2]; make it by init(params) of these parameters"),
    (lambda: update(optim.adam(0.1), W, optim.adam(0.1, mask="w").init(W)), GraphError, "the state of scale_by_adam() has nothing for 'b', which has a gradient; make it by init(params) of these parameters"),
    (lambda: update(optim.adafactor(0.1), W, optim.adafactor(0.1, mask="w").init(W)), GraphError, "the state of scale_by_factored_rms() has nothing for 'b', which has a gradient; make it by init(params) of these parameters"),
    (lambda: update(optim.adam(0.1), W, optim.sgd(0.1, 0.9).init(W)), GraphError, "scale_by_adam() is given a state of another transformation, one of 'momentum'; its own has 'count', 'mu', 'nu'; give what its init(params) or its last update returned"),
    (lambda: update(optim.with_ema(optim.sgd(0.1)), W, optim.sgd(0.1).init(W)), GraphError, "with_ema() is given a state of another transformation, a tuple; its own has 'optimizer', 'ema'; give what its init(params) or its last update returned"),
    (lambda: update(optim.adamw(0.1), W, optim.adam(0.1).init(W)), GraphError, "a chain of 3 transformations is given 2 states, not a state for each; give what its init(params) or its last update returned"),
    (lambda: update(optim.adamw(0.1), W, {"w": 1}), GraphError, "a chain of 3 transformations is given a dict, not a state for each; give what"),
    (lambda: update(optim.sgd(0.1), {"w": np.ones(2)}, None, {"w": np.ones(2)}), GraphError, "gradient and parameter 'w' are arrays of NumPy, on no backend; put them there by backend.array(…), or call the optimiser in ml.jit(…, backend=backend)"),
    (lambda: optim.apply_updates(W, OTHER), GraphError, "updates have 'bias', which is none of the parameters"),
    (lambda: optim.sgd(W["w"]), ShapeError, "learning rate is float32[1, 2], no scalar of floats; give a number, a schedule, or such a scalar"),
    (lambda: init(optim.sgd(lambda step: step)), ShapeError, "a schedule returns int32[], no scalar of floats; return the learning rate of the step"),
    (lambda: init(optim.sgd(lambda step: None)), ShapeError, "a schedule returns None, no scalar of floats; return the learning rate of the step"),
    (lambda: optim.global_norm({}), GraphError, "global_norm() is given a tree without arrays; give one that has some"),
    (lambda: init(optim.muon(0.1), {"b": W["b"]}), OptionError, "muon() finds no parameter with two dimensions; say by matrices=… which it trains, or use adamw"),
    (lambda: init(optim.muon(0.1, matrices="*")), ShapeError, "muon() is to train 'b' as a matrix, which has the shape [1]; leave it out of matrices="),
    (lambda: optim.match_parameters({"count": 1}, W), GraphError, "match_parameters() is given an int as 'count', which has no shape and dtype; give the state and the parameters of an optimiser"),
    (lambda: optim.orthogonalize(W["b"]), ShapeError, "orthogonalize() is given float32[1], no matrix; give [..., m, n]"),
]  # fmt: skip

ALL = [
    (call, OptionError if "another form" not in text else GraphError, text)
    for call, text in (*NUMBERS, *SCHEDULES, *MASKS)
]


@pytest.mark.parametrize(("call", "kind", "text"), [*ALL, *TREES])
def test_bad_input_is_refused(call: Callable, kind: type, text: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}"):
        call()


def test_a_state_of_another_model_is_refused_in_a_function_too() -> None:
    optimizer = optim.adamw(0.1)
    with pytest.raises(
        GraphError, match=r"moments 'mu' of scale_by_adam\(\) have 'bias', which is none"
    ):
        ml.jit(optimizer.apply)(W, optimizer.init(OTHER), W)


def test_what_can_only_be_seen_later_is_no_error() -> None:
    """A schedule that is traced has no value yet."""
    optimizer = optim.sgd(lambda step: step - 1.0)
    made, _ = ml.jit(lambda w: optimizer.apply(w, optimizer.init(w), w))(W)
    assert made["b"].item() == 6.0


@pytest.mark.parametrize("mask", [3.5, "no.such.*"])
def test_a_mask_of_a_decay_is_looked_at_without_one(mask: object) -> None:
    with pytest.raises(OptionError, match=" mask"):
        init(optim.adafactor(0.1, decay_mask=mask))  # type: ignore[arg-type]
