"""Networks that solve differential equations: equations as expressions, with the linear head eliminated exactly.

u = pde.Field(gnvpro.networks.MLP(2, [64], torch.nn.Tanh, dtype=torch.float64))
square = pde.points.Box([0, 0], [1, 1])
equations = [pde.Equation(-pde.laplacian(u), square.inside(900), f), pde.Equation(u, square.boundary(120), 0.0)]
result = pde.solve(u, equations, seconds=10)
"""

from gnvpro.pde import points
from gnvpro.pde.activations import Sine
from gnvpro.pde.beside import Beside, Functions
from gnvpro.pde.calculus import Vector, d, directional, divergence, dot, gradient, integral, laplacian
from gnvpro.pde.embedding import Periodic
from gnvpro.pde.equation import Equation
from gnvpro.pde.expression_algebra import Expression
from gnvpro.pde.expressions import Constant, cos, exp, log, sin, sqrt, tanh
from gnvpro.pde.field import Field
from gnvpro.pde.residuals import Residual
from gnvpro.pde.solve import Solution, solve

__all__ = [
    "Beside",
    "Constant",
    "Equation",
    "Expression",
    "Field",
    "Functions",
    "Periodic",
    "Residual",
    "Sine",
    "Solution",
    "Vector",
    "cos",
    "d",
    "directional",
    "divergence",
    "dot",
    "exp",
    "gradient",
    "integral",
    "laplacian",
    "log",
    "points",
    "sin",
    "solve",
    "sqrt",
    "tanh",
]
