"""Functions that apply the ops of `matrix` to operands; `mithril.numpy.linalg` shows them, too."""

from __future__ import annotations

from mithril.errors import ShapeError
from mithril.ir.operand import AnyOperand, apply, apply_one
from mithril.ops.arrange import expand_dims, squeeze
from mithril.ops.elementwise import broadcast_shape, cast, floating
from mithril.ops.matrix import QR, SVD, Cholesky, Det, Eigh, Inv, Solve, TriangularSolve
from mithril.ops.shape import broadcast_to
from mithril.types import promote


def cholesky(x: AnyOperand) -> AnyOperand:
    """Return the lower triangular L for which L @ L.T is x.

    Args:
        x: symmetric positive definite matrices [..., n, n] of floats; of others the symmetric part
            (x + x.T) / 2 is taken.

    Returns:
        The shape and dtype of x; NaN where x is not positive definite.

    Raises:
        ShapeError: x holds no square matrices.

    >>> cholesky(backend.array([[4.0, 2.0], [2.0, 5.0]])).numpy()
    array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    lower: AnyOperand = apply_one(Cholesky(), *floating(x))
    return lower


def solve(a: AnyOperand, b: AnyOperand) -> AnyOperand:
    """Return the x for which a @ x is b.

    Args:
        a: matrices [..., n, n] of floats.
        b: right sides [..., n, k], or one vector [n]; leading dimensions are broadcast, and both
            are promoted to one dtype.

    Returns:
        That dtype; [..., n, k], or [..., n] for a vector; not finite where a is singular.

    Raises:
        ShapeError: sizes do not fit.

    >>> solve(backend.array([[2.0, 0.0], [1.0, 1.0]]), backend.array([2.0, 3.0])).numpy()
    array([1., 2.], dtype=float32)
    """
    left, right, is_vector = _meet("solve", a, b)
    found = apply_one(Solve(), left, right)
    return squeeze(found, -1) if is_vector else found


def triangular_solve(
    a: AnyOperand,
    b: AnyOperand,
    *,
    lower: bool = True,
    transpose: bool = False,
    unit_diagonal: bool = False,
) -> AnyOperand:
    """Return the x for which a @ x is b, where a is triangular.

    Args:
        a: matrices [..., n, n] of floats, of which one triangle is read.
        b: right sides [..., n, k], or one vector [n]; leading dimensions are broadcast, and both
            are promoted to one dtype.
        lower: whether the lower triangle is read, else the upper one.
        transpose: whether a is transposed, once its triangle is read.
        unit_diagonal: whether the diagonal counts as ones and is not read.

    Returns:
        That dtype; [..., n, k], or [..., n] for a vector; not finite where a is singular.

    Raises:
        ShapeError: sizes do not fit.

    >>> a, b = backend.array([[2.0, 9.0], [1.0, 1.0]]), backend.array([2.0, 3.0])
    >>> triangular_solve(a, b).numpy()
    array([1., 2.], dtype=float32)
    """
    left, right, is_vector = _meet("triangular_solve", a, b)
    op = TriangularSolve(bool(lower), bool(transpose), bool(unit_diagonal))
    found = apply_one(op, left, right)
    return squeeze(found, -1) if is_vector else found


def inv(x: AnyOperand) -> AnyOperand:
    """Return the inverses of matrices; to multiply by one, `solve` is faster and more exact.

    Args:
        x: matrices [..., n, n] of floats.

    Returns:
        The shape and dtype of x; not finite where it is singular.

    Raises:
        ShapeError: x holds no square matrices.

    >>> inv(backend.array([[2.0, 0.0], [0.0, 4.0]])).numpy()
    array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    inverse: AnyOperand = apply_one(Inv(), *floating(x))
    return inverse


