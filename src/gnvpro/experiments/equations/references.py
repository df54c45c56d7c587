"""Reference solutions of equations without a formula: Cole and Hopf's quadrature, exact splitting, finite elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import RectBivariateSpline
from torch import Tensor

from gnvpro.extras import need

MODES, TIME_STEPS, SAVED_TIMES = 4096, 8000, 200
REFINEMENTS, CORNER_REFINEMENTS = 5, 12  # of the finite-element meshes
WAVE_NUMBER_SQUARED = 28.0  # between the eigenvalues 24.7 and 32.1 of the square


def burgers(points: Tensor, viscosity: float) -> Tensor:
    """Cole and Hopf's solution for u(0, x) = -sin(pi x), by Gauss-Hermite quadrature, at points (t, x)."""
    z, weights = np.polynomial.hermite.hermgauss(100)
    t, x = points[:, :1].numpy(), points[:, 1:].numpy()
    y = x - 2 * np.sqrt(viscosity * np.maximum(t, 1e-300)) * z
    exponent = -np.cos(np.pi * y) / (2 * np.pi * viscosity)
    factor = weights * np.exp(exponent - exponent.max(1, keepdims=True))
    return torch.from_numpy(-(factor * np.sin(np.pi * y)).sum(1) / factor.sum(1))


