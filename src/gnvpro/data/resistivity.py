"""Direct current resistivity: the potential of a current dipole on the ground above an ellipsoidal body.

On the box (0,2) x (0,2) x (0,1), surface at x3 = 1,

    -div(m grad u) = q,   grad u . n = 0 on the boundary
    m(x; y) = exp(10 exp(-(|diag(sqrt 2, 1) Q(y3) (x1 - 1, x2 - 1)|^2 + (x3 - y1)^2) / y2^2))
    q = current -1 at (1, 1/6, 1) and +1 at (1, 11/6, 1),   Q(a) = [[cos a, -sin a], [sin a, cos a]]

Nodal finite volumes: u lives on the nodes, m on the cells, and an edge conducts with the mean m of its four cells
(fewer on the boundary) times the area of its dual face over its length. The matrix A is the weighted graph Laplacian
of the edges: symmetric, row sums zero, constants in its kernel. The currents sum to zero, so A u = b is consistent.
The data are differences, which do not depend on the constant:

    u(next node in x1) - u(node),  u(next node in x2) - u(node)   on 21 x 21 surface nodes from 1/6 to 11/6

A u = b is solved by conjugate gradients, preconditioned by one geometric multigrid V-cycle: each level halves the
cells, the coarse matrix has the same seven points, with edge conductances averaged from the finer ones,
interpolation P is trilinear, restriction P^T, one Gauss-Seidel sweep forward on the way down and one backward on the
way up (so the cycle is symmetric), and a dense inverse at the end. Patterns, P and index maps depend on the mesh
alone and are built once; a sample only fills in numbers. (Coarse edges from 2 x 2 x 2 means of m need 11.3
iterations on average and 15 at worst; these need 10.3 and 12.)

Legend: m -> conductivity;  y -> inputs: depth, radius, angle;  u -> potential;  b -> currents;  A -> matrix
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from gnvpro.extras import need

Array = NDArray[np.float64]
Cells = tuple[int, int, int]
Edges = tuple[Array, Array, Array]

LENGTHS = (2.0, 2.0, 1.0)
POINTS = 21  # surface points in each direction
RTOL = 1e-10
MAX_ITERATIONS = 200  # a guard for unusual conductivities; 9 to 13 are usual


def cells_of(mesh: int) -> Cells:
    """The mesh x mesh x mesh/2 cells of a DCR mesh, checked."""
    if isinstance(mesh, bool) or not isinstance(mesh, int):
        raise TypeError(f"mesh must be an int, the number of cells in x1 and x2, got {mesh!r}")
    if mesh < 24 or mesh % 24 or (mesh // 24).bit_count() != 1:
        raise ValueError(
            f"mesh must be 24 times a power of two (24, 48, 96, ...), got {mesh}: the dipole and the 21 x 21 points "
            "then lie on nodes, and multigrid can halve the cells; 48 is the paper's"
        )
    return mesh, mesh, mesh // 2


def edge_conductances(conductivity: Array) -> Edges:
    """Conductances of the edges along x1, x2 and x3: mean conductivity times dual face area over length."""
    widths = [length / n for length, n in zip(LENGTHS, conductivity.shape, strict=True)]
    parts = []
    for axis in range(3):
        total = np.zeros([n + (d != axis) for d, n in enumerate(conductivity.shape)])
        for corner in product((0, 1), repeat=2):
            shifts = [*corner[:axis], 0, *corner[axis:]]
            total[tuple(slice(s, s + n) for s, n in zip(shifts, conductivity.shape, strict=True))] += conductivity
        parts.append(total * (np.prod(widths) / (4 * widths[axis] ** 2)))
    return parts[0], parts[1], parts[2]


def coarsen(edges: Edges) -> Edges:
    """Edge conductances of the mesh with half the cells: two edges in series, neighbours weighted 1/2, 1, 1/2."""
    parts = []
    for axis, conductance in enumerate(edges):
        along = np.moveaxis(conductance, axis, 0)
        total = (along[0::2] + along[1::2]) / 4
        for _ in range(2):
            total = np.moveaxis(total, 1, -1)  # move each of the two transverse directions to the end once
            between = total[..., 1::2] / 2
            total = total[..., 0::2].copy()
            total[..., :-1] += between
            total[..., 1:] += between
        parts.append(np.moveaxis(total, 0, axis))
    return parts[0], parts[1], parts[2]


@dataclass(frozen=True)
class Level:
    """Everything that depends on a mesh alone: the CSR pattern and interpolation from the mesh with half the cells."""

    cells: Cells
    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    source: NDArray[np.intp]  # CSR entry -> position in [diagonal, x1-edges, x2-edges, x3-edges]
    prolongation: sp.csr_array | None
    restriction: sp.csr_array | None

    def matrix(self, edges: Edges) -> sp.csr_array:
        """The finite-volume matrix: the Laplacian of the edges."""
        diagonal = np.zeros([n + 1 for n in self.cells])
        for axis, conductance in enumerate(edges):
            across = np.moveaxis(diagonal, axis, 0)
            across[:-1] += np.moveaxis(conductance, axis, 0)
            across[1:] += np.moveaxis(conductance, axis, 0)
        values = np.concatenate([diagonal.ravel(), *(-c.ravel() for c in edges)])
        return sp.csr_array(
            (np.take(values, self.source), self.indices, self.indptr), shape=(diagonal.size, diagonal.size)
        )


@lru_cache(maxsize=32)
def level(cells: Cells) -> Level:
    """The level of a mesh, built once per process."""
    nodes = np.arange(np.prod([n + 1 for n in cells])).reshape([n + 1 for n in cells])
    starts = [nodes[:-1].ravel(), nodes[:, :-1].ravel(), nodes[:, :, :-1].ravel()]
    ends = [nodes[1:].ravel(), nodes[:, 1:].ravel(), nodes[:, :, 1:].ravel()]
    start, end, diagonal = np.concatenate(starts), np.concatenate(ends), nodes.ravel()
    edges = diagonal.size + np.arange(start.size)
    rows, columns = np.concatenate([diagonal, start, end]), np.concatenate([diagonal, end, start])
    # positions, counted from one so that none is an explicit zero, survive scipy's conversion to CSR
    pattern = sp.csr_array((1 + np.concatenate([diagonal, edges, edges]), (rows, columns)))
    pattern.sort_indices()
    prolongation = None if is_coarsest(cells) else reduce(sp.kron, [interpolation(n // 2) for n in cells])
    return Level(
        cells,
        pattern.indptr.astype(np.int32),
        pattern.indices.astype(np.int32),
        (pattern.data - 1).astype(np.intp),
        None if prolongation is None else sp.csr_array(prolongation),
        None if prolongation is None else sp.csr_array(prolongation.T),
    )


def is_coarsest(cells: Cells) -> bool:
    """Return True if multigrid ends here: the cells do not halve, or few enough are left for a dense inverse."""
    return any(n % 2 for n in cells) or cells[0] <= 6


def interpolation(n_coarse: int) -> sp.csr_array:
    """Linear interpolation from n_coarse + 1 to 2 n_coarse + 1 nodes on a line."""
    fine = 2 * np.arange(n_coarse + 1)
    halves = np.full(n_coarse, 0.5)
    rows = np.concatenate([fine, fine[:-1] + 1, fine[:-1] + 1])
    columns = np.concatenate([fine // 2, fine[:-1] // 2, fine[:-1] // 2 + 1])
    return sp.csr_array((np.concatenate([np.ones(n_coarse + 1), halves, halves]), (rows, columns)))


def multigrid(edges: Edges, cells: Cells) -> tuple[sp.csr_array, Callable[[Array], Array]]:
    """The matrix of edge conductances and one V-cycle for it, a symmetric approximate inverse."""
    gauss_seidel = need("pyamg.amg_core", "pde").gauss_seidel
    here = level(cells)
    matrix = here.matrix(edges)
    prolongation, restriction = here.prolongation, here.restriction
    if prolongation is None or restriction is None:
        # shifting the constants away from zero leaves the inverse exact for currents that sum to zero
        inverse = np.linalg.inv(matrix.toarray() + matrix.diagonal().mean() / matrix.shape[0])
        return matrix, lambda currents: inverse @ currents
    _, coarse_cycle = multigrid(coarsen(edges), (cells[0] // 2, cells[1] // 2, cells[2] // 2))
    indptr, indices, data, n = here.indptr, here.indices, matrix.data, matrix.shape[0]

    def cycle(currents: Array) -> Array:
        potential = np.zeros(n)
        gauss_seidel(indptr, indices, data, potential, currents, 0, n, 1)
        potential += prolongation @ coarse_cycle(restriction @ (currents - matrix @ potential))
        gauss_seidel(indptr, indices, data, potential, currents, n - 1, -1, -1)
        return potential

    return matrix, cycle


def solve(conductivity: Array, currents: Array, rtol: float = RTOL) -> Array:
    """Node potentials (mean zero) from one conductivity per cell and one current per node, to relative residual `rtol`."""
    matrix, cycle = multigrid(edge_conductances(conductivity), conductivity.shape)
    b = np.ascontiguousarray(currents, dtype=float).ravel()
    potential = np.zeros_like(b)
    preconditioner = LinearOperator(matrix.shape, matvec=cycle, dtype=float)
    # CG estimates its residual by a recurrence; if that drifts from the truth, a restart finishes the solve
    for _ in range(3):
        potential, _ = cg(matrix, b, x0=potential, rtol=rtol / 2, atol=0.0, maxiter=MAX_ITERATIONS, M=preconditioner)
        residual = float(np.linalg.norm(b - matrix @ potential) / np.linalg.norm(b))
        if residual <= rtol:
            break
    else:
        raise ArithmeticError(f"conjugate gradients stopped at relative residual {residual:.1e}, asked for {rtol:.1e}")
    return (potential - potential.mean()).reshape([n + 1 for n in conductivity.shape])


def conductivity(inputs: Array, cells: Cells) -> Array:
    """The ellipsoid's conductivity at the cell centres, for inputs (depth y1, radius y2, angle y3)."""
    height, radius, angle = (float(y) for y in inputs)
    x1, x2, x3 = ((np.arange(n) + 0.5) * (length / n) for n, length in zip(cells, LENGTHS, strict=True))
    e1, e2 = x1[:, None] - 1.0, x2[None, :] - 1.0
    rotated1 = np.cos(angle) * e1 - np.sin(angle) * e2
    rotated2 = np.sin(angle) * e1 + np.cos(angle) * e2
    distance2 = (2.0 * rotated1**2 + rotated2**2)[:, :, None] + (x3 - height) ** 2
    return np.exp(10.0 * np.exp(-distance2 / radius**2))


