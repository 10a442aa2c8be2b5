"""Muon: momentum of matrices brought close to orthogonal; other parameters are left to AdamW.

Newton-Schulz is a few products, which the partitioner splits like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mithril import ops
from mithril.errors import OptionError, ShapeError
from mithril.keywords import checked_keywords
from mithril.optim.adam import adamw, correct_bias
from mithril.optim.basics import Rate, add_decayed_weights, scale_by_learning_rate
from mithril.optim.checks import check_count, check_number
from mithril.optim.each import transform_each
from mithril.optim.form import Form, Leaf
from mithril.optim.masks import Mask, check_mask, read_mask
from mithril.optim.parts import mask_others, split_by_label, train_only
from mithril.optim.transformation import Transformation, Tree, chain
from mithril.option_checks import check_flag

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration, by Keller Jordan, 2024: its slope at zero is as large as it can be."""


@checked_keywords()
def orthogonalize(
    x: Leaf,
    steps: int = 5,
    coefficients: Sequence[float] = COEFFICIENTS,
    eps: float = 1e-8,
) -> Leaf:
    """Return a matrix with the same singular vectors and singular values close to 1.

    Newton-Schulz: `X = a · X + (b · A + c · A²) X` with `A = X Xᵀ`, from `X / ‖X‖`. Singular values
    end between about 0.7 and 1.2. Jordan et al., "Muon: an optimizer for hidden layers", 2024.

    Args:
        x: [..., m, n], of floats; leading dimensions are a batch.
        steps: how often.
        coefficients: a, b and c.
        eps: added to the norm.

    Returns:
        The shape of x.

    Raises:
        OptionError: there are not three finite coefficients, or a number is out of range.
        ShapeError: x is no matrix.

    >>> x = backend.array([[2.0, 0.0], [0.0, 1.0]])
    >>> orthogonalize(x, coefficients=(1.5, -0.5, 0.0), steps=12).numpy().round(3)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    check_count("orthogonalize()", "steps", steps, least=1)
    a, b, c = _read_coefficients(coefficients)
    if len(x.shape) < 2:
        raise ShapeError(f"orthogonalize() is given {x.type}, no matrix; give [..., m, n]")
    is_tall = x.shape[-2] > x.shape[-1]
    x = ops.swapaxes(x, -1, -2) if is_tall else x
    norm = ops.sqrt(ops.sum(ops.square(x), (-2, -1), keepdims=True))
    x = x / (norm + eps)
    for _ in range(steps):
        gram = ops.matmul(x, ops.swapaxes(x, -1, -2))
        x = a * x + ops.matmul(b * gram + c * ops.matmul(gram, gram), x)
    return ops.swapaxes(x, -1, -2) if is_tall else x


def _read_coefficients(given: Sequence[float]) -> tuple[float, float, float]:
    if not isinstance(given, list | tuple) or len(given) != 3:
        raise OptionError(
            f"Newton-Schulz is given the coefficients {given!r}; give three numbers, such as "
            f"{COEFFICIENTS}"
        )
    a, b, c = (check_number("Newton-Schulz", "coefficient", x, least=-math.inf) for x in given)
    return a, b, c


@checked_keywords()
def scale_by_muon(
    momentum: float = 0.95,
    steps: int = 5,
    coefficients: Sequence[float] = COEFFICIENTS,
    eps: float = 1e-8,
    *,
    nesterov: bool = True,
    mask: Mask | None = None,
) -> Transformation:
    """Bring the momentum of matrices close to orthogonal, and scale it by `√max(1, m / n)`.

    Args:
        momentum: decay of the mean of gradients, from 0 up to 1.
        steps: of Newton-Schulz.
        coefficients: of Newton-Schulz.
        eps: added to the norm that Newton-Schulz starts with.
        nesterov: whether the gradient is taken in with the momentum once more.
        mask: which parameters it is about; all have to be [..., m, n]. See `masked`.

    Returns:
        A transformation with the state `{"count": …, "mu": …}`.

    Raises:
        OptionError: a number is out of range.
        ShapeError: a parameter is no matrix; when parameters are known.

    >>> g = {"w": backend.array([[2.0, 0.0], [0.0, 1.0]])}
    >>> even = scale_by_muon(coefficients=(1.5, -0.5, 0.0), steps=12)
    >>> even.update(g, even.init(g), g)[0]["w"].numpy().round(3)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    check_number("scale_by_muon()", "momentum", momentum, below=1.0)
    check_number("scale_by_muon()", "eps", eps)
    check_count("scale_by_muon()", "steps", steps, least=1)
    check_flag("nesterov", nesterov)
    _read_coefficients(coefficients)

    def begin(step: Leaf) -> Callable[[Leaf, Leaf, Leaf], tuple[Leaf, Leaf]]:
        now, next_one = correct_bias(momentum, step), correct_bias(momentum, step + 1.0)

        def formula(gradient: Leaf, _: Leaf, mu: Leaf) -> tuple[Leaf, Leaf]:
            mu = momentum * mu + (1 - momentum) * gradient
            mean = mu / now
            if nesterov:
                mean = momentum * (mu / next_one) + (1 - momentum) * (gradient / now)
            made = orthogonalize(mean, steps, coefficients, eps)
            rows, columns = made.shape[-2:]
            return made * math.sqrt(max(1.0, rows / columns)), mu

        return formula

    return mask_others(transform_each("scale_by_muon()", begin, ["mu"], is_counted=True), mask)


