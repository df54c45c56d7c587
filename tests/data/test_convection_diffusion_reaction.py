"""The convection-diffusion-reaction solver: orders, exact decay, an independent discretisation, what it refuses."""

from itertools import islice

import numpy as np
import pytest
import skfem
import torch
from scipy.sparse.linalg import splu

from gnvpro.data import cdr
from gnvpro.data import convection_diffusion_reaction as pde
from gnvpro.network.evaluation import one_thread

INPUTS = cdr.draw(3, 7)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def still(x):
    return np.zeros_like(x)


def as_state(array):
    return torch.from_numpy(np.ascontiguousarray(array, dtype=float))[None]


def state_after(steps, transport, source, reaction, start, dt):
    return next(islice(pde.march(transport, source, reaction, start, dt), steps - 1, None))[0].numpy()


def grid(mesh):
    x = np.linspace(0, 1, mesh)
    return x[:, None], x[None, :]


def paper_reactions(u):
    """sum-ready r_ij(u), typed from the paper: C exp(ln(C^-2) s) / (1 + C exp(ln(C^-2) s))."""
    c = 1e-3 / (1 - 1e-3)
    levels = [5 + 6 * (i - 1) for i in range(1, 12)]
    rows = []
    for i in range(11):
        for j in range(i + 1, 11):
            z = c * np.exp(np.log(c**-2.0) * (u - levels[i]) / (levels[j] - levels[i]))
            rows.append(z / (1 + z))
    return np.stack(rows, -1)


class TwoDimensional:
    """Assemble the problem in two dimensions by scikit-fem: mass, transport, places of its nodes."""

    def __init__(self, mesh):
        x = np.linspace(0, 1, mesh)
        self.basis = skfem.Basis(skfem.MeshQuad.init_tensor(x, x), skfem.ElementQuad1(), intorder=8)
        self.mass = skfem.BilinearForm(lambda u, v, w: u * v).assemble(self.basis)

        @skfem.BilinearForm
        def transport(u, v, w):
            v1, v2 = 4.5 * (1 + 0.8 * np.sin(2 * np.pi * w.x[0])), 5.5 * (0.5 - w.x[1])
            diffusion = 0.5 * (u.grad[0] * v.grad[0] + u.grad[1] * v.grad[1])
            return diffusion + (v1 * u.grad[0] + v2 * u.grad[1]) * v

        self.transport = transport.assemble(self.basis)
        i, j = np.rint(self.basis.mesh.p * (mesh - 1)).astype(int)
        self.at = (i, j)

    def load(self, t):
        @skfem.LinearForm
        def source(v, w):
            x, y = w.x

            def gauss(a, b):
                return np.exp(-200 * ((x - a) ** 2 + (y - b) ** 2))

            return v * (
                1000 * (1.0 + 0.3 * np.cos(2 * np.pi * t)) * gauss(0.2, 0.2)
                + 800 * (1.2 + 0.4 * np.sin(4 * np.pi * t)) * gauss(0.6, 0.8)
                + 900 * (0.9 + 0.2 * np.sin(6 * np.pi * t)) * gauss(0.3, 0.6)
            )

        return source.assemble(self.basis)


def test_implicit_step_is_that_of_a_two_dimensional_assembly():
    other, dt = TwoDimensional(31), 0.01
    right = np.random.default_rng(0).standard_normal((31, 31))
    expected = splu((other.mass + dt * other.transport).tocsc()).solve(other.mass @ right[other.at])
    got = pde.problem(31).transport.implicit_step(dt)(as_state(right))[0].numpy()[other.at]
    assert np.abs(got - expected).max() < 1e-11 * np.abs(expected).max()


@pytest.mark.slow
def test_each_nonlinear_step_satisfies_the_two_dimensional_equations_to_1e_10():
    other, dt = TwoDimensional(41), 0.01
    states = [torch.zeros(3, 41, 41, dtype=torch.float64), *pde.problem(41).states(INPUTS)]
    assert len(states) == 51
    x1, x2 = other.basis.mesh.p
    rbar = 500 * (0.8 + 0.2 * np.sin(2 * np.pi * x1) * np.cos(2 * np.pi * x2) + x2)
    reacted = 0.0
    for step in (1, 2, 10, 39, 45, 50):
        for sample, y in enumerate(INPUTS):
            old, new = (states[s][sample].numpy()[other.at] for s in (step - 1, step))
            reaction = rbar * (paper_reactions(new) @ y)
            known = other.mass @ (old + dt * reaction) + dt * other.load(step * dt)
            residual = other.mass @ new + dt * (other.transport @ new) - known
            assert np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(known)
            reacted = max(reacted, reaction.max())
    assert reacted > 50  # the reaction took part


