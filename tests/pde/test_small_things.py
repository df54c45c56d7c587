"""Expressions as functions of points, functions of other libraries, unknown eigenvalues, and values that are no numbers."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from tests.equation_cases import ENDS, LINE, SQUARE, network
from torch import Tensor

from gnvpro import Status, pde
from gnvpro.policy import EquationPolicy, Policy

F64 = torch.float64
SHORT = Policy(equations=EquationPolicy(trial_operations=2e9))
X = torch.rand(7, 2, dtype=F64, generator=torch.Generator().manual_seed(1))


def field(outputs: int = 1) -> pde.Field:
    u = pde.Field(network(2, [6, 5]), outputs=outputs)
    u.store_head(torch.randn(outputs, 6, dtype=F64, generator=torch.Generator().manual_seed(2)))
    return u


def slopes(u: pde.Field, k: int = 0) -> Tensor:
    x = X.clone().requires_grad_()
    return torch.autograd.grad(u(x)[:, k].sum(), x)[0]


def test_any_expression_can_be_evaluated() -> None:
    u = field()
    value, slope = u(X).detach(), slopes(u)
    cases = {
        "derivative": (pde.d(u, 0), slope[:, :1]),
        "product": (u * pde.d(u, 1), value * slope[:, 1:]),
        "flux": (pde.directional(u, lambda x: 2 * x), (2 * X * slope).sum(1, keepdim=True)),
        "function": (pde.sin(u) + (lambda x: x[:, 0]), value.sin() + X[:, :1]),
        "gradient": (pde.gradient(u), slope),
        "one output": (field(2)[1], field(2)(X).detach()[:, 1:]),
    }
    for name, (expression, want) in cases.items():
        torch.testing.assert_close(expression(X), want, rtol=1e-12, atol=1e-13, msg=name)


def test_constants_are_evaluated_at_their_current_values() -> None:
    u, rate = field(), pde.Constant(2.0)
    flux = rate * u
    rate.value = -3.0
    torch.testing.assert_close(flux(X), -3.0 * u(X).detach())


def test_an_expression_follows_the_network_that_solve_chose() -> None:
    u = pde.Field(LINE)
    slope = pde.d(u, 0)
    equations = [pde.Equation(pde.d(u, 0, 0), LINE.inside(80), 2.0), pde.Equation(u, ENDS, 0.0)]
    pde.solve(u, equations, iterations=3, policy=SHORT)
    torch.testing.assert_close(slope(ENDS), torch.tensor([[-1.0], [1.0]], dtype=F64), rtol=1e-6, atol=1e-6)


def test_points_of_another_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="3 coordinates, the field takes 2"):
        pde.d(field(), 0)(torch.zeros(4, 3, dtype=F64))


def test_an_absolute_value_has_the_sign_as_its_slope() -> None:
    u = field()
    u.head.bias.data.add_(0.85)
    value, slope = u(X).detach(), slopes(u)
    assert bool((value < 0).any())
    assert bool((value > 0).any())
    torch.testing.assert_close(abs(u)(X), value.abs())
    torch.testing.assert_close(pde.d(abs(u), 0)(X), value.sign() * slope[:, :1])
    assert not pde.Equation(abs(u), X).linear


def test_an_unknown_exponent_is_unknown() -> None:
    """float(p) exists, so u**p used to be u to the power of the first value."""
    u, p = field(), pde.Constant(1.0)
    base = 2 + u**2
    power = base**p
    p.value = 2.5
    torch.testing.assert_close(power(X), base(X) ** 2.5)


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda u: np.exp(u), r"np\.exp does not know expressions; write pde\.exp\(u\)"),
        (lambda u: np.abs(u), r"write abs\(u\)"),
        (lambda u: np.arctan(pde.d(u, 0)), "use the functions of gnvpro.pde"),
        (lambda u: torch.exp(u), r"torch\.exp does not know expressions; write pde\.exp\(u\)"),
        (lambda u: math.sin(u), r"pde\.sin\(u\) instead of math\.sin\(u\)"),
    ],
    ids=["numpy", "absolute", "unknown", "torch", "math"],
)
def test_functions_of_other_libraries_name_ours(make, instead: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match=instead):
        make(field())


def test_arrays_on_the_left_are_coefficients() -> None:
    u = field()
    factors = np.linspace(1, 2, 7)
    value = u(X).detach()[:, 0]
    for made, want in (
        (factors * u, torch.tensor(factors) * value),
        (factors - u, torch.tensor(factors) - value),
        (factors / (2 + u**2), torch.tensor(factors) / (2 + value**2)),
        (np.float64(2) * u, 2 * value),
    ):
        torch.testing.assert_close(made(X)[:, 0], want)


def hole(x: Tensor) -> Tensor:
    return torch.where(x[:, 0] > 0.5, math.nan, 1.0)


def test_values_that_are_no_numbers_are_located() -> None:
    u = pde.Field(network(1, [4]))
    points = torch.tensor([[0.25], [0.75], [0.9]], dtype=F64)
    with pytest.raises(ValueError, match=r"hold 2 that are not finite \(of 3\), the first at \(0.75\)"):
        pde.Equation(u, points, hole)
    bad = pde.Equation(hole * pde.d(u, 0), points, 1.0, name="inside")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"inside has no finite value .* at 2 of 3 points, the first \(0.75\)"):
            pde.solve(u, [bad, pde.Equation(u, ENDS, 0.0)], iterations=1)


def eigenvalue(u: pde.Field, first: float) -> tuple[pde.Constant, list[pde.Equation]]:
    """-u'' = lambda u on (0, 1): lambda = (k pi)^2."""
    value = pde.Constant(first, "eigenvalue")
    nodes, weights = torch.linspace(0, 1, 41, dtype=F64)[:, None], torch.full((41,), 1 / 40, dtype=F64)
    return value, [
        pde.Equation(-pde.d(u, 0, 0) - value * u, LINE.inside(60)),
        pde.Equation(u, ENDS, 0.0),
        pde.Equation(pde.integral(u * u, nodes, weights), None, 1.0),
    ]


@pytest.mark.parametrize(("first", "k"), [(7.0, 1), (45.0, 2), (80.0, 3)])
def test_the_eigenvalue_nearest_to_the_first_value_is_found(first: float, k: int) -> None:
    """From u = 0 no step exists: integral(u u) has no slope there."""
    u = pde.Field(network(1, [14]))
    value, equations = eigenvalue(u, first)
    result = pde.solve(u, equations, iterations=40)
    assert float(value) == pytest.approx((k * math.pi) ** 2, rel=1e-6)
    assert result.solved
    assert float(u(torch.tensor([[0.5 / k]], dtype=F64)).detach().abs()) == pytest.approx(math.sqrt(2), rel=1e-4)


def test_an_eigenvalue_of_a_field_with_a_domain_is_found() -> None:
    u = pde.Field(LINE)
    value, equations = eigenvalue(u, 10.0)
    result = pde.solve(u, equations, iterations=20, policy=SHORT)
    assert float(value) == pytest.approx(math.pi**2, rel=1e-6)
    assert result.status is not Status.NOT_SOLVED


def test_trials_end_if_no_candidate_has_a_step_left() -> None:
    """They used to go round for ever, without an operation to count."""
    u = pde.Field(LINE)
    equations = [pde.Equation(pde.d(u, 0, 0), LINE.inside(80)), pde.Equation(u, ENDS, 0.0)]
    assert pde.solve(u, equations, iterations=2, policy=SHORT).error == 0.0


def test_a_flux_is_evaluated_on_the_boundary() -> None:
    """Green's theorem: the flux out of the square is the integral of the source."""
    u = pde.Field(network(2, [20]))
    equations = [pde.Equation(-pde.laplacian(u), SQUARE.inside(200), 1.0), pde.Equation(u, SQUARE.boundary(80), 0.0)]
    pde.solve(u, equations, iterations=10)
    sides = SQUARE.boundary(400)
    flux = -pde.directional(u, SQUARE.normal(sides.points))(sides.points)
    assert 4 * float(flux.mean()) == pytest.approx(1.0, rel=2e-2)