@checked_keywords()
def muon(
    learning_rate: Rate,
    momentum: float = 0.95,
    steps: int = 5,
    coefficients: Sequence[float] = COEFFICIENTS,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    nesterov: bool = True,
    matrices: Mask | None = None,
    adam_learning_rate: Rate | None = None,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_eps: float = 1e-8,
    adam_weight_decay: float = 0.0,
    mask: Mask | None = None,
) -> Transformation:
    """Muon for matrices, AdamW for all other parameters.

    Jordan et al., "Muon: an optimizer for hidden layers", 2024; with corrections of bias, as optax
    has it. Weights are [out, in] here, and updates are scaled by `√max(1, out / in)`. Embeddings
    and the output layer are better trained by AdamW: `matrices={"block*.weight": True}`.

    Args:
        learning_rate: of the matrices; a number, or a function of the step.
        momentum: decay of the mean of gradients, from 0 up to 1.
        steps: of Newton-Schulz.
        coefficients: of Newton-Schulz.
        eps: added to the norm that Newton-Schulz starts with.
        weight_decay: of the matrices; multiplied by the learning rate.
        nesterov: whether the gradient is taken in with the momentum once more.
        matrices: which parameters Muon trains, all with two dimensions by default; leading
            dimensions of others, such as stacked layers, are a batch. See `masked`.
        adam_learning_rate: of the other parameters; that of the matrices by default.
        adam_b1: decay of the mean of their gradients.
        adam_b2: decay of the mean of their squares.
        adam_eps: added to the root.
        adam_weight_decay: of the other parameters.
        mask: which parameters are trained at all, the others stay as they are.

    Returns:
        An optimiser with the state `{"muon": …, "adam": …}`.

    Raises:
        OptionError: a number is out of range. Parameters without a matrix are refused when they are
            known.
        ShapeError: `matrices` names a parameter that is none; when parameters are known.

    >>> optimizer = muon(0.1, coefficients=(1.5, -0.5, 0.0), steps=12)
    >>> params = {"w": backend.array([[2.0, 0.0], [0.0, 1.0]]), "b": backend.array([1.0, 2.0])}
    >>> params, state = optimizer.apply(params, optimizer.init(params), params)
    >>> params["w"].numpy().round(3).tolist(), params["b"].numpy().round(3).tolist()
    ([[1.899999976158142, 0.0], [0.0, 0.8999999761581421]], [0.8999999761581421, 1.899999976158142])
    """
    if matrices is not None:
        check_mask("muon()", matrices)
    other_rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    of_matrices = chain(
        scale_by_muon(momentum, steps, coefficients, eps, nesterov=nesterov),
        add_decayed_weights(weight_decay),
        scale_by_learning_rate(learning_rate),
    )
    others = adamw(other_rate, adam_b1, adam_b2, adam_eps, adam_weight_decay)

    def label(params: Tree) -> list[str]:
        return ["muon" if is_in else "adam" for is_in in _choose_matrices(params, matrices)]

    return train_only(split_by_label({"muon": of_matrices, "adam": others}, label), mask)


def _choose_matrices(params: Tree, matrices: Mask | None) -> list[bool]:
    form = Form(params)
    if matrices is None:
        chosen = [len(x.shape) == 2 for x in form.leaves]
        if not any(chosen):
            raise OptionError(
                "muon() finds no parameter with two dimensions; say by matrices=… which it "
                "trains, or use adamw"
            )
        return chosen
    chosen = read_mask(matrices, params, form)
    for name, leaf, is_in in zip(form.names, form.leaves, chosen, strict=True):
        if is_in and len(leaf.shape) < 2:
            raise ShapeError(
                f"muon() is to train '{name}' as a matrix, which has the shape {list(leaf.shape)}; "
                f"leave it out of matrices="
            )
    return chosen