def test_fourier_mode_decays_exactly_when_reaction_and_flow_are_off():
    # linear elements with their mass matrix have the eigenvalue 6/h^2 (1 - cos k pi h)/(2 + cos k pi h) for cos k pi x
    mesh, dt, steps, k, l = 31, 0.005, 40, 2, 3
    transport = pde.Transport(pde.Line.of(mesh, 0.5, still), pde.Line.of(mesh, 0.5, still))
    x1, x2 = grid(mesh)
    mode = np.cos(k * np.pi * x1) * np.cos(l * np.pi * x2)
    end = state_after(steps, transport, lambda t: torch.zeros(()), torch.zeros_like, as_state(mode), dt)
    h = 1 / (mesh - 1)
    rate = sum(6 / h**2 * (1 - np.cos(m * np.pi * h)) / (2 + np.cos(m * np.pi * h)) for m in (k, l))
    assert end == pytest.approx(mode / (1 + dt * 0.5 * rate) ** steps, abs=1e-13)


def test_fourier_mode_tends_to_the_exponential_decay():
    # time error of backward Euler quarters with dt, space error quarters with h: together second order in h
    errors = []
    for mesh, steps in ((11, 10), (21, 40), (41, 160)):
        transport = pde.Transport(pde.Line.of(mesh, 0.5, still), pde.Line.of(mesh, 0.5, still))
        x1, x2 = grid(mesh)
        mode = np.cos(np.pi * x1) * np.cos(np.pi * x2)
        end = state_after(steps, transport, lambda t: torch.zeros(()), torch.zeros_like, as_state(mode), 0.1 / steps)
        errors.append(np.abs(end - mode * np.exp(-0.5 * 2 * np.pi**2 * 0.1)).max())
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 1.9).all(), (errors, orders)


def reaction_on(mesh):
    table, (x1, x2) = pde.Reaction(INPUTS[:1]), grid(mesh)
    rbar = torch.from_numpy(500 * (0.8 + 0.2 * np.sin(2 * np.pi * x1) * np.cos(2 * np.pi * x2) + x2))
    return lambda u: rbar * table(u)


def manufactured_in_space(mesh):
    """u = t (150 + 100 cos(pi x1) cos(2 pi x2)): linear in t, so backward Euler is exact and the error is spatial."""
    x1, x2 = grid(mesh)
    c1, c2, s1, s2 = np.cos(np.pi * x1), np.cos(2 * np.pi * x2), np.sin(np.pi * x1), np.sin(2 * np.pi * x2)
    shape = 150 + 100 * c1 * c2
    minus_laplacian = 100 * 5 * np.pi**2 * c1 * c2
    v1, v2 = 4.5 * (1 + 0.8 * np.sin(2 * np.pi * x1)), 5.5 * (0.5 - x2)
    drift = -100 * (v1 * np.pi * s1 * c2 + v2 * 2 * np.pi * c1 * s2)
    reaction = reaction_on(mesh)

    def source(t):
        return as_state(shape + t * (0.5 * minus_laplacian + drift)) - reaction(as_state(t * shape))

    end = state_after(10, pde.problem(mesh).transport, source, reaction, as_state(0 * shape), 0.01)
    return np.abs(end - 0.1 * shape).max()


def test_manufactured_solution_converges_with_second_order_in_space():
    errors = [manufactured_in_space(mesh) for mesh in (21, 41, 81)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 1.9).all(), (errors, orders)
    assert (orders < 2.2).all(), (errors, orders)


def manufactured_in_time(steps):
    """u = 20 + 15 sin(30 t), the same everywhere: the elements are exact and the error is that in time."""
    mesh, dt = 21, 0.05 / steps
    reaction = reaction_on(mesh)

    def exact(t):
        return torch.full((1, mesh, mesh), 20 + 15 * np.sin(30 * t), dtype=torch.float64)

    def source(t):
        return 450 * np.cos(30 * t) - reaction(exact(t))

    end = state_after(steps, pde.problem(mesh).transport, source, reaction, exact(0.0), dt)
    return np.abs(end - exact(0.05)[0].numpy()).max()