def dipole(cells: Cells) -> Array:
    """Currents at the nodes: -1 at (1, 1/6, 1), +1 at (1, 11/6, 1)."""
    n1, n2, _ = cells
    currents = np.zeros([n + 1 for n in cells])
    currents[n1 // 2, n2 // 12, -1] = -1.0
    currents[n1 // 2, n2 - n2 // 12, -1] = 1.0
    return currents


def observe(potential: Array) -> Array:
    """The 882 data: differences to the next node in x1, then in x2, on the 21 x 21 points (x1 slowest)."""
    surface = potential[:, :, -1]
    n = surface.shape[0] - 1
    points = slice(n // 12, n // 12 + n // 24 * (POINTS - 1) + 1, n // 24)
    d1 = np.diff(surface, axis=0)[points, points]
    d2 = np.diff(surface, axis=1)[points, points]
    return np.concatenate([d1.ravel(), d2.ravel()])


def simulate(mesh: int, inputs: Array) -> Array:
    """Data (samples, 882) for inputs (samples, 3) on mesh x mesh x mesh/2 cells."""
    cells = cells_of(mesh)
    check_inputs(inputs)
    currents = dipole(cells)
    return np.stack([observe(solve(conductivity(y, cells), currents)) for y in inputs])


def check_inputs(inputs: Array) -> None:
    """Refuse inputs that do not describe an ellipsoid."""
    if inputs.ndim != 2 or inputs.shape[1] != 3:
        raise ValueError(f"inputs must have shape (samples, 3): depth, radius, angle; got {inputs.shape}")
    if not np.isfinite(inputs).all():
        raise ValueError("inputs must be finite")
    if (inputs[:, 1] <= 0).any():
        raise ValueError(f"inputs[:, 1], the radius y2, must be positive, got {inputs[:, 1].min()}")
