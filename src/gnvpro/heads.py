"""Eliminators of the head, for `Problem(eliminator=...)` and methods, and the head of a batch.

LeastSquares    least squares, in closed form
Newton          any convex loss, with the assembled Hessian
NewtonKrylov    any convex loss, with a Krylov space of the Hessian
NewtonCG        any convex loss, with conjugate gradients
BatchHead       the head of each batch in a training loop of your own
"""

from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.head.newton_cg import NewtonCG
from gnvpro.stochastic.batch_head import BatchHead

__all__ = [
    "BatchHead",
    "LeastSquares",
    "Newton",
    "NewtonCG",
    "NewtonKrylov",
]
