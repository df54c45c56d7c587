"""Leave u = 0 if no step can: the start of eigenvalue problems.

An equation such as integral(u u) = 1 has a residual at u = 0 but no slope there, so every Gauss-Newton step from u = 0 is
zero. The run then starts from the function that the other equations leave most nearly free: with Z their rows in the head and
Phi the features at all points,

    W  =  argmin |Z W| / |Phi W|              (the smallest singular vector of Z, relative to Phi)

scaled so that the residual of the equations without a slope is smallest. Equations without unknown constants, such as
boundary conditions, count STRICT times as much. The unknown constants then take one least-squares step. For -lap u = lambda u
this is the eigenfunction whose eigenvalue is nearest to the first value of lambda, and its Rayleigh quotient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnvpro.pde.system import Carried, System

RCOND = 1e-7  # directions of the head below this share of the largest barely change the field
STRICT = 1e3
FACTORS = tuple(2.0**k for k in range(-12, 13))  # of the root mean square of the field


@torch.no_grad()
def leave_zero(system: System) -> bool:
    """Store a head to begin with in the system's field, if the head is zero and no step can change that; return if so."""
    W = system.field.W()
    if system.linear or bool(W.any()):
        return False
    x = system.x()
    carried = system.carry(x)
    assembled = system.assemble(carried, x, W)
    Z, rho = system.by_equation(assembled.Z), system.by_equation(assembled.residual)
    stuck = [bool(r.any()) and not bool(z.any()) for z, r in zip(Z, rho, strict=True)]
    if not any(stuck) or all(stuck) or not bool(torch.isfinite(assembled.Z).all()):
        return False
    strict = [1.0 if equation.constants else STRICT for equation in system.equations]
    free = torch.cat([each * z for z, each, dead in zip(Z, strict, stuck, strict=True) if not dead])
    direction = _nearly_free(free, _values(system, carried)).view_as(W)

    def left(factor: float) -> float:
        rows = system.by_equation(system.residual(carried, x, factor * direction))
        return sum(float(r.square().sum()) for r, each in zip(rows, stuck, strict=True) if each)

    W = min(FACTORS, key=left) * direction
    system.store(_with_constants(system, carried, x, W), W)
    return True


def _with_constants(system: System, carried: Carried, x: Tensor, W: Tensor) -> Tensor:
    """Return x after a least-squares step in the unknown constants."""
    if not system.constants:
        return x
    made = system.assemble(carried, x, W)
    J = system.jacobian_in_constants(carried, x, W, made.parts)
    step = torch.linalg.lstsq(J, -made.residual[:, None], rcond=RCOND, driver="gelsd").solution[:, 0]
    return torch.cat([x[: system.n_theta], x[system.n_theta :] + step])


def _values(system: System, carried: Carried) -> Tensor:
    """Return d u / d W at all points, for all outputs."""
    parts = [done.jet[channels.index(())] for (channels, _), done in zip(system.groups, carried.passes, strict=True)]
    Phi = torch.cat(parts)
    Phi = torch.cat([Phi, torch.ones_like(Phi[:, :1])], 1)
    return torch.block_diag(*[Phi] * system.outputs)


def _nearly_free(Z: Tensor, Phi: Tensor) -> Tensor:
    """Return the W of unit root mean square of Phi W for which |Z W| is least."""
    _, S, Vh = torch.linalg.svd(Phi, full_matrices=False)
    kept = RCOND * S[0] < S
    basis = Vh[kept].T / S[kept]
    return basis @ torch.linalg.svd(Z @ basis, full_matrices=True)[2][-1] * len(Phi) ** 0.5
