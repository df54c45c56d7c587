"""The dense solver: its matrix is that of the Krylov path, its steps are what they claim, and its work is counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from gnvpro.methods.choose_solver import DenseSettings, choose_solver, make_assembler
from torch import Tensor, nn

import gnvpro
from gnvpro.head.eliminator import Eliminator
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.minimize.step_rules import Damping, NielsenRule, RadiusRule, Step
from gnvpro.network.find_head import find_head
from gnvpro.network.separable import SeparableNetwork, WorkMeter
from gnvpro.network.subspace import all_directions, choose, moving_directions
from gnvpro.networks import MLP, NeuralODE, ResNet
from gnvpro.objectives.gauss_newton_matrix import GaussNewton
from gnvpro.objectives.geodesic import LEAST_SHARE, Dense, DenseModel, Geodesic
from gnvpro.objectives.reduced import Problem, ReducedObjective, ReducedPoint
from gnvpro.problem.losses import HalfSquaredError, Logistic, Loss, Multinomial, prepare_targets
from gnvpro.problem.misfit import Misfit, matrix_root
from gnvpro.problem.penalties import Tikhonov, time_differences

F64 = torch.float64


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors and many threads do not mix."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class PseudoHuber:
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
    """A network without formulas of its own: only autodiff can differentiate it."""

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


def make(case: Case, memory: float = math.inf, **settings: object) -> tuple[ReducedObjective, ReducedPoint]:
    torch.manual_seed(0)
    model, n = case.model(), case.samples
    inputs = torch.randn(n, 3, dtype=F64)
    network = SeparableNetwork(model, find_head(model, inputs[:2], None), WorkMeter(n), memory=memory)
    labels = isinstance(case.loss, Logistic | Multinomial)
    raw = torch.randint(0, max(2, case.outputs), (n,)) if labels else torch.randn(n, case.outputs, dtype=F64)
    misfit = Misfit.mean(case.loss, prepare_targets(case.loss, raw, network.n_targets))
    problem = Problem(network, inputs, misfit, case.penalty.bind(model, network.parameters), case.head_penalty)
    assembler = make_assembler(problem, network.theta(), DenseSettings(**settings))  # type: ignore[arg-type]
    objective = ReducedObjective(problem, case.eliminator, assembler)
    return objective, objective.start(network.theta(), None)


def relative(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))


def theta_matrix(local: GaussNewton) -> Tensor:
    Q = torch.stack([local.directions.expand(unit) for unit in torch.eye(local.directions.count, dtype=F64)], 1)
    return Q @ local.matrix @ Q.T


@pytest.mark.parametrize("name", CASES)
def test_matrix_and_gradient_are_those_of_the_krylov_path(name: str) -> None:
    _, point = make(CASES[name], full=True)
    assert relative(theta_matrix(point.gauss_newton), point.curvature().dense()) < 1e-10
    vjp = point.linearization.vjp(point._derivatives.feature_gradient())
    assert relative(point.gradient(), vjp + point.problem.theta_penalty.hessian_mv(point.x)) < 1e-12


@pytest.mark.parametrize("name", EXACT)
def test_kaufmans_matrix_is_the_krylov_path_without_the_residuals_term(name: str) -> None:
    _, point = make(CASES[name], full=False)
    _, full = make(CASES[name], full=True)
    derivatives, linear = point._derivatives, point.linearization

    def residual_term(v: Tensor) -> Tensor:
        return linear.vjp(derivatives._residual_term(linear.jvp(v)))

    dropped = torch.stack([residual_term(unit) for unit in torch.eye(point.x.numel(), dtype=F64)], 1)
    want = point.curvature().dense() - dropped
    assert relative(theta_matrix(point.gauss_newton), want) < 1e-10
    assert relative(point.gradient(), full.gradient()) < 1e-12


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_every_chunking_gives_the_same(name: str, full: bool) -> None:
    objective, whole = make(CASES[name], full=full)
    for chunk in (1, 5, 16):
        objective.problem.network.chunk = chunk
        point = objective.start(whole.x, None)
        assert relative(point.gauss_newton.matrix, whole.gauss_newton.matrix) < 1e-10
        assert relative(point.gradient(), whole.gradient()) < 1e-10


def test_chunks_follow_from_the_bytes_allowed() -> None:
    case = CASES["least squares, more targets than features"]
    q, seeds = 44, 4
    objective, _ = make(case, memory=2 * (4 * 8 * q**2 + 3 * 8 * seeds * 2 * q))  # half is for passes
    assert objective.problem.network.n_theta == q
    assert objective.problem.network.chunk == 3


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["neural ode", "multinomial, many classes", "least squares, fewer targets"])
def test_pull_back_is_the_transposed_reduced_jacobian(name: str, full: bool, keep: bool) -> None:
    objective, _ = make(CASES[name], full=full)
    if not keep:
        object.__setattr__(objective.assembler, "keep", 0)
    point = objective.start(objective.problem.network.theta(), None)
    d_outputs, dW = torch.randn_like(point.outputs), torch.randn_like(point.W)
    local, weighted = point._derivatives, point.problem.misfit.hessian(point.outputs)(d_outputs)
    pulled = local.output_jacobian.rmv(weighted) + point.problem.head_penalty * local.head_jacobian.rmv(dW)
    if not full:  # without the part that goes through the residual
        D = local.fit.inverse_hessian.rmv(weighted.T @ local.Z + point.problem.head_penalty * dW)
        pulled = pulled + local.G @ D[:, : local.n_features]
    before = point.problem.network.meter.work
    got = point.gauss_newton.pull_back(d_outputs, dW)
    seeds = point.assembler.passes(4, point.W.shape[0], point.problem.misfit.identity_hessian)  # type: ignore[union-attr]
    assert point.problem.network.meter.work - before == seeds + (not keep)
    assert relative(got, point.linearization.vjp(pulled)) < 1e-10


@pytest.mark.parametrize(
    ("name", "full", "passes"),
    [
        ("least squares, more targets than features", False, 4),
        ("least squares, more targets than features", True, 4),
        ("least squares, fewer targets", False, 2),
        ("least squares, fewer targets", True, 4),
        ("logistic", False, 1 + 1),  # one seed, and the gradient
        ("logistic", True, 4),
        ("multinomial, few classes", False, 3 + 1),
        ("autodiff", False, 4),
    ],
)
def test_work_is_one_unit_a_seed_and_the_gradient_comes_with_it(name: str, full: bool, passes: int) -> None:
    _, point = make(CASES[name], full=full)
    meter = point.problem.network.meter
    assert meter.work == 1
    point.gradient()
    point.gauss_newton.matrix  # noqa: B018
    assert meter.work == 1 + passes
    network = point.problem.network
    assert point.assembler is not None
    assert (
        point.assembler.passes(network.n_features, network.n_targets, point.problem.misfit.identity_hessian) == passes
    )


def test_matrix_root_squares_to_the_hessian() -> None:
    outputs, targets = torch.randn(5, 3, dtype=F64), torch.randn(5, 3, dtype=F64)
    for loss in (PseudoHuber(), Rotated(), Multinomial()):
        hessian = loss.hessian(outputs, targets)
        C = loss.hessian_root(outputs, targets) if isinstance(loss, Multinomial) else matrix_root(hessian, outputs)
        v = torch.randn(5, 3, dtype=F64)
        assert relative((C @ (C.mT @ v[..., None]))[..., 0], hessian(v)) < 1e-13


# -- directions


def test_symmetric_directions_are_left_out_where_nothing_asks_for_them() -> None:
    model = ode(3)
    network = SeparableNetwork(model, find_head(model, torch.zeros(2, 3, dtype=F64), None), WorkMeter(2))
    theta, n = network.theta(), network.n_theta
    few = moving_directions(model, network.parameters, theta.device)
    assert few.count == n - 3 * 10  # 3 nodes, 10 symmetric directions of a 4 x 4 matrix
    Q = torch.stack([few.expand(unit) for unit in torch.eye(few.count, dtype=F64)], 1)
    assert torch.allclose(Q.T @ Q, torch.eye(few.count, dtype=F64), atol=1e-15, rtol=0)
    v = torch.randn(n, dtype=F64)
    assert torch.allclose(few.reduce(v), Q.T @ v, atol=1e-15, rtol=0)

    def penalty(tikhonov: Tikhonov) -> Tensor:
        bound = tikhonov.bind(model, network.parameters)
        return torch.stack([bound.hessian_mv(unit) for unit in torch.eye(n, dtype=F64)])

    differences, plain = penalty(Tikhonov(1e-3, time_differences)), penalty(Tikhonov(1e-3))
    assert choose(model, network.parameters, theta, differences).count == few.count
    assert choose(model, network.parameters, theta, plain).count == n  # it pulls the symmetric part to zero
    assert choose(model, network.parameters, few.expand(few.reduce(theta)), plain).count == few.count
    coupling = torch.ones(n, n, dtype=F64) * 1e-3
    assert choose(model, network.parameters, torch.zeros(n, dtype=F64), coupling).count == n


def test_steps_without_the_symmetric_directions_are_the_same() -> None:
    case = Case(lambda: ode(6), 6, HalfSquaredError(), LS, penalty=Tikhonov(1e-3, time_differences))
    _, point = make(case)
    few = point.gauss_newton
    assert few.directions.count < point.x.numel()
    every = all_directions(few.directions.parameters, point.x.device)
    whole = GaussNewton(kaufman_of(point), few.gradient, few.penalty, every, few.pull_back)
    for damping in (1e-4, 1e-1):
        a, b = DenseModel(few).solve_damped(damping), DenseModel(whole).solve_damped(damping)
        assert relative(a.d_x, b.d_x) < 1e-9
        assert a.predicted_reduction == pytest.approx(b.predicted_reduction, rel=1e-9)


def kaufman_of(point: ReducedPoint) -> Tensor:
    local, linear = point._derivatives, point.linearization
    units = torch.eye(point.x.numel(), dtype=F64)
    dropped = torch.stack([linear.vjp(local._residual_term(linear.jvp(unit))) for unit in units], 1)
    return point.curvature().dense() - dropped


# -- steps


def model_of(matrix: Tensor, gradient: Tensor) -> DenseModel:
    directions = all_directions([("x", tuple(gradient.shape))], gradient.device)
    return DenseModel(GaussNewton(matrix, gradient, torch.zeros_like(matrix), directions, lambda a, b: a))


def random_model(n: int = 12, rank: int = 12) -> DenseModel:
    torch.manual_seed(1)
    J = torch.randn(rank, n, dtype=F64)
    return model_of(J.T @ J, J.T @ torch.randn(rank, dtype=F64))


@pytest.mark.parametrize("rank", [12, 7])
@pytest.mark.parametrize("radius", [1e-6, 1e-2, 0.1, 0.3])
def test_step_lies_on_the_sphere_and_nothing_on_it_is_better(rank: int, radius: float) -> None:
    model = random_model(rank=rank)
    step = model.solve_within(radius)
    assert float(torch.linalg.vector_norm(step.d_x)) == pytest.approx(radius, rel=1e-13)
    assert step.damping > 0
    residual = model.matrix @ step.d_x + step.damping * step.d_x + model.gradient
    assert float(residual.norm()) < 1e-10 * float(model.gradient.norm())
    others = torch.randn(200, 12, dtype=F64)
    others = others * (radius / others.norm(dim=1, keepdim=True))
    reductions = -(others @ model.gradient) - 0.5 * ((others @ model.matrix) * others).sum(1)
    assert step.predicted_reduction >= float(reductions.max())


@pytest.mark.parametrize("rank", [12, 7])
def test_step_inside_is_the_minimum_of_least_norm(rank: int) -> None:
    model = random_model(rank=rank)
    step = model.solve_within(1e6)
    assert step.damping == 0
    assert relative(step.d_x, -torch.linalg.pinv(model.matrix, rtol=1e-12) @ model.gradient) < 1e-9


def test_hard_case_goes_to_the_boundary_along_the_negative_curvature() -> None:
    torch.manual_seed(2)
    Q = torch.linalg.qr(torch.randn(4, 4, dtype=F64)).Q
    matrix = Q @ torch.diag(torch.tensor([-1.0, 0.5, 2.0, 3.0], dtype=F64)) @ Q.T
    gradient = Q @ torch.tensor([0.0, 0.3, -0.2, 0.1], dtype=F64)
    step = model_of(matrix, gradient).solve_within(2.0)
    assert step.norm == pytest.approx(2.0, rel=1e-12)
    assert step.damping == pytest.approx(1.0, rel=1e-12)
    assert float((matrix @ step.d_x + step.damping * step.d_x + gradient).norm()) < 1e-12
    easy = model_of(matrix, gradient + 1e-3 * Q[:, 0]).solve_within(2.0)
    assert easy.norm == pytest.approx(2.0, rel=1e-12)
    assert easy.damping > 1.0
    assert relative(easy.d_x.abs(), step.d_x.abs()) < 1.0


def test_more_damping_means_shorter_steps_and_less_promised() -> None:
    model = random_model()
    steps = [model.solve_damped(10.0**k) for k in range(-8, 6)]
    assert all(a.norm > b.norm for a, b in pairwise(steps))
    assert all(a.predicted_reduction > b.predicted_reduction > 0 for a, b in pairwise(steps))
    assert relative(steps[-1].d_x, -model.gradient / 1e5) < 1e-2
    within = model.solve_within(steps[5].norm)
    assert within.damping == pytest.approx(steps[5].damping, rel=1e-8)


def test_damping_is_raised_where_the_matrix_is_not_positive_definite() -> None:
    model = model_of(torch.diag(torch.tensor([1.0, -1e-3], dtype=F64)), torch.ones(2, dtype=F64))
    step = model.solve_damped(1e-8)
    assert 1e-3 < step.damping <= 1e-1
    assert step.predicted_reduction > 0


def test_a_matrix_that_is_not_finite_ends_in_a_step_that_is_not_either() -> None:
    step = model_of(torch.full((2, 2), math.inf, dtype=F64), torch.ones(2, dtype=F64)).solve_damped(1e-3)
    assert not step.norm > 0


# -- rules


def test_nielsens_table() -> None:
    rule = NielsenRule()
    start = Damping(1.0, 2.0)
    for ratio, factor in [
        (1.0, 1 / 3),
        (3.0, 1 / 3),
        (0.75, 1 - 0.5**3),
        (0.5, 1.0),
        (0.25, 1 + 0.5**3),
        (1e-3, 1.994),
    ]:
        damping, growth = rule.update(start, 0.1, ratio)
        assert damping == pytest.approx(factor, rel=1e-3)
        assert growth == 2.0
    bound = start
    for damping, growth in [(2.0, 4.0), (8.0, 8.0), (64.0, 16.0)]:
        bound = rule.update(bound, 0.1, -1.0)
        assert bound == Damping(damping, growth)
    assert rule.update(start, 0.1, math.nan) == Damping(2.0, 4.0)
    assert rule.update(Damping(64.0, 16.0), 0.1, 0.9).growth == 2.0


def test_first_bounds_are_a_thousandth_of_the_diagonal() -> None:
    model = random_model()
    step, bound = NielsenRule().propose(model, None)
    assert bound == Damping(1e-3 * float(model.matrix.diagonal().max()), 2.0)
    within, radius = RadiusRule().propose(model, None)
    assert radius == pytest.approx(step.norm)
    assert relative(within.d_x, step.d_x) < 1e-7


# -- the norm of steps


def two_tensors(scaling: float, units: tuple[float, float] = (1.0, 1.0)) -> tuple[DenseModel, Tensor]:
    """A model of parameters p and q, each in units of its own, and those units, one a direction."""
    torch.manual_seed(2)
    J, r = torch.randn(20, 7, dtype=F64), torch.randn(20, dtype=F64)
    c = torch.tensor([units[0]] * 3 + [units[1]] * 4, dtype=F64)
    directions = all_directions([("p", (3,)), ("q", (2, 2))], c.device)
    J = J * c
    local = GaussNewton(J.T @ J, J.T @ r, torch.zeros(7, 7, dtype=F64), directions, lambda a, b: a)
    return DenseModel(local, scaling), c


@pytest.mark.parametrize("scaling", [0.0, 0.75, 1.0])
def test_norm_of_steps_follows_the_mean_curvature_of_each_tensor(scaling: float) -> None:
    model, _ = two_tensors(scaling, (1.0, 30.0))
    diagonal = model.matrix.diagonal()
    share = float(diagonal[:3].mean() / diagonal[3:].mean())
    assert torch.allclose(model.metric, torch.tensor([share**scaling] * 3 + [1.0] * 4, dtype=F64), rtol=1e-14)
    step = model.solve_damped(0.5)
    want = -torch.linalg.solve(model.matrix + 0.5 * model.metric.diag(), model.gradient)
    assert relative(step.d_x, want) < 1e-12
    assert step.norm == pytest.approx(math.sqrt(float(model.metric @ want.square())), rel=1e-12)
    assert (
        relative(
            model.solve(-model.gradient, 0.3),
            -torch.linalg.solve(model.matrix + 0.3 * model.metric.diag(), model.gradient),
        )
        < 1e-10
    )
    within = model.solve_within(0.5 * step.norm)
    assert within.norm == pytest.approx(0.5 * step.norm, rel=1e-10)
    assert relative(within.d_x, model.solve_damped(within.damping).d_x) < 1e-10
    shorter = [model.directions.expand(step.d_x * 0.5), model.directions.expand(-model.gradient / model.metric)]
    for other in shorter:  # no step of that length is better
        other = other * (0.5 * step.norm / model.length(other))
        assert -(model.gradient @ other + 0.5 * other @ model.matrix @ other) <= within.predicted_reduction


def test_fully_scaled_steps_do_not_depend_on_the_units_of_a_tensor() -> None:
    for solve in (lambda m: m.solve_damped(1e-3 * m.scale), lambda m: m.solve_within(m.first_radius)):
        plain, _ = two_tensors(1.0)
        other, c = two_tensors(1.0, (1e-2, 50.0))
        assert relative(c * solve(other).d_x, solve(plain).d_x) < 1e-10
        assert relative(c * solve(two_tensors(0.0, (1e-2, 50.0))[0]).d_x, solve(plain).d_x) > 0.1


def test_tensor_without_curvature_is_held() -> None:
    model, _ = two_tensors(1.0, (0.0, 1.0))
    assert float(model.metric.min()) == LEAST_SHARE
    assert torch.isfinite(model.solve_damped(1e-3).d_x).all()
    assert torch.equal(
        model_of(torch.zeros(3, 3, dtype=F64), torch.ones(3, dtype=F64)).metric, torch.ones(3, dtype=F64)
    )


# -- the geodesic correction


@pytest.mark.parametrize("name", ["neural ode", "least squares, fewer targets", "multinomial, few classes"])
def test_acceleration_is_that_of_central_differences(name: str) -> None:
    objective, point = make(CASES[name], full=True)
    model = DenseModel(point.gauss_newton)
    step = model.solve_damped(1e-1 * model.scale)
    got = Geodesic(objective, point, model, probe=1e-3).acceleration(step)
    h, v = 1e-3, step.d_x
    ahead, behind = objective.at(point.x + h * v, point), objective.at(point.x - h * v, point)
    second_X = (ahead.outputs - 2 * point.outputs + behind.outputs) / h**2
    second_W = (ahead.W - 2 * point.W + behind.W) / h**2
    local = point._derivatives
    J = point.jacobian()
    J_W = torch.stack(
        [local.head_jacobian.mv(point.linearization.jvp(e)).reshape(-1) for e in torch.eye(v.numel(), dtype=F64)]
    )
    hessian = point.problem.misfit.hessian(point.outputs)
    pulled = J.rmv(hessian(second_X)) + point.problem.head_penalty * J_W @ second_W.reshape(-1)
    damped = point.curvature().dense() + step.damping * torch.eye(v.numel(), dtype=F64)
    assert got is not None
    assert relative(model.directions.expand(got), -torch.linalg.solve(damped, pulled)) < 2e-2


def test_bent_step_keeps_the_outputs_nearer_to_a_line() -> None:
    objective, point = make(CASES["neural ode"], full=True)
    model = DenseModel(point.gauss_newton)
    straight = model.solve_damped(1e-1 * model.scale)
    bent = Dense(objective, True)(point).solve_damped(1e-1 * model.scale)
    assert bent.norm == straight.norm

    def off_the_line(step: Step) -> float:
        """How far the outputs are from where the linear model puts them, seen along the tangents."""
        there, local = objective.at(point.x + step.d_x, point), point.gauss_newton
        moved = local.pull_back(there.outputs - point.outputs, there.W - point.W)
        y = local.directions.reduce(straight.d_x)
        return float((local.directions.reduce(moved) - (local.matrix - local.penalty) @ y).norm())

    assert off_the_line(bent) < 0.8 * off_the_line(straight)
    never = Geodesic(objective, point, model, limit=0.0).solve_damped(1e-1 * model.scale)
    assert torch.equal(never.d_x, straight.d_x)


# -- training


def smooth(samples: int = 60) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    inputs = torch.rand(samples, 3, dtype=F64)
    targets = torch.stack([torch.sin(inputs.sum(1) + k) + inputs[:, 0] ** k for k in range(5)], 1)
    return mlp(5), inputs, targets


def fit(**options: object) -> gnvpro.Result:
    model, inputs, targets = smooth()
    return gnvpro.train(model, inputs, targets, loss="least_squares", work=150, **options)  # type: ignore[arg-type]


def test_every_switch_changes_the_run_and_every_run_reduces_the_loss() -> None:
    variants = [
        {},
        {"damping": False},
        {"geodesic": False},
        {"full": True},
        {"scaling": 0.0},
        {"scaling": 1.0},
    ]
    losses = []
    for switches in variants:
        result = fit(solver="dense", dense=DenseSettings(**switches))  # type: ignore[arg-type]
        history = result.history
        assert {record.solver for record in history[1:]} == {"dense"}
        assert all((record.radius is None) == switches.get("damping", True) for record in history[1:])
        assert all(record.damping is not None for record in history[1:])
        assert history[-1].loss < 1e-2 * history[0].loss
        assert result.work <= 150
        losses.append(history[-1].loss)
    assert len(set(losses)) == len(losses)
    assert losses[0] < fit(solver="krylov").history[-1].loss


def test_a_run_costs_a_matrix_for_each_accepted_point_and_two_passes_a_trial() -> None:
    history = fit(solver="dense").history
    trials = len(history) - 1
    told = [r.gradient_norm is not None for r in history]
    matrices = 1 + sum(r.accepted and known for r, known in zip(history[1:], told[1:], strict=True))
    assert history[-1].work == 1 + 2 * trials + 4 * matrices


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = fit(solver="dense"), fit(solver="dense")
    assert first.history.column("loss") == second.history.column("loss")


@pytest.mark.parametrize("batch_size", [None, 25])
@pytest.mark.parametrize("damping", [True, False])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, damping: bool, batch_size: int | None
) -> None:
    options = {"solver": "dense", "dense": DenseSettings(damping=damping), "batch_size": batch_size}
    whole = fit(**options).history
    options |= {"checkpoint": tmp_path / "run", "checkpoint_every": 1, "resume": True}

    def interrupt(record: gnvpro.Record) -> None:
        if record.iteration % 6 == 3:
            raise KeyboardInterrupt

    while True:
        try:
            result = fit(**options, on_iteration=interrupt)
            break
        except KeyboardInterrupt:
            continue
    assert result.history.column("loss") == whole.column("loss")
    assert result.history.column("work") == whole.column("work")


def test_auto_says_what_it_chose() -> None:
    assert fit().history[-1].solver == "dense"
    assert fit(method="gauss-newton").history[-1].solver == "krylov"
    model = nn.Sequential(nn.Linear(3, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 2)).double()
    _, inputs, targets = smooth(8)
    history = gnvpro.train(model, inputs, targets[:, :2], loss="least_squares", work=200).history
    assert history[-1].solver == "hybrid"


def test_dense_is_refused_where_it_cannot_work() -> None:
    inputs = torch.randn(6, 5, 3, dtype=F64)
    model = nn.Sequential(nn.Linear(3, 4, dtype=F64), nn.Tanh(), nn.Linear(4, 2, dtype=F64))
    targets = torch.randn(6, 5, 2, dtype=F64)
    with pytest.raises(ValueError, match="many positions of a sample"):
        gnvpro.train(model, inputs, targets, loss="least_squares", solver="dense")
    history = gnvpro.train(model, inputs, targets, loss="least_squares", work=200).history
    assert history[-1].solver == "hybrid"
    model, inputs, targets = smooth(8)
    with pytest.raises(ValueError, match="method='gnvpro'"):
        gnvpro.train(model, inputs, targets, loss="least_squares", solver="dense", method="gauss-newton")
    with pytest.raises(ValueError, match="do not fit"):
        gnvpro.train(model, inputs, targets, loss="least_squares", solver="dense", memory=1e3)


def test_float32_networks_train() -> None:
    model, inputs, targets = smooth()
    result = gnvpro.train(model.float(), inputs.float(), targets, loss="least_squares", solver="dense", work=80)
    assert result.history[-1].loss < 1e-1 * result.history[0].loss


def test_classification_trains() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(50, 3, dtype=F64)
    labels = (inputs.square().sum(1) > 2.5).long()
    for loss, outputs in (("logistic", 1), ("multinomial", 2)):
        result = gnvpro.train(mlp(outputs), inputs, labels, loss=loss, solver="dense", work=80)
        assert result.history[-1].accuracy == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("loss", "probes"), [("least_squares", 1), ("logistic", 0)])
def test_geodesic_probes_are_made_for_least_squares_only_unless_asked_for(loss: str, probes: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(20, 3, dtype=F64)
    labels = (inputs.sum(1) > 0).to(F64)
    for switch, extra in ((None, probes), (True, 1), (False, 0)):
        history = gnvpro.train(
            mlp(1), inputs, labels, loss=loss, solver="dense", iterations=1, dense=DenseSettings(geodesic=switch)
        ).history
        matrix = 1 if loss == "least_squares" else 4  # Kaufman's, and the full one
        assert history[1].work == 1 + matrix + 1 + extra + matrix * history[1].accepted


def test_choose_solver_counts_flops() -> None:
    objective, _ = make(CASES["neural ode"])
    assert choose_solver(objective.problem, LS, DenseSettings()) == "dense"
    assert choose_solver(objective.problem, NewtonKrylov(), DenseSettings()) == "hybrid"
    objective.problem.network.memory = 10.0
    assert choose_solver(objective.problem, LS, DenseSettings()) == "hybrid"
