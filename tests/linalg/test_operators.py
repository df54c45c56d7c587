"""The algebra of operators is the algebra of their matrices."""

import torch

from checks import adjoint_gap, against_dense
from gnvpro.linalg.operators import LinearOperator, identity, symmetric

F64 = torch.float64


def matrix_operator(A):
    return LinearOperator((A.shape[1],), (A.shape[0],), lambda x: A @ x, lambda y: A.T @ y)


def draw(*shape):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


def test_dense_is_the_matrix():
    A = draw(4, 3)
    assert torch.equal(matrix_operator(A).dense(), A)


def test_transpose_product_sum_and_multiple_are_those_of_the_matrices():
    A, B, C = draw(4, 3), draw(3, 5), draw(4, 5)
    combined = matrix_operator(A) @ matrix_operator(B) + 2.5 * matrix_operator(C)
    assert against_dense(combined, A @ B + 2.5 * C) < 1e-14
    assert against_dense(combined.T, (A @ B + 2.5 * C).T) < 1e-14
    assert adjoint_gap(combined) < 1e-14


def test_shapes_compose():
    A = matrix_operator(draw(4, 3)) @ matrix_operator(draw(3, 5))
    assert (A.domain, A.codomain) == ((5,), (4,))
    assert (A.T.domain, A.T.codomain) == ((4,), (5,))


def test_operators_keep_the_shape_of_tensors():
    L, R = draw(4, 2), draw(3, 5)
    sandwich = LinearOperator((2, 3), (4, 5), lambda X: L @ X @ R, lambda Y: L.T @ Y @ R.T)
    assert against_dense(sandwich, torch.kron(L, R.T.contiguous())) < 1e-14


def test_identity_and_symmetric_are_their_own_transposes():
    S = draw(3, 3)
    S = S + S.T
    assert torch.equal(identity((2, 2)).dense(), torch.eye(4, dtype=F64))
    assert torch.equal(symmetric((3,), lambda x: S @ x).T.dense(), S)