@lru_cache(maxsize=2)
def allen_cahn_grid(modes: int = MODES, steps: int = TIME_STEPS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, places and the solution on them: Strang's splitting, heat and reaction solved exactly, both ends included."""
    x = np.arange(modes) * 2 / modes - 1
    u = x**2 * np.cos(np.pi * x)
    dt = 1 / steps
    whole = np.exp(-1e-4 * (np.pi * np.fft.rfftfreq(modes, 1 / modes)) ** 2 * dt)
    half, decay = np.sqrt(whole), np.exp(-10 * dt)
    saved, every = [u], steps // SAVED_TIMES
    u = np.fft.irfft(half * np.fft.rfft(u), modes)
    for step in range(1, steps + 1):
        waves = np.fft.rfft(u / np.sqrt(u * u + (1 - u * u) * decay))
        if step % every == 0:
            saved.append(np.fft.irfft(half * waves, modes))
        u = np.fft.irfft(whole * waves, modes)
    periodic = np.concatenate([np.array(saved), np.array(saved)[:, :1]], 1)
    return np.linspace(0, 1, SAVED_TIMES + 1), np.append(x, 1.0), periodic


@lru_cache(maxsize=1)
def _allen_cahn_spline() -> RectBivariateSpline:
    return RectBivariateSpline(*allen_cahn_grid(), kx=5, ky=5)


def allen_cahn(points: Tensor) -> Tensor:
    """The solution at points (t, x), by splines of the fifth degree between the points of the grid."""
    return torch.from_numpy(_allen_cahn_spline().ev(*points.numpy().T))


DISPERSION = 0.022**2
KDV_MODES, KDV_STEPS = 512, 20_000


@lru_cache(maxsize=2)
def korteweg_de_vries_grid(modes: int = KDV_MODES, steps: int = KDV_STEPS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, places and the solution on them: Runge-Kutta's fourth order for Fourier modes, dispersion solved exactly."""
    x, k = np.arange(modes) * 2 / modes - 1, np.pi * np.arange(modes // 2 + 1)
    v, dt, whole = np.fft.rfft(np.cos(np.pi * x)), 1 / steps, k < np.pi * modes / 3  # two thirds: no aliasing
    half = np.exp(1j * DISPERSION * k**3 * dt / 2)

    def change(v: np.ndarray) -> np.ndarray:
        return -0.5j * k * whole * np.fft.rfft(np.fft.irfft(v, modes) ** 2)

    saved, every = [v], steps // SAVED_TIMES
    for step in range(1, steps + 1):
        a = change(v)
        b = change(half * (v + dt / 2 * a))
        c = change(half * v + dt / 2 * b)
        d = change(half**2 * v + dt * half * c)
        v = half**2 * v + dt / 6 * (half**2 * a + 2 * half * (b + c) + d)
        if step % every == 0:
            saved.append(v)
    rows = np.fft.irfft(np.array(saved), modes, axis=1)
    return np.linspace(0, 1, SAVED_TIMES + 1), np.append(x, 1.0), np.concatenate([rows, rows[:, :1]], 1)


@lru_cache(maxsize=1)
def _korteweg_de_vries_spline() -> RectBivariateSpline:
    return RectBivariateSpline(*korteweg_de_vries_grid(), kx=5, ky=5)


def korteweg_de_vries(points: Tensor) -> Tensor:
    """The solution at points (t, x), by splines of the fifth degree between the points of the grid."""
    return torch.from_numpy(_korteweg_de_vries_spline().ev(*points.numpy().T))


# -- ordinary differential equations

Rates = Callable[[Sequence[Any]], list[Any]]


def lotka_volterra(y: Sequence[Any]) -> list[Any]:
    """Prey and predators."""
    return [1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]]


def van_der_pol(y: Sequence[Any]) -> list[Any]:
    """A relaxation oscillator, mu = 10."""
    return [y[1], 10.0 * (1.0 - y[0] * y[0]) * y[1] - y[0]]


def robertson(y: Sequence[Any]) -> list[Any]:
    """Three reactions; y[1] is in units of 1e-4."""
    first, second, third = 0.04 * y[0], 1.0 * y[1] * y[2], 0.3 * y[1] * y[1]
    return [second - first, 1e4 * (first - second - third), third]


def path(rates: Rates, start: tuple[float, ...], end: float) -> Callable[[Tensor], Tensor]:
    """The solution y(t), (points, unknowns), by scipy's Radau with tolerances of 1e-11."""
    solved = solve_ivp(
        lambda t, y: rates(y), (0, end), start, method="Radau", rtol=1e-11, atol=1e-13, dense_output=True
    )
    return lambda x: torch.from_numpy(solved.sol(x.detach().numpy()[:, 0]).T)


# -- finite elements of the fourth degree


def _solved(mesh: Any, shift: float, load: Callable[[Any], Any], fixed: Any = None) -> tuple[Any, np.ndarray]:
    """-lap u - shift u = load, u = 0 where it is fixed (by default on the whole boundary), no flux elsewhere."""
    skfem = need("skfem", "pde")
    helpers = need("skfem.helpers", "pde")
    basis = skfem.Basis(mesh, skfem.ElementTriP4())
    form = skfem.BilinearForm(lambda u, v, w: helpers.dot(helpers.grad(u), helpers.grad(v)) - shift * u * v)
    right = skfem.LinearForm(lambda v, w: load(w.x) * v)
    dofs = basis.get_dofs() if fixed is None else basis.get_dofs(fixed)
    return basis, skfem.solve(*skfem.condense(form.assemble(basis), right.assemble(basis), D=dofs))


def _graded(mesh: Any, corners: Sequence[tuple[float, float]]) -> Any:
    """Refined again and again around corners, where second derivatives are not bounded."""
    for level in range(CORNER_REFINEMENTS):
        x, y = mesh.p[:, mesh.t].mean(1)
        near = np.min([np.hypot(x - a, y - b) for a, b in corners], 0) < 0.3 / 2**level
        mesh = mesh.refined(np.nonzero(near)[0])
    return mesh


def _probe(solved: tuple[Any, np.ndarray], points: Tensor) -> Tensor:
    basis, u = solved
    return torch.from_numpy(basis.probes(points.numpy().T) @ u)


@lru_cache(maxsize=1)
def _unit_source() -> tuple[Any, np.ndarray]:
    skfem = need("skfem", "pde")
    mesh = skfem.MeshTri().refined(REFINEMENTS - 1)
    return _solved(_graded(mesh, [(0, 0), (0, 1), (1, 0), (1, 1)]), 0.0, lambda x: 1.0)


def unit_source(points: Tensor) -> Tensor:
    """-lap u = 1 on the unit square, u = 0 on its boundary."""
    return _probe(_unit_source(), points)


@lru_cache(maxsize=1)
def _l_shape() -> tuple[Any, np.ndarray]:
    skfem = need("skfem", "pde")
    mesh = _graded(skfem.MeshTri.init_lshaped().refined(REFINEMENTS - 1), [(0, 0)])
    on_edges = lambda x: (np.isclose(x[0], 0) & (x[1] >= 0)) | (np.isclose(x[1], 0) & (x[0] >= 0))  # noqa: E731
    return _solved(mesh, 0.0, lambda x: 1.0, on_edges)


def l_shape(points: Tensor) -> Tensor:
    """-lap u = 1 on the L, u = 0 on the re-entrant edges, no flux through the others."""
    return _probe(_l_shape(), points)


@lru_cache(maxsize=1)
def _helmholtz() -> tuple[Any, np.ndarray]:
    skfem = need("skfem", "pde")
    mesh = skfem.MeshTri.init_tensor(*[np.linspace(-1, 1, 2 ** (REFINEMENTS + 1) + 1)] * 2)
    return _solved(mesh, WAVE_NUMBER_SQUARED, lambda x: -source(np.stack([x[0], x[1]], -1), np))


def source(x: Any, library: Any = torch) -> Any:
    """A bell around (0.3, 0.2)."""
    return 100 * library.exp(-((x[..., 0] - 0.3) ** 2 + (x[..., 1] - 0.2) ** 2) / (2 * 0.15**2))


def helmholtz(points: Tensor) -> Tensor:
    """lap u + k^2 u = source on [-1, 1]^2, u = 0 on its boundary."""
    return _probe(_helmholtz(), points)
