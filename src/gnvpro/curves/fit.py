"""`curves.fit`: a basis, samples and a start in; parameters, coefficients and their errors out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.curves.basis import Basis, Columns
from gnvpro.curves.data import Data, check_data, check_parameters
from gnvpro.curves.eliminate import Block, Coefficients, Piece, blocks_of, eliminate
from gnvpro.curves.objective import CurveObjective, CurvePoint
from gnvpro.curves.parameters import Parameters, Tie
from gnvpro.curves.result import Fit, Starts
from gnvpro.curves.robust import REPEATED, RESTARTED, REWEIGHTINGS, SCALED, Huber
from gnvpro.curves.search import Found, draws, rescued, same, search, tried
from gnvpro.curves.uncertainty import Uncertainty
from gnvpro.curves.verify import condition

CURVES_AT_A_TIME = 8192  # whose coefficients are computed together
SINGULAR = 1e15  # condition number at the start from which no step can be computed


def fit(
    columns: Columns,
    x: Any,
    y: Any,
    *,
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float | None, float | None]] | None = None,
    weights: Any = None,
    nonnegative: bool = False,
    fixed: Mapping[str, Tie] | None = None,
    starts: int = 1,
    seed: int = 0,
    loss: str = "least_squares",
    missing: str = "raise",
    noise: float | None = None,
) -> Fit:
    """Fit curves that are linear combinations of columns with nonlinear parameters.

    y = sum_j c_j z_j(x; parameters) + noise. The coefficients c are eliminated, one set for each curve; the parameters are
    shared by all curves.

    Args:
        columns: the basis, a function of x and the parameters by name. It returns a list of columns, each a tensor with one
            value per sample or a number for a constant. Written with torch functions.
        x: samples, (n,) or (n, d): an array, a tensor or a table.
        y: one curve (n,), or several (n, curves).
        start: a first value of every parameter.
        bounds: (lower, upper) by parameter; None for no limit.
        weights: 1 / variance of every sample (n,) or of every value like y, up to a common factor; zero leaves a value out.
        nonnegative: whether coefficients may not be negative.
        fixed: parameters that are not searched: a number, the name of a parameter that it equals, or a function of other
            parameters by name, such as `lambda k1: 2 * k1`. "c0" fixes the coefficient of the first column, and so on.
        starts: how many starts to search from: `start`, and others drawn within bounds or around it.
        seed: of the draws.
        loss: "least_squares" or "huber", which bounds the influence of outliers.
        missing: "raise" for an error if y has NaN, "omit" to leave these values out.
        noise: the standard deviation of a value of weight one; estimated from the residuals if left out.

    Returns:
        A `Fit`. `solved` is the claim that this is a minimum; it has been checked by means other than the search's.

    Raises:
        ValueError, TypeError: an argument cannot be used; the message says what to do.

    Example:
        >>> import torch
        >>> x = torch.linspace(0, 4, 60, dtype=torch.float64)
        >>> y = 2 * torch.exp(-0.5 * x) + 1
        >>> found = fit(lambda x, k: [torch.exp(-k * x), 1.0], x, y, start={"k": 1.0})
        >>> round(found.parameters["k"], 6), found.coefficients.round(6).tolist(), found.solved
        (0.5, [2.0, 1.0], True)
    """
    data = check_data(x, y, weights, missing)
    parameters, held, theta = check_parameters(columns, start, bounds or {}, fixed or {})
    check_choice("loss", loss, ("least_squares", "huber"))
    if noise is not None:
        check_number("noise", noise, 0.0, strict=True)
    asked = Coefficients(held, nonnegative)
    problem = _Problem(data, asked, loss == "huber", noise)
    objective = problem.objective(_first(columns, data, parameters, theta), parameters, data.weights)
    objective = _in_units(objective, check_start(objective, data, theta))
    found, summary = _search(objective, theta, check_count("starts", starts, 1), seed)
    if not objective.basis.agrees(found.point.values):  # rows depend on each other after all
        objective = replace(objective, basis=replace(objective.basis, by_sample=False))
        found = search(objective, objective.parameters.inner(theta))
    return problem.result(objective, found, summary, theta)


def _first(columns: Columns, data: Data, parameters: Parameters, theta: Mapping[str, float]) -> Basis:
    """The basis, with the derivatives that are right for it."""
    values = parameters.values(torch.tensor(list(theta.values()), dtype=torch.float64))
    return Basis(columns, data.x, parameters.names).tried(list(values.values()))


def _in_units(objective: CurveObjective, point: CurvePoint) -> CurveObjective:
    """Return the objective with parameters in units that move the curves equally."""
    whole = point.whole_norms.tolist()
    size = objective.target_norm or 1.0
    parameters = objective.parameters
    units = {name: size / norm if norm > 0 else 1.0 for name, norm in zip(parameters.free, whole, strict=True)}
    return objective.with_parameters(parameters.scaled(units))


def check_start(objective: CurveObjective, data: Data, theta: Mapping[str, float]) -> CurvePoint:
    """Evaluate the start; errors that a user can make show here."""
    x = objective.parameters.inner(theta)
    outer, _ = objective.parameters.theta(x)
    Z = objective.basis.at(list(objective.parameters.values(outer).values()))
    unknown = [j for j in objective.asked.fixed if j >= Z.shape[1]]
    if unknown:
        raise ValueError(f"fixed has 'c{unknown[0]}', but the {Z.shape[1]} coefficients are c0 to c{Z.shape[1] - 1}")
    bad = ~torch.isfinite(Z)
    if bad.any():
        i, j = bad.nonzero()[0].tolist()
        raise ValueError(
            f"column {j} of the basis is {Z[i, j].item()} at the start, first at sample {i} (x = {data.x[i].tolist()}); "
            "choose another start, or scale x"
        )
    free = [j for j in range(Z.shape[1]) if j not in objective.asked.fixed]
    count = len(theta) + len(free) * data.Y.shape[1]
    if data.n_observed < count:
        raise ValueError(
            f"{data.n_observed} values cannot determine {count} unknowns ({len(theta)} parameters and {len(free)} coefficients "
            f"for each of {data.Y.shape[1]} curves); fix some, or use fewer columns"
        )
    check_columns(Z[:, free], free)
    point = objective.at(x)
    number, which = condition(point)
    if not math.isfinite(point.value) or (number > SINGULAR and "columns" in which):
        raise ValueError(
            f"{which} at the start (condition number {number:.1e}); start from parameters that differ more"
        )
    for name, own in zip(objective.parameters.free, point.dZ.abs().amax((0, 1)).tolist(), strict=True):
        if own == 0:
            raise ValueError(
                f"no column depends on {name!r} at the start; leave it out, fix it, or choose another start"
            )
    if not torch.isfinite(point.dZ).all():
        raise ValueError("the derivatives of the basis are not finite at the start; choose another start")
    return point


def check_columns(Z: Tensor, free: list[int]) -> None:
    """No column is zero, and no two are multiples of each other."""
    norms = torch.linalg.vector_norm(Z, dim=0)
    for j, norm in zip(free, norms.tolist(), strict=True):
        if norm == 0:
            raise ValueError(f"column {j} of the basis is zero at every sample; choose another start, or leave it out")
    cosines = ((Z / norms).T @ (Z / norms)).abs().tril(-1)
    if cosines.numel() and float(cosines.max()) > 1 - 1e-14:
        i, j = divmod(int(cosines.argmax()), len(free))
        raise ValueError(
            f"columns {free[j]} and {free[i]} of the basis are multiples of each other at the start; "
            "give their parameters different starts"
        )


def _search(objective: CurveObjective, theta: Mapping[str, float], starts: int, seed: int) -> tuple[Found, Starts]:
    """The best of all starts."""
    best = search(objective, objective.parameters.inner(theta))
    ends = [best]
    for each in draws(objective, theta, starts - 1, seed):
        ended = tried(objective, each)
        if ended is not None:
            ends.append(ended)
            better = ended.point.rss < best.point.rss and not same(ended.point.rss, best.point.rss)
            if (ended.solved, better) > (best.solved, False):
                best = ended
    if not best.solved and theta:
        best = rescued(objective, theta, seed, best)
    in_best = sum(same(each.point.rss, best.point.rss) for each in ends)
    return best, Starts(starts, in_best, best.rescued)


@dataclass(frozen=True)
class _Problem:
    """Data and constraints of a fit, without the basis."""

    data: Data
    asked: Coefficients
    huber: bool
    noise: float | None

    def objective(self, basis: Basis, parameters: Parameters, weights: Tensor | None) -> CurveObjective:
        """The objective for some weights."""
        apart = self.asked.nonnegative or bool(self.asked.fixed)
        return CurveObjective(basis, parameters, blocks_of(self.data.Y, weights, apart), self.asked)

    def result(self, objective: CurveObjective, found: Found, starts: Starts, theta: Mapping[str, float]) -> Fit:
        """The fit at the end of a search."""
        data, counted = self.data, self._counted()
        huber, pieces = None, self._pieces(found.point.Z, data.weights)
        if self.huber:
            objective, found, huber, weights = self._reweighted(objective, found, pieces, theta)
            robust = _coefficients(self._pieces(found.point.Z, weights), data)
            pieces = [with_coefficients(piece, found.point.Z, robust) for piece in pieces]
        W = _coefficients(pieces, data)
        unknowns = len(found.point.theta) + sum(len(p.columns) * p.W.shape[0] * p.W.shape[2] for p in pieces)
        dof = data.n_observed - unknowns
        rss = found.point.rss
        if huber is not None:
            residual = self._residual(found.point.Z, W)
            rss = float(residual.square().sum())
            variance = huber.variance(residual, counted, dof)
        else:
            variance = rss / dof if dof > 0 else math.nan
        if self.noise is not None:
            variance = self.noise**2
        root = _root(found.point, pieces if huber is not None else None)
        slim = [
            replace(piece, residual=piece.residual[:0], block=replace(piece.block, Y=piece.block.Y[:0]))
            for piece in pieces
        ]
        uncertainty = Uncertainty(slim, found.point.dZ, root, variance, data.Y.shape[1])
        return Fit(objective, found, uncertainty, data, W, rss, dof, starts, self.noise is not None)

    def _counted(self) -> Tensor:
        """Mask of the values of y that count."""
        w = self.data.weights
        return torch.ones_like(self.data.Y, dtype=torch.bool) if w is None else (w > 0).expand_as(self.data.Y)

    def _residual(self, Z: Tensor, W: Tensor) -> Tensor:
        """Weighted residuals like y."""
        rows = self.data.Y - Z @ W
        return rows if self.data.weights is None else self.data.weights.sqrt() * rows

    def _pieces(self, Z: Tensor, weights: Tensor | None) -> list[Piece]:
        """Eliminate every curve by itself, a few thousand at a time."""
        found = []
        for block in blocks_of(self.data.Y, weights, True):
            for columns in torch.split(torch.arange(block.Y.shape[2]), CURVES_AT_A_TIME):
                some = block
                if len(columns) < block.Y.shape[2]:
                    curves = columns if block.curves is None else block.curves[columns]
                    some = Block(block.root, block.Y[:, :, columns], curves)
                kept = eliminate(Z, some, self.asked)
                found += [replace(p, residual=p.residual[:0], block=replace(p.block, Y=p.block.Y[:0])) for p in kept]
        return found

    def _reweighted(
        self, objective: CurveObjective, found: Found, pieces: list[Piece], theta: Mapping[str, float]
    ) -> tuple[CurveObjective, Found, Huber, Tensor]:
        """Least squares again and again, until the weights repeat themselves."""
        counted, given = self._counted(), self.data.weights
        W = _coefficients(pieces, self.data)
        last = torch.zeros_like(self.data.Y)
        huber = Huber(math.inf)
        for i in range(REWEIGHTINGS):
            residual = self._residual(found.point.Z, W)
            huber = Huber.of(residual, counted) if i < SCALED else huber
            v = huber.weights(residual)
            change = float((v - last).abs().max())
            if change < REPEATED or huber.delta == 0:
                break
            last = v
            weights = v if given is None else given * v
            current = self.objective(objective.basis, found.point.objective.parameters, weights)
            again = search(current, found.point.x)
            if i < RESTARTED:  # outliers may have led the first fit far away
                other = search(current, current.parameters.inner(theta))
                again = min((again, other), key=lambda each: (not each.solved, each.point.rss))
            found = replace(again, on_bounds=found.on_bounds)
            W = _coefficients(self._pieces(found.point.Z, weights), self.data)
        else:
            reason = f"the weights of Huber's loss still change by {change:.1e} after {REWEIGHTINGS} reweightings"
            found = replace(found, verdict=replace(found.verdict, reasons=(*found.verdict.reasons, reason)))
        final = last if given is None else given * last
        return found.point.objective, found, huber, final if last.any() else torch.ones_like(last)


def _coefficients(pieces: list[Piece], data: Data) -> Tensor:
    """(m, curves)."""
    none = pieces[0].W.new_zeros(0, 0)
    return Uncertainty(pieces, none, none, 0.0, data.Y.shape[1]).coefficients()


def with_coefficients(piece: Piece, Z: Tensor, W: Tensor) -> Piece:
    """A piece of one set of weights with other coefficients, of all curves."""
    own = W if piece.block.curves is None else W[:, piece.block.curves]
    B, m, r = piece.W.shape
    return replace(piece, W=own.reshape(m, B, r).transpose(0, 1).contiguous())


def _root(point: CurvePoint, pieces: list[Piece] | None) -> Tensor:
    """R_J^-1 in the units of theta, from the rotated curves or from given pieces."""
    if pieces is not None:
        J = torch.cat([piece.jacobian(point.dZ) for piece in pieces])
        norms = torch.linalg.vector_norm(J, dim=0)
        R = torch.linalg.qr(J / norms, mode="r").R
    else:
        R, _, norms = point.triangle
    units = torch.eye(len(R), dtype=R.dtype)
    root: Tensor = torch.linalg.solve_triangular(R, units, upper=True) / norms[:, None]
    return root
