"""Problems that the exact steps are tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnvpro import Problem, Tikhonov
from gnvpro.extend import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.methods.models import DenseMemory
from gnvpro.networks import MLP, NeuralODE, ResNet
from gnvpro.objectives.gauss_newton_matrix import MatrixBuilder
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.loss import HalfSquaredError, Logistic, Loss, Multinomial
from gnvpro.solvers import Dense

F64 = torch.float64


class PseudoHuber(Loss):
    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (torch.sqrt(1 + (outputs - targets) ** 2) - 1).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        residual = outputs - targets
        return residual / torch.sqrt(1 + residual**2)

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        curvature = (1 + (outputs - targets) ** 2) ** -1.5
        return lambda d_outputs: curvature * d_outputs


class Rotated(PseudoHuber):
    """A user's loss whose Hessian is not diagonal: PseudoHuber of mixed outputs."""

    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -0.3], [0.2, 0.0, 1.0]], dtype=F64)

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().value(outputs @ self.mix, targets)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().gradient(outputs @ self.mix, targets) @ self.mix.T

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        inner = super().hessian(outputs @ self.mix, targets)
        return lambda d_outputs: inner(d_outputs @ self.mix) @ self.mix.T


class Untold(nn.Module):
    """A network without formulas: only autodiff can differentiate it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 3, dtype=F64))
        self.b = nn.Parameter(torch.randn(4, dtype=F64))
        self.unused = nn.Parameter(torch.randn(2, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.a.T) * self.b


class Twice(nn.Module):
    """Every feature is there two times."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], 1)


def mlp(outputs: int, bias: bool = True) -> nn.Module:
    return nn.Sequential(MLP(3, [5, 4], dtype=F64), nn.Linear(4, outputs, bias=bias, dtype=F64))


def ode(outputs: int) -> nn.Module:
    return nn.Sequential(NeuralODE(3, 4, depth=2, dtype=F64), nn.Linear(4, outputs, dtype=F64))


PENALTY = Tikhonov(1e-2)


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    outputs: int
    loss: Loss
    eliminator: Eliminator
    samples: int = 17
    penalty: Tikhonov = PENALTY
    head_penalty: float = 1e-3


LS, NEWTON = LeastSquares(), Newton()
CASES = {
    "least squares, more targets than features": Case(lambda: mlp(7), 7, HalfSquaredError(), LS),
    "least squares, fewer targets": Case(lambda: mlp(2), 2, HalfSquaredError(), LS),
    "least squares, more targets than samples": Case(lambda: mlp(30), 30, HalfSquaredError(), LS),
    "head without bias": Case(lambda: mlp(7, bias=False), 7, HalfSquaredError(), LS),
    "fewer samples than features": Case(lambda: mlp(3), 3, HalfSquaredError(), LS, samples=3),
    "no head penalty": Case(lambda: mlp(3), 3, HalfSquaredError(), LS, head_penalty=0.0),
    "duplicated features": Case(
        lambda: nn.Sequential(nn.Linear(3, 3, dtype=F64), nn.Tanh(), Twice(), nn.Linear(6, 8, dtype=F64)),
        8,
        HalfSquaredError(),
        LS,
    ),
    "neural ode": Case(lambda: ode(6), 6, HalfSquaredError(), LS),
    "resnet": Case(
        lambda: nn.Sequential(ResNet(3, 4, depth=2, final_time=1.0, dtype=F64), nn.Linear(4, 3, dtype=F64)),
        3,
        Multinomial(),
        NEWTON,
    ),
    "autodiff": Case(lambda: nn.Sequential(Untold(), nn.Linear(4, 5, dtype=F64)), 5, HalfSquaredError(), LS),
    "autodiff, multinomial": Case(
        lambda: nn.Sequential(Untold(), nn.Linear(4, 3, dtype=F64)), 3, Multinomial(), NEWTON
    ),
    "logistic": Case(lambda: mlp(1), 1, Logistic(), NEWTON),
    "multinomial, few classes": Case(lambda: mlp(3), 3, Multinomial(), NEWTON),
    "multinomial, many classes": Case(lambda: mlp(6), 6, Multinomial(), NEWTON),
    "user's loss": Case(lambda: mlp(3), 3, PseudoHuber(), NEWTON),
    "user's loss, Hessian not diagonal": Case(lambda: mlp(3), 3, Rotated(), NEWTON),
    "inexact elimination": Case(lambda: mlp(3), 3, Multinomial(), NewtonKrylov(max_rank=4)),
}


# An inexact elimination stops wherever rounding lets it, so that chunks may change more than rounding.
EXACT = [name for name in CASES if name != "inexact elimination"]


def make(case: Case, memory: float = 1e15, **settings: object) -> tuple[MatrixBuilder, ReducedPoint]:
    """Return the first point of a case, and the parts of its matrix."""
    problem = problem_of(case, memory)
    dense = Dense(**settings)  # type: ignore[arg-type]
    problem = problem.with_passes(dense.pass_plan(problem))
    models = dense.models(problem, DenseMemory(problem.theta()))
    return models.matrices, problem.reduced.at(problem.theta())


def problem_of(case: Case, memory: float = 1e15) -> Problem:
    torch.manual_seed(0)
    model, n = case.model(), case.samples
    inputs = torch.randn(n, 3, dtype=F64)
    labels = isinstance(case.loss, Logistic | Multinomial)
    targets = torch.randint(0, max(2, case.outputs), (n,)) if labels else torch.randn(n, case.outputs, dtype=F64)
    return Problem(
        model,
        inputs,
        targets,
        loss=case.loss,
        theta_penalty=case.penalty,
        head_penalty=case.head_penalty,
        eliminator=case.eliminator,
        memory=memory,
    )


def relative(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))
