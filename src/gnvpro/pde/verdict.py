"""Estimate the error of a field by one more linear solve.

Let u be the field at the end of a run and r the residuals of its equations on fresh points. The error e = exact - u satisfies
the equations linearised around u,

    L e + r  =  0

so e is estimated by least squares over features that the run did not have: the field's own, and sines of many wavelengths,
none of them trained. The head of these features costs one factorisation. With p the share of |r|^2 that e explains,

    error  =  |e| / (p |u|)           over the points of the equation that has most of them

The share p guards against errors that the sines cannot represent, such as those at a thin front: what they leave of r
makes the estimate larger. The error is infinite if u is zero but its residuals are not. It is infinite too if r is of the
order of the data (the residual of u = 0) and e explains less than half of it: equations that contradict each other leave
such an r.

Legend: r -> residual, L -> Z, e -> error of the field, p -> explained.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnvpro.minimize.status import Status
from gnvpro.pde.beside import Beside
from gnvpro.pde.equation import Equation
from gnvpro.pde.features import periods_of, sines
from gnvpro.pde.field import Field
from gnvpro.pde.points import PointSet
from gnvpro.pde.system import System

PROBES = 300  # sines, fewer if there are not three rows for each
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of their weights, for a domain of half width one
FEWEST, MOST = 500, 4000  # fresh points of an equation
SEED = 900_000  # added to the run's seed, so that no point of the run is seen again
RCOND = 1e-12
OWN_ENDS = {Status.SETTLED, Status.CONVERGED, Status.STEP_TOO_SMALL}
ORDER_OF_DATA = 0.1  # estimated error above which a run is not solved, however it ended; residual over that of u = 0
HALF = 0.5  # of a squared residual of the order of the data, at least this share is explained by an error of the field


@dataclass(frozen=True)
class Correction:
    """The solution of the error equation for a field."""

    field: Field  # with the estimated error taken away
    error: float  # sum of squares of the estimated error over some points
    size: float  # sum of squares of the field there
    explained: float  # share of the squared residual that the estimate explains
    of_data: float = 0.0  # norm of the residual over that of u = 0

    @property
    def relative(self) -> float:
        """Estimated relative error; infinite if the field is zero or nothing is explained."""
        if self.error == 0.0 and self.explained == 1.0:  # no residual
            return 0.0
        if self.size == 0.0 or not self.explained > 0.0:
            return math.inf
        if self.explained < HALF and self.of_data > ORDER_OF_DATA:
            return math.inf
        return math.sqrt(self.error / self.size) / self.explained


def estimated_error(system: System, equations: Sequence[Equation], seed: int) -> float:
    """Estimated relative error (L2) of the field that the system's field module holds."""
    found = correction(system, equations, seed)
    return math.inf if found is None else found.relative


@torch.no_grad()
def correction(system: System, equations: Sequence[Equation], seed: int) -> Correction | None:
    """The field's error by one linear solve on fresh points; None if something there is not finite."""
    field = system.field
    fresh = [_fresh(equation, SEED + 101 * seed + i) for i, equation in enumerate(equations)]
    points = torch.cat([site.points for equation in fresh for site in equation.compiled.sites])
    count = max(1, min(PROBES, sum(equation.rows for equation in fresh) // (3 * field.outputs)))
    periods = periods_of(field.features)  # errors of a periodic field are periodic
    probes = sines(points.min(0).values, points.max(0).values, count, SCALES, seed, periods)
    wider = Field(Beside(copy.deepcopy(field.features), probes).requires_grad_(False), field.outputs, field.n_inputs)
    W = field.W()
    W = torch.cat([W[:, :-1], W.new_zeros(field.outputs, count), W[:, -1:]], 1)
    linearised = System(wider, fresh, system.weights, system.constants)
    x = linearised.x()
    carried = linearised.carry(x)
    made = linearised.assemble(carried, x, W)
    Z, residual = made.Z, made.residual
    if system.constants:  # unknown constants are wrong too: more columns
        Z = torch.cat([Z, linearised.jacobian_in_constants(carried, x, W, made.parts)], 1)
    if not (bool(torch.isfinite(Z).all()) and bool(torch.isfinite(residual).all())):
        return None
    left, change = _least_squares(Z, residual)
    dW = change[: W.numel()].view_as(W)
    wider.store_head(W + dW)
    inside = max((e for e in fresh if e.compiled.own is not None), key=lambda e: e.rows, default=fresh[0])
    where = inside.compiled.sites[0].points
    error = wider.features(where) @ dW[:, :-1].T + dW[:, -1]
    size = float(residual.square().sum())
    explained = 1.0 if size == 0.0 else 1.0 - float(left.square().sum()) / size
    data = float(linearised.assemble(carried, x, torch.zeros_like(W)).residual.square().sum())
    of_data = math.sqrt(size / data) if data > 0.0 else 0.0
    return Correction(wider, float(error.square().sum()), float(field(where).square().sum()), explained, of_data)


def verdict(status: Status, error: float, tolerance: float) -> Status:
    """The status of a result: NOT_SOLVED if a run ended by itself above the tolerance, or anywhere of the order of its data."""
    if error <= tolerance:
        return status
    return Status.NOT_SOLVED if status in OWN_ENDS or not error < max(tolerance, ORDER_OF_DATA) else status


def ending(status: Status, error: float, tolerance: float) -> list[str]:
    """Note on how the run ended, if its status does not explain it."""
    if verdict(status, error, tolerance) is status:
        return []
    return [f"the run ended because: {status}"]


def _fresh(equation: Equation, seed: int) -> Equation:
    """The equation on points that the run has not seen, if others can be drawn."""
    if not equation.can_be_redrawn or equation.set is None:
        return equation
    return equation.at(PointSet(equation.set.fresh(min(max(2 * equation.rows, FEWEST), MOST), seed)))


def _least_squares(Z: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Change of the unknowns that minimises |Z change + residual|, and the remaining residual."""
    scale = Z.norm(dim=0)
    scale = torch.where(scale > 0, scale, 1.0)
    change = torch.linalg.lstsq(Z / scale, -residual[:, None], rcond=RCOND, driver="gelsd").solution[:, 0] / scale
    return residual + Z @ change, change