def det(x: AnyOperand) -> AnyOperand:
    """Return the determinants of matrices.

    Args:
        x: matrices [..., n, n] of floats; the gradient is not finite where one is singular.

    Returns:
        [...], of the dtype of x.

    Raises:
        ShapeError: x holds no square matrices.

    >>> det(backend.array([[2.0, 1.0], [0.0, 4.0]])).item()
    8.0
    """
    determinant: AnyOperand = apply_one(Det(), *floating(x))
    return determinant


def qr(x: AnyOperand) -> tuple[AnyOperand, AnyOperand]:
    """Return an orthonormal Q and an upper triangular R for which Q @ R is x.

    Args:
        x: matrices [..., rows, columns] of floats.

    Returns:
        Q [..., rows, k] and R [..., k, columns] in the dtype of x, where k is the smaller size; the
        diagonal of R is not negative.

    Raises:
        ShapeError: x holds no matrices.

    >>> q, r = qr(backend.array([[0.0, 2.0], [3.0, 1.0]]))
    >>> abs(q.numpy()), r.numpy() + 0
    (array([[0., 1.],
           [1., 0.]], dtype=float32), array([[3., 1.],
           [0., 2.]], dtype=float32))
    """
    q, r = apply(QR(), *floating(x))
    return q, r


def svd(x: AnyOperand) -> tuple[AnyOperand, AnyOperand, AnyOperand]:
    """Return the singular value decomposition U, S, Vh for which (U * S) @ Vh is x.

    It is the reduced one, which NumPy gives for `full_matrices=False`.

    Args:
        x: matrices [..., rows, columns] of floats. Gradients through U and Vh are not finite where
            singular values are equal, or 0.

    Returns:
        U [..., rows, k], S [..., k], Vh [..., k, columns] in the dtype of x, where k is the smaller
        size; S is in descending order, and each column of U is positive where it is largest.

    Raises:
        ShapeError: x holds no matrices.

    >>> u, s, vh = svd(backend.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> s.numpy()
    array([3., 2.], dtype=float32)
    """
    u, s, vh = apply(SVD(), *floating(x))
    return u, s, vh


def eigh(x: AnyOperand) -> tuple[AnyOperand, AnyOperand]:
    """Return eigenvalues and eigenvectors of symmetric matrices.

    Args:
        x: matrices [..., n, n] of floats; of others the symmetric part (x + x.T) / 2 is taken.
            Gradients through eigenvectors are not finite where eigenvalues are equal.

    Returns:
        Eigenvalues [..., n] in ascending order, and eigenvectors as the columns of [..., n, n], in
        the dtype of x; each is positive where it is largest.

    Raises:
        ShapeError: x holds no square matrices.

    >>> values, vectors = eigh(backend.array([[3.0, 0.0], [0.0, 2.0]]))
    >>> values.numpy(), vectors.numpy()
    (array([2., 3.], dtype=float32), array([[0., 1.],
           [1., 0.]], dtype=float32))
    """
    values, vectors = apply(Eigh(), *floating(x))
    return values, vectors


def _meet(what: str, a: AnyOperand, b: AnyOperand) -> tuple[AnyOperand, AnyOperand, bool]:
    """Return both with one dtype and batch, and whether the right side is a vector."""
    a, b = floating(a, b)
    is_vector = b.ndim == 1
    right: AnyOperand = expand_dims(b, -1) if is_vector else b
    if a.ndim < 2 or right.ndim < 2:
        raise ShapeError(
            f"{what} cannot solve {a.type} for {b.type}; give matrices [..., n, n] and right sides "
            f"[..., n, k] or [n]"
        )
    dtype = promote(a.dtype, b.dtype)
    batch = broadcast_shape([a.shape[:-2], right.shape[:-2]], what)
    matrices, columns = (
        x if x.shape[:-2] == batch else broadcast_to(x, (*batch, *x.shape[-2:]))
        for x in (cast(a, dtype), cast(right, dtype))
    )
    return matrices, columns, is_vector


__all__ = [
    "cholesky", "det", "eigh", "inv", "qr", "solve", "svd", "triangular_solve",
]  # fmt: skip