@pytest.mark.slow
def test_manufactured_solution_converges_with_first_order_in_time():
    errors = [manufactured_in_time(steps) for steps in (40, 80, 160)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 0.95).all(), (errors, orders)
    assert (orders < 1.1).all(), (errors, orders)


def test_reactions_are_the_papers_formula_in_the_papers_order():
    u = np.linspace(0, 80, 301)
    r, slope = pde.reaction_functions(u)
    assert r.shape == (301, 55)
    assert r == pytest.approx(paper_reactions(u), abs=1e-13)
    step = 1e-5
    numeric = (pde.reaction_functions(u + step)[0] - pde.reaction_functions(u - step)[0]) / (2 * step)
    assert slope == pytest.approx(numeric, abs=1e-9)


def test_reactions_go_from_one_thousandth_to_all_but_one_thousandth_over_their_range():
    r = pde.reaction_functions(np.array([5.0, 11.0, 59.0, 65.0]))[0]
    assert r[:2, 0] == pytest.approx([1e-3, 1 - 1e-3])  # first: from u_1 to u_2
    assert r[2:, -1] == pytest.approx([1e-3, 1 - 1e-3])  # last: from u_10 to u_11
    assert r[[0, 3], 9] == pytest.approx([1e-3, 1 - 1e-3])  # tenth: from u_1 to u_11


def test_table_agrees_with_the_sigmoids_and_saturates_beyond_its_ends():
    u = np.concatenate([np.linspace(-5, 100, 40_001), [-50.0, 183.9, 184.1, 1e4]])
    exact = paper_reactions(np.clip(u, -60, 110)) @ INPUTS.T  # the clip keeps exp finite, all is saturated there
    got = pde.Reaction(INPUTS)(torch.from_numpy(np.tile(u, (3, 1)))).numpy()
    assert np.abs(got - exact.T)[:, :-4].max() < 1e-11
    assert got[:, -4] == pytest.approx(
        np.zeros(3), abs=1e-5
    )  # the table ends at u = -8; every sigmoid is below 5e-5 there
    assert got[:, -3:] == pytest.approx(np.ones((3, 3)), abs=1e-11)


def test_velocity_is_the_papers():
    assert pde.velocity1(np.array([0.0, 0.25, 0.75])) == pytest.approx([4.5, 8.1, 0.9])
    assert pde.velocity2(np.array([0.0, 0.5, 1.0])) == pytest.approx([2.75, 0.0, -2.75])


@pytest.mark.slow
def test_observation_points_are_nodes_and_come_fastest():
    mesh = 41
    problem = pde.problem(mesh)
    rows, columns = problem.observed
    assert np.stack([rows, columns], 1) / (mesh - 1) == pytest.approx(np.array(pde.OBSERVED))
    states = list(problem.states(INPUTS))
    targets = pde.simulate(mesh, INPUTS)
    assert targets.shape == (3, 72)
    for sample in range(3):
        for time in range(12):
            for point in range(6):
                expected = float(states[38 + time][sample, rows[point], columns[point]])
                assert targets[sample, 6 * time + point] == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_a_sample_does_not_depend_on_its_company():
    inputs = cdr.draw(6, 3)
    assert pde.simulate(21, inputs[5:]) == pytest.approx(pde.simulate(21, inputs)[5:], abs=1e-9)


def test_a_step_that_cannot_be_solved_is_an_error_and_not_a_wrong_state():
    transport = pde.problem(21).transport
    with pytest.raises(ArithmeticError, match="step 1 did not reach 1e-11"):
        next(pde.march(transport, lambda t: torch.ones(()), lambda u: -500 * u, as_state(np.ones((21, 21))), 0.01))


def test_lines_too_coarse_for_the_flow_are_refused():
    with pytest.raises(ValueError, match="mesh must be finer than 6 nodes"):
        pde.Line.of(6, 1e-3, lambda x: 5.0 + 0 * x)


@pytest.mark.parametrize("mesh", [0, -21, 11, 20, 150])
def test_meshes_that_miss_the_points_or_the_sources_are_refused(mesh):
    with pytest.raises(ValueError, match=f"mesh must be 21, 31, 41.*got {mesh}"):
        pde.simulate(mesh, INPUTS)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (-INPUTS, "must be finite and non-negative"),
        (INPUTS * np.nan, "must be finite and non-negative"),
        (INPUTS[:, :54], r"shape \(samples, 55\)"),
        (INPUTS[0], r"shape \(samples, 55\)"),
    ],
)
def test_inputs_that_are_no_coefficients_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        pde.simulate(21, inputs)
