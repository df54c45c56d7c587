"""Solutions to compare with, where there is no formula: Cole and Hopf's quadrature, exact splitting, finite elements."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnvpro.extras import need

MODES, TIME_STEPS, SAVED_TIMES = 512, 20_000, 200
REFINEMENTS = 6  # of the finite-element meshes


def burgers(points: Tensor, viscosity: float) -> Tensor:
    """Cole and Hopf's solution for u(0, x) = -sin(pi x), by Gauss-Hermite quadrature, at points (t, x)."""
    z, weights = np.polynomial.hermite.hermgauss(100)
    t, x = points[:, :1].numpy(), points[:, 1:].numpy()
    y = x - 2 * np.sqrt(viscosity * np.maximum(t, 1e-300)) * z
    exponent = -np.cos(np.pi * y) / (2 * np.pi * viscosity)
    factor = weights * np.exp(exponent - exponent.max(1, keepdims=True))
    return torch.from_numpy(-(factor * np.sin(np.pi * y)).sum(1) / factor.sum(1))


@lru_cache(maxsize=1)
def _allen_cahn() -> tuple[np.ndarray, np.ndarray]:
    """The solution on a grid of times and places: Strang's splitting, with the heat and the reaction solved exactly."""
    x = np.arange(MODES) * 2 / MODES - 1
    u = x**2 * np.cos(np.pi * x)
    dt = 1 / TIME_STEPS
    half = np.exp(-1e-4 * (np.pi * np.fft.rfftfreq(MODES, 1 / MODES)) ** 2 * dt / 2)
    decay = np.exp(-10 * dt)
    saved = [u]
    for step in range(1, TIME_STEPS + 1):
        u = np.fft.irfft(half * np.fft.rfft(u), MODES)
        u = u / np.sqrt(u * u + (1 - u * u) * decay)
        u = np.fft.irfft(half * np.fft.rfft(u), MODES)
        if step % (TIME_STEPS // SAVED_TIMES) == 0:
            saved.append(u)
    return x, np.array(saved)


def allen_cahn(points: Tensor) -> Tensor:
    """The solution at points of the grid, the nearest where they are not."""
    _, saved = _allen_cahn()
    i = (points[:, 0] * SAVED_TIMES).round().long().clamp(0, SAVED_TIMES)
    j = ((points[:, 1] + 1) * MODES / 2).round().long() % MODES
    return torch.from_numpy(saved)[i, j]


def allen_cahn_points(seed: int, count: int = 9000) -> Tensor:
    """Random points of the grid."""
    x, _ = _allen_cahn()
    generator = torch.Generator().manual_seed(10_000 + seed)
    i = torch.randint(0, SAVED_TIMES + 1, (count,), generator=generator)
    j = torch.randint(0, MODES, (count,), generator=generator)
    return torch.stack([i / SAVED_TIMES, torch.from_numpy(x)[j]], 1).double()


def _fem(mesh: Any, fixed: Any) -> tuple[Any, np.ndarray]:
    """-lap u = 1 with quadratic elements; no flux where u is not fixed."""
    skfem = need("skfem", "pde")
    models = need("skfem.models.poisson", "pde")
    basis = skfem.Basis(mesh, skfem.ElementTriP2())
    A, b = models.laplace.assemble(basis), models.unit_load.assemble(basis)
    dofs = basis.get_dofs() if fixed is None else basis.get_dofs(fixed)
    return basis, skfem.solve(*skfem.condense(A, b, D=dofs))


@lru_cache(maxsize=2)
def _unit_source() -> tuple[Any, np.ndarray]:
    skfem = need("skfem", "pde")
    return _fem(skfem.MeshTri().refined(REFINEMENTS), None)


@lru_cache(maxsize=2)
def _l_shape() -> tuple[Any, np.ndarray]:
    """Refined everywhere, and twelve times more around the corner."""
    skfem = need("skfem", "pde")
    mesh = skfem.MeshTri.init_lshaped().refined(REFINEMENTS - 1)
    for level in range(12):
        centres = mesh.p[:, mesh.t].mean(1)
        mesh = mesh.refined(np.nonzero(np.hypot(*centres) < 0.3 / 2**level)[0])
    return _fem(mesh, lambda x: (np.isclose(x[0], 0) & (x[1] >= 0)) | (np.isclose(x[1], 0) & (x[0] >= 0)))


def unit_source(points: Tensor) -> Tensor:
    """-lap u = 1 on the unit square, u = 0 on its boundary."""
    return _probe(*_unit_source(), points)


def l_shape(points: Tensor) -> Tensor:
    """-lap u = 1 on the L, u = 0 on the re-entrant edges."""
    return _probe(*_l_shape(), points)


def _probe(basis: Any, u: np.ndarray, points: Tensor) -> Tensor:
    return torch.from_numpy(basis.probes(points.numpy().T) @ u)
