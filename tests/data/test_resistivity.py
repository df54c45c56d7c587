"""The resistivity solver: order, conservation, symmetry, an independent solution, and what it refuses."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve

from gnvpro.data import resistivity as dc

CELLS = dc.cells_of(24)
BODY = np.array([0.8, 0.7, 0.6])
HARD = np.array([[0.5, 0.25, 0.3], [0.0, 0.3, 2.0], [1.0, 0.5, 1.0], [0.9, 1.0, 0.1]])


def nodes(cells):
    lines = (np.linspace(0, length, n + 1) for n, length in zip(cells, dc.LENGTHS, strict=True))
    return np.meshgrid(*lines, indexing="ij")


def dual_volumes(cells):
    weights = []
    for n, length in zip(cells, dc.LENGTHS, strict=True):
        w = np.full(n + 1, length / n)
        w[[0, -1]] /= 2
        weights.append(w)
    return np.einsum("i,j,k->ijk", *weights)


def potential_of(inputs, cells=CELLS):
    return dc.solve(dc.conductivity(np.asarray(inputs), cells), dc.dipole(cells))


def manufactured_error(n):
    """Largest error for u = cos(pi x1/2) cos(pi x2) cos(pi x3), which has no normal flux, and m = exp(a . x)."""
    cells = (n, n, n // 2)
    a, k = np.array([0.5, -0.3, 0.4]), np.pi * np.array([0.5, 1.0, 1.0])
    centres = np.meshgrid(
        *((np.arange(c) + 0.5) * (s / c) for c, s in zip(cells, dc.LENGTHS, strict=True)), indexing="ij"
    )
    x = nodes(cells)
    c = [np.cos(k[d] * x[d]) for d in range(3)]
    s = [np.sin(k[d] * x[d]) for d in range(3)]
    u = c[0] * c[1] * c[2]
    gradient = (-k[0] * s[0] * c[1] * c[2], -k[1] * c[0] * s[1] * c[2], -k[2] * c[0] * c[1] * s[2])
    m = np.exp(sum(a[d] * x[d] for d in range(3)))
    q = -m * (sum(a[d] * gradient[d] for d in range(3)) - (k @ k) * u)
    currents = q * dual_volumes(cells)
    currents -= currents.mean()
    error = dc.solve(np.exp(sum(a[d] * centres[d] for d in range(3))), currents) - u
    return np.abs(error - error.mean()).max()


@pytest.mark.slow
def test_manufactured_solution_converges_with_second_order():
    errors = [manufactured_error(n) for n in (12, 24, 48)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (orders > 1.9).all(), (errors, orders)
    assert (orders < 2.2).all(), (errors, orders)


def test_matrix_is_a_graph_laplacian():
    matrix = dc.level(CELLS).matrix(dc.edge_conductances(dc.conductivity(BODY, CELLS)))
    assert abs(matrix - matrix.T).max() == 0.0
    assert np.abs(matrix.sum(axis=1)).max() < 1e-12 * abs(matrix).max()
    assert (matrix - sp.diags_array(matrix.diagonal())).max() <= 0.0
    assert matrix.nnz == 7 * 25 * 25 * 13 - 2 * (2 * 25 * 13 + 25 * 25)  # seven points, less at the six faces


def test_uniform_ground_has_the_textbook_edge_conductance():
    h = 2.0 / 24
    inside = dc.edge_conductances(np.full(CELLS, 3.0))[0][:, 5, 5]
    assert inside == pytest.approx(np.full(24, 3.0 * h), rel=1e-14)  # m h^2 / h


@pytest.mark.slow
def test_solution_is_that_of_a_direct_solver_with_one_node_pinned():
    conductivity, currents = dc.conductivity(BODY, CELLS), dc.dipole(CELLS)
    matrix = dc.level(CELLS).matrix(dc.edge_conductances(conductivity))
    pinned = np.append(0.0, spsolve(sp.csc_array(matrix)[1:, 1:], currents.ravel()[1:])).reshape(currents.shape)
    expected, got = dc.observe(pinned), dc.observe(dc.solve(conductivity, currents))
    assert np.linalg.norm(got - expected) < 1e-9 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize("inputs", HARD, ids=str)
def test_residual_is_below_1e_10_at_full_contrast(inputs):
    cells = dc.cells_of(48)
    conductivity, currents = dc.conductivity(inputs, cells), dc.dipole(cells)
    assert conductivity.max() / conductivity.min() > 5e3
    matrix = dc.level(cells).matrix(dc.edge_conductances(conductivity))
    residual = currents.ravel() - matrix @ dc.solve(conductivity, currents).ravel()
    assert np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(currents)


def test_every_cross_section_between_the_electrodes_carries_the_whole_current():
    conductivity = dc.conductivity(BODY, CELLS)
    potential = dc.solve(conductivity, dc.dipole(CELLS))
    flux = (dc.edge_conductances(conductivity)[1] * np.diff(potential, axis=1)).sum(axis=(0, 2))
    assert flux[:2] == pytest.approx(0.0, abs=1e-8)  # behind the electrodes: nodes 2 and 22
    assert flux[2:22] == pytest.approx(1.0, abs=1e-8)  # from + at large x2 to - at small x2
    assert flux[22:] == pytest.approx(0.0, abs=1e-8)


def test_dipole_injects_no_net_current_at_the_stated_places():
    for mesh in (24, 48):
        cells = dc.cells_of(mesh)
        currents = dc.dipole(cells)
        x1, x2, x3 = nodes(cells)
        assert currents.sum() == 0.0
        for sign, place in ((-1.0, 1 / 6), (1.0, 11 / 6)):
            at = currents == sign
            assert at.sum() == 1
            assert (x1[at][0], x2[at][0], x3[at][0]) == pytest.approx((1.0, place, 1.0))
        assert np.count_nonzero(currents) == 2


def test_data_do_not_see_a_constant():
    potential = potential_of(BODY)
    assert dc.observe(potential + 3.0) == pytest.approx(dc.observe(potential), abs=1e-13)


def test_data_are_differences_to_the_next_node_on_nodes_4_6_to_44():
    i, j, k = np.meshgrid(np.arange(49), np.arange(49), np.arange(25), indexing="ij")
    surface = np.where(k == 24, 1.0, np.nan)
    d1, d2 = dc.observe((i**2 + 100 * j**2) * surface).reshape(2, 21, 21)
    picked = np.arange(4, 45, 2)
    assert (d1 == (2 * picked + 1)[:, None]).all()
    assert (d2 == 100 * (2 * picked + 1)[None, :]).all()


def test_rotating_the_ellipsoid_by_pi_changes_nothing():
    turned = BODY + np.array([0.0, 0.0, np.pi])
    assert dc.observe(potential_of(turned)) == pytest.approx(dc.observe(potential_of(BODY)), abs=1e-9)


def test_mirrored_body_gives_the_mirrored_potential_and_data():
    mirrored = np.array([BODY[0], BODY[1], np.pi - BODY[2]])
    potential, image = potential_of(BODY), potential_of(mirrored)
    assert np.abs(image - potential).max() > 1e-3  # not trivially the same
    assert image == pytest.approx(potential[::-1], abs=1e-9)
    d2, image2 = (dc.observe(u)[441:].reshape(21, 21) for u in (potential, image))
    assert image2 == pytest.approx(d2[::-1], abs=1e-9)


def test_potential_changes_sign_when_turned_about_the_vertical_axis():
    potential = potential_of(BODY)
    assert potential[::-1, ::-1] == pytest.approx(-potential, abs=1e-8)


def test_conductivity_is_the_papers_formula():
    y1, y2, y3 = BODY
    m = dc.conductivity(BODY, CELLS)
    for i, j, k in ((0, 0, 0), (12, 7, 9), (20, 3, 11)):
        x = (np.array([i, j, k]) + 0.5) / 12
        q = np.array([[np.cos(y3), -np.sin(y3)], [np.sin(y3), np.cos(y3)]])
        e = np.diag([np.sqrt(2), 1]) @ q @ (x[:2] - 1)
        assert m[i, j, k] == pytest.approx(np.exp(10 * np.exp(-(e @ e + (x[2] - y1) ** 2) / y2**2)), rel=1e-12)


def test_a_sample_does_not_depend_on_its_company():
    together = dc.simulate(24, HARD)
    assert (dc.simulate(24, HARD[2:3]) == together[2:3]).all()


@pytest.mark.parametrize("mesh", [0, -24, 12, 23, 36, 72])
def test_meshes_that_miss_the_points_are_refused(mesh):
    with pytest.raises(ValueError, match=f"mesh must be 24 times a power of two.*got {mesh}"):
        dc.cells_of(mesh)


@pytest.mark.parametrize("mesh", [24.0, "48", True])
def test_mesh_must_be_an_int(mesh):
    with pytest.raises(TypeError, match="mesh must be an int"):
        dc.cells_of(mesh)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[0.5, -1.0, 0.0]], "radius y2, must be positive, got -1.0"),
        ([[0.5, 0.0, 0.0]], "radius y2, must be positive"),
        ([[0.5, np.nan, 0.0]], "must be finite"),
        ([[0.5, 1.0]], r"shape \(samples, 3\)"),
        ([0.5, 1.0, 0.0], r"shape \(samples, 3\)"),
    ],
)
def test_inputs_that_are_no_ellipsoid_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        dc.simulate(24, np.array(inputs))
