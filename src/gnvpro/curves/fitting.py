"""Fit curves: from a basis, samples and a start to parameters, coefficients and their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.curves.algebra import Array, back_substitute, lengths
from gnvpro.curves.algebra import triangle as triangular
from gnvpro.curves.basis import Basis, Columns, Evaluated
from gnvpro.curves.coefficients import Block, Coefficients, Piece, blocks_of, eliminate
from gnvpro.curves.curve_objective import CurveObjective, CurvePoint
from gnvpro.curves.fit_arguments import Data, check_data, check_parameters
from gnvpro.curves.fitted import Fit, Starts
from gnvpro.curves.parameters import Parameters, Tie
from gnvpro.curves.robust import REPEATED, RESTARTED, REWEIGHTINGS, SCALED, Huber
from gnvpro.curves.search import SearchEnd, draws, rescued, same, search, tried
from gnvpro.curves.uncertainty import Uncertainty, coefficients
from gnvpro.curves.verify import condition

CURVES_AT_A_TIME = 8192  # whose coefficients are computed together
LEAST, LARGEST = 1e-140, 1e140  # derivatives whose squares stay within float64
SINGULAR = 1e15  # condition number at the start from which no step can be computed


@np.errstate(all="ignore")  # what is not finite is checked
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
        seed: seed of the drawn starts.
        loss: "least_squares" or "huber", which bounds the influence of outliers.
        missing: "raise" for an error if y has NaN, "omit" to leave these values out.
        noise: the standard deviation of a value of weight one; estimated from the residuals if left out.

    Returns:
        A `Fit`. `solved` is the claim that this is a minimum; it has been checked by means other than the search's.

    Raises:
        ValueError, TypeError: an argument cannot be used; the message names it and the remedy.

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
    if not isinstance(nonnegative, bool):
        raise TypeError(f"nonnegative must be True or False; got {nonnegative!r}")
    asked = Coefficients(held, nonnegative)
    problem = _Problem(data, asked, loss == "huber", noise)
    first = _first(columns, data, parameters, theta)
    check_first(first.Z, data, held, len(theta))
    start_point = problem.start(first, parameters, theta)
    check_start(start_point)
    start_point = _in_units(start_point, theta)
    objective = start_point.objective
    found, summary = _search(start_point, theta, check_count("starts", starts, 1), check_count("seed", seed, 0))
    if not found.point.columns.right():  # rows depend on each other after all
        objective = replace(objective, basis=replace(objective.basis, by_sample=False))
        found = search(objective.at(objective.parameters.inner(theta)))
    return problem.result(objective, found, summary, theta)


def _first(columns: Columns, data: Data, parameters: Parameters, theta: Mapping[str, float]) -> Evaluated:
    """The columns at the start, with the derivatives that are right for them."""
    x = parameters.inner(theta).numpy()
    return Basis(columns, data.x, parameters.names).tried(parameters.values(parameters.theta(x)[0]))


def _in_units(point: CurvePoint, theta: Mapping[str, float]) -> CurvePoint:
    """Return the start with parameters in units that move the curves equally."""
    size = point.objective.target_norm or 1.0
    parameters = point.objective.parameters
    units = {name: size / norm for name, norm in zip(parameters.free, point.whole_norms.tolist(), strict=True) if norm}
    parameters = parameters.scaled(units)
    x = parameters.inner(theta)
    moved = replace(point, objective=point.objective.with_parameters(parameters), x=x)
    return replace(moved, slope=parameters.theta(x.numpy())[1])


def check_first(Z: Array, data: Data, fixed: Mapping[int, float], parameters: int) -> None:
    """Check the columns at the start; errors that a user can make show here."""
    unknown = [j for j in fixed if j >= Z.shape[1]]
    if unknown:
        raise ValueError(f"fixed has 'c{unknown[0]}', but the {Z.shape[1]} coefficients are c0 to c{Z.shape[1] - 1}")
    if not np.isfinite(Z).all():
        i, j = np.argwhere(~np.isfinite(Z))[0].tolist()
        raise ValueError(
            f"column {j} of the basis is {Z[i, j]} at the start, first at sample {i} (x = {data.x[i].tolist()}); "
            "choose another start, or scale x"
        )
    free = [j for j in range(Z.shape[1]) if j not in fixed]
    check_counts(data, parameters, len(free))
    check_columns(Z[:, free], free)


def check_start(point: CurvePoint) -> None:
    """Check the first point."""
    parameters = point.objective.parameters
    number, which = condition(point)
    if not math.isfinite(point.value) or (number > SINGULAR and "columns" in which):
        raise ValueError(
            f"{which} at the start (condition number {number:.1e}); start from parameters that differ more"
        )
    for k, (name, size) in enumerate(zip(parameters.free, point.whole_norms.tolist(), strict=True)):
        if size == 0 and not point.dZ[..., k].any():
            raise ValueError(
                f"no column depends on {name!r} at the start; leave it out, fix it, or choose another start"
            )
        if not (size == 0 or LEAST < size < LARGEST):
            raise ValueError(
                f"the derivative of the curves in {name!r} is {size:.0e} at the start; choose another start, or scale x"
            )


def check_counts(data: Data, parameters: int, coefficients: int) -> None:
    """Check that there are as many values as unknowns, for all curves and for each."""
    unknowns = parameters + coefficients * data.Y.shape[1]
    if data.n_observed < unknowns:
        raise ValueError(
            f"{data.n_observed} values cannot determine {unknowns} unknowns ({parameters} parameters and {coefficients} "
            f"coefficients for each of {data.Y.shape[1]} curves); fix some, or use fewer columns"
        )
    short = np.flatnonzero(data.counts < coefficients)
    if len(short):
        raise ValueError(
            f"curve {short[0]} has {data.counts[short[0]]} values with a weight above zero, too few for {coefficients} "
            "coefficients; leave this curve out, or fix some coefficients"
        )


def check_columns(Z: Array, free: list[int]) -> None:
    """No column is zero, and no two are multiples of each other."""
    norms = lengths(Z)
    for j, norm in zip(free, norms.tolist(), strict=True):
        if norm == 0:
            raise ValueError(f"column {j} of the basis is zero at every sample; choose another start, or leave it out")
    cosines = np.tril(abs((Z / norms).T @ (Z / norms)), -1)
    if cosines.size and float(cosines.max()) > 1 - 1e-14:
        i, j = divmod(int(cosines.argmax()), len(free))
        raise ValueError(
            f"columns {free[j]} and {free[i]} of the basis are multiples of each other at the start; "
            "give their parameters different starts"
        )


def _search(point: CurvePoint, theta: Mapping[str, float], starts: int, seed: int) -> tuple[SearchEnd, Starts]:
    """The best of all starts."""
    objective, best = point.objective, search(point)
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

    def start(self, columns: Evaluated, parameters: Parameters, theta: Mapping[str, float]) -> CurvePoint:
        """The first point."""
        x = parameters.inner(theta)
        return self.objective(columns.basis, parameters, self.data.weights).given(
            x, *parameters.theta(x.numpy()), columns
        )

    def objective(self, basis: Basis, parameters: Parameters, weights: Array | None) -> CurveObjective:
        """The objective for some weights."""
        apart = self.asked.nonnegative or bool(self.asked.fixed)
        return CurveObjective(basis, parameters, blocks_of(self.data.Y, weights, apart), self.asked)

    def result(self, objective: CurveObjective, found: SearchEnd, starts: Starts, theta: Mapping[str, float]) -> Fit:
        """The fit at the end of a search."""
        data, counted = self.data, self._counted()
        huber, pieces = None, self._pieces(found.point.Z, data.weights)
        if self.huber:
            objective, found, huber, weights = self._reweighted(objective, found, pieces, theta)
            robust = coefficients(self._pieces(found.point.Z, weights), data.Y.shape[1])
            pieces = [with_coefficients(piece, found.point.Z, robust) for piece in pieces]
        W = coefficients(pieces, data.Y.shape[1])
        unknowns = len(found.point.theta) + sum(len(p.columns) * p.W.shape[0] * p.W.shape[2] for p in pieces)
        dof = data.n_observed - unknowns
        rss = found.point.rss
        if huber is not None:
            residual = self._residual(found.point.Z, W)
            rss = float(np.square(residual).sum())
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
        uncertainty = Uncertainty(slim, found.point, root, variance, data.Y.shape[1])
        return Fit(objective, found, uncertainty, data, W, rss, dof, starts, self.noise is not None)

    def _counted(self) -> Array:
        """Mask of the values of y that count."""
        w = self.data.weights
        return np.broadcast_to(True if w is None else w > 0, self.data.Y.shape)

    def _residual(self, Z: Array, W: Array) -> Array:
        """Weighted residuals like y."""
        rows = self.data.Y - Z @ W
        return rows if self.data.weights is None else np.sqrt(self.data.weights) * rows

    def _pieces(self, Z: Array, weights: Array | None) -> list[Piece]:
        """Eliminate every curve by itself, a few thousand at a time."""
        found = []
        for block in blocks_of(self.data.Y, weights, True):
            for first in range(0, block.Y.shape[2], CURVES_AT_A_TIME):
                columns = np.arange(first, min(first + CURVES_AT_A_TIME, block.Y.shape[2]))
                some = block
                if len(columns) < block.Y.shape[2]:
                    curves = columns if block.curves is None else block.curves[columns]
                    some = Block(block.root, block.Y[:, :, columns], curves)
                kept = eliminate(Z, some, self.asked)
                found += [replace(p, residual=p.residual[:0], block=replace(p.block, Y=p.block.Y[:0])) for p in kept]
        return found

    def _reweighted(
        self, objective: CurveObjective, found: SearchEnd, pieces: list[Piece], theta: Mapping[str, float]
    ) -> tuple[CurveObjective, SearchEnd, Huber, Array]:
        """Reweight from the plain fit, which outliers may have led far away, and from the start; return the better end."""
        start = objective.at(objective.parameters.inner(theta))
        ends = [
            self._repeated(objective, found, coefficients(pieces, self.data.Y.shape[1]), theta),
            self._repeated(objective, replace(found, point=start, on_bounds={}), self._robust(start.Z), theta),
        ]
        least = Huber(min(huber.delta for _, _, huber, _ in ends))

        def worse(end: tuple[CurveObjective, SearchEnd, Huber, Array]) -> tuple[bool, float]:
            _, found, _, weights = end
            W = coefficients(self._pieces(found.point.Z, weights), self.data.Y.shape[1])
            return not found.solved, least.loss(self._residual(found.point.Z, W)[self._counted()])

        return min(ends, key=worse)

    def _robust(self, Z: Array) -> Array:
        """Coefficients for fixed columns, by a few reweightings."""
        weights, given = self.data.weights, self.data.weights
        for _ in range(RESTARTED):
            residual = self._residual(Z, coefficients(self._pieces(Z, weights), self.data.Y.shape[1]))
            v = Huber.of(residual, self._counted()).weights(residual)
            if not v.any():
                break
            weights = v if given is None else given * v
        return coefficients(self._pieces(Z, weights), self.data.Y.shape[1])

    def _repeated(
        self, objective: CurveObjective, found: SearchEnd, W: Array, theta: Mapping[str, float]
    ) -> tuple[CurveObjective, SearchEnd, Huber, Array]:
        """Least squares again and again, until the weights repeat themselves."""
        counted, given = self._counted(), self.data.weights
        last = np.zeros_like(self.data.Y)
        huber = Huber(math.inf)
        for i in range(REWEIGHTINGS):
            residual = self._residual(found.point.Z, W)
            huber = Huber.of(residual, counted) if i < SCALED else huber
            v = huber.weights(residual)
            change = float(abs(v - last).max())
            if change < REPEATED or huber.delta == 0:
                break
            last = v
            weights = v if given is None else given * v
            current = self.objective(objective.basis, found.point.objective.parameters, weights)
            again = search(current.at(found.point.x))
            if i < RESTARTED:  # outliers may have led the first fit far away
                other = search(current.at(current.parameters.inner(theta)))
                again = min((again, other), key=lambda each: (not each.solved, each.point.rss))
            found = replace(again, on_bounds={**found.on_bounds, **again.on_bounds})
            W = coefficients(self._pieces(found.point.Z, weights), self.data.Y.shape[1])
        else:
            reason = f"the weights of Huber's loss still change by {change:.1e} after {REWEIGHTINGS} reweightings"
            found = replace(found, verdict=replace(found.verdict, reasons=(*found.verdict.reasons, reason)))
        final = last if given is None else given * last
        return found.point.objective, found, huber, final if last.any() else np.ones_like(last)


def with_coefficients(piece: Piece, Z: Array, W: Array) -> Piece:
    """A piece of one set of weights with other coefficients, of all curves."""
    own = W if piece.block.curves is None else W[:, piece.block.curves]
    B, m, r = piece.W.shape
    return replace(piece, W=np.ascontiguousarray(own.reshape(m, B, r).swapaxes(0, 1)))


def _root(point: CurvePoint, pieces: list[Piece] | None) -> Array:
    """R_J^-1 in the units of theta, from the rotated curves or from given pieces."""
    if pieces is not None:
        J = np.concatenate([piece.projected(piece.moved(point.columns, point.ties)) for piece in pieces])
        norms = lengths(J)
        R, _ = triangular(J / norms, np.zeros(len(J)))
    else:
        R, _, norms = point.triangle
    with np.errstate(divide="ignore", invalid="ignore"):
        root: Array = back_substitute(R[None], np.eye(len(R))[None])[0] / norms[:, None]
    return root
