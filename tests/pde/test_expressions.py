"""The algebra: values against plain autograd, linearity at random, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import gnvpro
from gnvpro import pde
from gnvpro.pde.equation import Equation
from gnvpro.pde.system import System


def field(outputs: int = 1, seed: int = 0) -> pde.Field:
    torch.manual_seed(seed)
    u = pde.Field(gnvpro.networks.MLP(2, [6, 5], torch.nn.Tanh, dtype=torch.float64), outputs=outputs)
    u.store_head(torch.randn(outputs, 6, dtype=torch.float64))
    return u


def residuals(u: pde.Field, equations: list[Equation]) -> list[Tensor]:
    """F - values, as the system has them."""
    system = System(u, equations, [float(e.rows) for e in equations])
    x = system.x()
    return system.by_equation(system.residual(system.carry(x), x, u.W()))


def gradients(u: pde.Field, points: Tensor, k: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """u, its gradient and its second derivatives by autograd."""
    points = points.clone().requires_grad_()
    value = u(points)[:, k]
    (first,) = torch.autograd.grad(value.sum(), points, create_graph=True)
    second = torch.stack(
        [torch.autograd.grad(first[:, i].sum(), points, retain_graph=True)[0] for i in range(points.shape[1])], 1
    )
    return value.detach(), first.detach(), second.detach()


POINTS = torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_expressions_are_what_they_say() -> None:
    u = field()
    value, first, second = gradients(u, POINTS)
    x = POINTS
    normals = torch.randn(9, 2, dtype=torch.float64)
    cases = {
        "value": (+u, value),
        "negative": (-u, -value),
        "mixed derivative": (pde.d(u, 0, 1), second[:, 0, 1]),
        "laplacian": (pde.laplacian(u), second[:, 0, 0] + second[:, 1, 1]),
        "laplacian of one axis": (pde.laplacian(u, axes=[1]), second[:, 1, 1]),
        "sum with numbers": (2 * u - pde.d(u, 0) / 4 + 1, 2 * value - first[:, 0] / 4 + 1),
        "right-hand operators": (3 - u, 3 - value),
        "quotient": (1.0 / (2 + u**2), 1 / (2 + value**2)),
        "tensor times field": (x[:, 0] * u, x[:, 0] * value),
        "field times tensor": (u * x[:, :1], x[:, 0] * value),
        "tensor minus field": (x[:, 0] - u, x[:, 0] - value),
        "function of x": ((lambda y: y[:, 1].exp()) * pde.d(u, 1), x[:, 1].exp() * first[:, 1]),
        "normals": (pde.directional(u, normals), (first * normals).sum(1)),
        "normals by a function": (pde.directional(u, lambda y: 2 * y), (first * 2 * x).sum(1)),
        "dot with numbers": (pde.gradient(u).dot([1.0, -2.0]), first[:, 0] - 2 * first[:, 1]),
        "burgers": (u * pde.d(u, 0), value * first[:, 0]),
        "cube": (u**3, value**3),
        "sine": (pde.sin(u), value.sin()),
        "exponential": (pde.exp(-u) + pde.cos(u) + pde.tanh(u), (-value).exp() + value.cos() + value.tanh()),
        "root and logarithm": (pde.sqrt(4 + u**2) + pde.log(9 + u), (4 + value**2).sqrt() + (9 + value).log()),
        "product rule": (pde.d(u * u, 0), 2 * value * first[:, 0]),
        "chain rule": (pde.d(pde.sin(u), 1), value.cos() * first[:, 1]),
        "conservation form": (
            pde.divergence(pde.gradient(u) * (lambda y: y[:, 0] * y[:, 1])),
            x[:, 0] * x[:, 1] * (second[:, 0, 0] + second[:, 1, 1]) + x[:, 1] * first[:, 0] + x[:, 0] * first[:, 1],
        ),
        "eikonal": (pde.dot(pde.gradient(u), pde.gradient(u)), first.square().sum(1)),
        "laplacian of a function of u": (
            pde.laplacian(u**2),
            2 * first.square().sum(1) + 2 * value * (second[:, 0, 0] + second[:, 1, 1]),
        ),
    }
    for name, (expression, want) in cases.items():
        (got,) = residuals(u, [Equation(expression, POINTS, 0.0)])
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def test_third_derivatives_of_a_laplacian() -> None:
    u = field()
    (got,) = residuals(u, [Equation(pde.d(pde.laplacian(u), 0), POINTS, 0.0)])
    h = 1e-5
    ahead, behind = (gradients(u, POINTS + torch.tensor([s, 0.0]))[2] for s in (h, -h))
    lap = (ahead.diagonal(dim1=1, dim2=2).sum(1) - behind.diagonal(dim1=1, dim2=2).sum(1)) / (2 * h)
    torch.testing.assert_close(got, lap, rtol=1e-5, atol=1e-7)


def test_outputs_of_a_system() -> None:
    u = field(outputs=2)
    (got,) = residuals(u, [Equation(pde.d(u[0], 0) + 2 * u[1] * u[-2], POINTS, 0.0)])
    v0, first, _ = gradients(u, POINTS, 0)
    v1 = gradients(u, POINTS, 1)[0]
    torch.testing.assert_close(got, first[:, 0] + 2 * v1 * v0, rtol=1e-10, atol=1e-12)


def test_periodic_conditions_compare_points() -> None:
    u = field()
    left, right = torch.rand(4, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)
    want = (u(left) - u(right))[:, 0].detach()
    for points in (None, left):
        (got,) = residuals(u, [Equation(u.at(left) - u.at(right), points, 0.0)])
        torch.testing.assert_close(got, want)
    (got,) = residuals(u, [Equation(pde.d(u, 1).at(left) - pde.d(u, 1).at(right), None, 0.0)])
    torch.testing.assert_close(got, gradients(u, left)[1][:, 1] - gradients(u, right)[1][:, 1])


def test_integrals_are_weighted_sums() -> None:
    u = field()
    nodes, weights = torch.rand(3, 5, 2, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    values = u(nodes.reshape(-1, 2)).detach().reshape(3, 5)
    (one,) = residuals(u, [Equation(pde.integral(u, nodes[0], weights), None, 0.25)])
    torch.testing.assert_close(one, (values[:1] @ weights) - 0.25)
    (three,) = residuals(u, [Equation(pde.integral(u**2, nodes, weights), None, 0.0)])
    torch.testing.assert_close(three, values.square() @ weights)
    (mixed,) = residuals(u, [Equation(u - pde.integral(u, nodes[0], weights), POINTS, 0.0)])
    torch.testing.assert_close(mixed, u(POINTS)[:, 0].detach() - values[0] @ weights)


@pytest.mark.parametrize("seed", range(5))
def test_linear_expressions_are_linear(seed: int) -> None:
    """F(a v + b w) = a F(v) + b F(w) for random expressions, heads and numbers, exactly if the degree is at most one."""
    torch.manual_seed(seed)
    u = field(outputs=2, seed=seed)
    pieces = [
        u[0],
        u[1],
        pde.d(u[0], 0),
        pde.d(u[1], 0, 1),
        pde.laplacian(u[0]),
        pde.directional(u[1], lambda x: x.cos()),
    ]
    expression = pieces[0] * 0.0
    for index in torch.randperm(len(pieces))[:4].tolist():
        expression = expression + pieces[index] * float(torch.randn(())) * (lambda x: 1 + x[:, 0] ** 2)
    equation = Equation(expression, POINTS, 0.0)
    assert equation.linear
    heads = torch.randn(2, 2, 6, dtype=torch.float64)
    a, b = torch.randn(2, dtype=torch.float64)
    made = []
    for W in (heads[0], heads[1], a * heads[0] + b * heads[1]):
        u.store_head(W)
        made.append(residuals(u, [equation])[0])
    torch.testing.assert_close(made[2], a * made[0] + b * made[1], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "make",
    [lambda u: u * u, lambda u: u**2, lambda u: pde.sin(u), lambda u: u * pde.d(u, 0), lambda u: 1 / u],
    ids=["product", "power", "sine", "convection", "quotient"],
)
def test_other_expressions_are_known_not_to_be_linear(make) -> None:  # type: ignore[no-untyped-def]
    assert not Equation(make(field()), POINTS, 0.0).linear


def test_a_constant_does_not_make_an_equation_nonlinear() -> None:
    u = field()
    assert Equation(pde.Constant(2.0) * pde.laplacian(u), POINTS, 0.0).linear


@pytest.mark.parametrize("nonlinear", [False, True])
def test_rows_of_the_head_and_of_theta_are_derivatives_of_the_residuals(nonlinear: bool) -> None:
    u = field()
    kappa = pde.Constant(0.7)
    nodes = torch.rand(5, 2, dtype=torch.float64)
    expression = (
        kappa * pde.laplacian(u) + (u * pde.d(u, 0) if nonlinear else pde.d(u, 0)) + pde.integral(kappa * u, nodes, 0.2)
    )
    equations = [Equation(expression, POINTS, 0.3), Equation(u.at(POINTS[:4]) - u.at(POINTS[4:8]), None, 0.0)]
    system = System(u, equations)
    x, W = system.x(), u.W()
    carried = system.carry(x)
    assembled = system.assemble(carried, x, W)
    J = system.jacobian(carried, x, W, assembled.parts)
    torch.testing.assert_close(assembled.residual, system.residual(carried, x, W), rtol=1e-12, atol=1e-13)
    h = 1e-6
    for _ in range(3):
        dx, dW = torch.randn_like(x), torch.randn_like(W)
        ahead = system.residual(system.carry(x + h * dx), x + h * dx, W + h * dW)
        behind = system.residual(system.carry(x - h * dx), x - h * dx, W - h * dW)
        torch.testing.assert_close(
            J @ dx + assembled.Z @ dW.reshape(-1), (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-7
        )


def test_a_manufactured_solution_satisfies_its_rows() -> None:
    """Features that hold the solution itself: the rows must give the right-hand side, to rounding."""

    class Waves(torch.nn.Module):
        n_inputs = 2

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(math.pi * x[:, 0]).sin() * (math.pi * x[:, 1]).sin(), x[:, 0] ** 3 * x[:, 1]], 1)

    u = pde.Field(Waves())
    u.store_head(torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64))
    x = POINTS
    f = 2 * math.pi**2 * (math.pi * x).sin().prod(1) - 12 * x[:, 0] * x[:, 1]
    (got,) = residuals(u, [Equation(-pde.laplacian(u), x, f)])
    assert float(got.abs().max()) < 1e-12


def test_values_may_be_an_expression() -> None:
    """Both sides hold the field or an unknown constant; before, the present values of the field were taken as given."""
    u, kappa = field(), pde.Constant(0.3)
    value, first, _ = gradients(u, POINTS)
    pairs = [(pde.d(u, 0), u), (pde.d(u, 0), 2 * pde.d(u, 1)), (u**2, kappa)]
    want = [first[:, 0] - value, first[:, 0] - 2 * first[:, 1], value**2 - 0.3]
    equations = [Equation(left, POINTS, right) for left, right in pairs]
    for got, wanted in zip(residuals(u, equations), want, strict=True):
        assert torch.allclose(got, wanted, atol=1e-14)
    assert [e.linear for e in equations] == [True, True, False]
    assert equations[2].constants == [kappa]


def test_arrays_are_taken_for_tensors() -> None:
    u = field()
    _, first, _ = gradients(u, POINTS)
    factor = np.linspace(0.1, 1.0, 9)
    want = torch.from_numpy(factor) * first[:, 0] - 0.1
    for expression in (factor * pde.d(u, 0), pde.d(u, 0) * factor, np.float64(1.0) * (factor[:, None] * pde.d(u, 0))):
        (got,) = residuals(u, [Equation(expression, POINTS.numpy(), np.full(9, 0.1))])
        assert torch.allclose(got, want, atol=1e-15)


# -- what is refused


def test_points_of_another_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="points have 3 coordinates, the field takes 2"):
        Equation(+field(), torch.rand(5, 3), 0.0)


def test_points_that_are_not_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="points are rows of coordinates"):
        Equation(+field(), torch.rand(5), 0.0)


def test_an_expression_without_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match="no field in it"):
        Equation(pde.Constant(1.0) * 2, POINTS, 0.0)
    with pytest.raises(ValueError, match="expression with a field in it, got float"):
        Equation(3.0, POINTS, 0.0)  # type: ignore[arg-type]


def test_two_fields_in_one_equation_are_refused() -> None:
    with pytest.raises(ValueError, match="outputs of one field"):
        Equation(field() + field(), POINTS, 0.0)


def test_values_that_are_not_finite_are_refused() -> None:
    values = torch.zeros(9, dtype=torch.float64)
    values[3] = math.nan
    with pytest.raises(ValueError, match=r"1 that are not finite \(of 9\)"):
        Equation(+field(), POINTS, values)
    with pytest.raises(ValueError, match="not finite"):
        Equation(+field(), POINTS, lambda x: x[:, 0] / 0)


def test_values_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one number for each of the 9 points"):
        Equation(+field(), POINTS, torch.zeros(8))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_weights_that_weigh_nothing_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be above 0"):
        Equation(+field(), POINTS, 0.0, weight=weight)


def test_weights_by_point_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="multiply the expression by a function of x"):
        Equation(+field(), POINTS, 0.0, weight=torch.ones(9))  # type: ignore[arg-type]


@pytest.mark.parametrize("values", ["zero", None, 1j, torch.ones(9) * 1j, [1.0, "a"]])
def test_values_that_are_no_real_numbers_are_refused(values: object) -> None:
    with pytest.raises(TypeError, match="the values of an equation must be"):
        Equation(+field(), POINTS, values)


@pytest.mark.parametrize("points", [pde.points.Box([0, 0], [1, 1]), "inside", torch.rand])
def test_points_that_are_none_are_refused(points: object) -> None:
    with pytest.raises(TypeError, match=r"\.inside\(900\)"):
        Equation(+field(), points, 0.0)


def test_a_vector_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="an equation for each component"):
        Equation(pde.gradient(field()), POINTS, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", ["x", 1.0, True, [0, 1]])
def test_an_axis_that_is_no_whole_number_is_refused(axis: object) -> None:
    with pytest.raises(TypeError, match="an axis is a whole number"):
        pde.d(field(), axis)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an axis is a whole number"):
        pde.laplacian(field(), axes=[axis])  # type: ignore[list-item]


def test_axes_of_a_laplacian_are_a_list_of_different_ones() -> None:
    with pytest.raises(ValueError, match="counts once"):
        pde.laplacian(field(), axes=[0, 0])
    with pytest.raises(ValueError, match="axes are empty"):
        pde.laplacian(field(), axes=[])
    with pytest.raises(TypeError, match="axes are a list"):
        pde.laplacian(field(), axes=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("output", ["p", slice(0, 2), True])
def test_an_output_is_a_whole_number(output: object) -> None:
    with pytest.raises(TypeError, match="an output of the field is a whole number"):
        field(2)[output]  # type: ignore[index]


def test_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no axis 2"):
        pde.d(field(), 2)
    with pytest.raises(ValueError, match="there is no axis 5"):
        pde.laplacian(field(), axes=[5])
    with pytest.raises(ValueError, match="needs an axis"):
        pde.d(field())


def test_a_field_of_two_outputs_must_say_which() -> None:
    u = field(outputs=2)
    with pytest.raises(ValueError, match=r"say which one, as in u\[0\]"):
        _ = u + 1
    with pytest.raises(IndexError, match=r"there is no u\[2\]"):
        _ = u[2]


def test_tensors_of_values_cannot_be_differentiated() -> None:
    with pytest.raises(ValueError, match="give the coefficient as a function of x"):
        pde.d(POINTS[:, 0] * field(), 0)


def test_torch_functions_do_not_take_expressions() -> None:
    with pytest.raises(TypeError, match=r"pde\.sin"):
        torch.sin(field() * 2)  # type: ignore[call-overload]


def test_points_are_needed_where_the_field_stands_alone() -> None:
    with pytest.raises(ValueError, match="no points of its own"):
        Equation(+field(), None, 0.0)


def test_rows_of_different_length_are_refused() -> None:
    u = field()
    with pytest.raises(ValueError, match="the same number of rows"):
        Equation(u - u.at(POINTS[:4]), POINTS, 0.0)


def test_a_network_in_single_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"call \.double\(\)"):
        pde.Field(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()))


def test_features_must_be_rows() -> None:
    with pytest.raises(ValueError, match="must map points"):
        pde.Field(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Flatten(0)).double())
