"""A model that draws random numbers while training and is called without a seed warns once."""

from __future__ import annotations

import warnings

import mithril as ml
import numpy as np
import pytest

X = np.ones((4, 6), np.float32)
WARNING = (
    r"evaluate\(\) is called without seed= and the model draws random numbers, such as dropout "
    r"masks: every call draws the same; pass seed=step, or compile with inference=True"
)


BACKEND = ml.NumpyBackend()


def with_dropout(**options: object) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Linear(4)(input="x")
    model += ml.Dropout(rate=0.5)(output="y")
    return ml.compile(model, BACKEND, **options)


def test_it_warns_once_of_masks_that_repeat_and_names_the_users_line() -> None:
    compiled = with_dropout()
    params = compiled.randomize_params()
    with pytest.warns(UserWarning, match=WARNING) as caught:
        first = compiled.evaluate(params, {"x": X})["y"].numpy()
    assert [warning.filename for warning in caught] == [__file__]
    second = compiled.evaluate(params, {"x": X}, {"y": X[:, :4]})[0]["y"].numpy()
    np.testing.assert_array_equal(first, second)  # no second warning, and the same mask
    with pytest.warns(UserWarning, match=WARNING):
        with_dropout().evaluate(params, {"x": X}, {"y": X[:, :4]})


def test_it_does_not_warn_where_nothing_repeats_unasked() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = with_dropout()
        params = compiled.randomize_params()
        for step in range(2):
            compiled.evaluate(params, {"x": X}, seed=step)
        compiled.evaluate(params, {"x": X}, seed=0)
        with_dropout(inference=True).evaluate(params, {"x": X})
        plain = ml.compile(ml.Linear(3), ml.NumpyBackend())
        plain.evaluate(plain.randomize_params(), {"input": X})


def test_a_seed_that_is_none_counts_as_left_out_and_others_are_checked() -> None:
    compiled = with_dropout()
    params = compiled.randomize_params()
    with pytest.raises(ml.OptionError, match="seed='a' is not an integer"):
        compiled.evaluate(params, {"x": X}, seed="a")
    with pytest.warns(UserWarning, match=WARNING):
        unseeded = compiled.evaluate(params, {"x": X}, seed=None)["y"].numpy()
    np.testing.assert_array_equal(
        unseeded, compiled.evaluate(params, {"x": X}, seed=0)["y"].numpy()
    )
