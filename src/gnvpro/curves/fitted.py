"""The result of `curves.fit`: parameters, coefficients, their errors, predictions, intervals, a summary and a figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri, stdtrit

from gnvpro.arguments import check_number
from gnvpro.curves.algebra import Array
from gnvpro.curves.curve_objective import CurveObjective
from gnvpro.curves.fit_arguments import Data, as_tensor
from gnvpro.curves.profile import held_coefficient_rss, held_rss, profile_interval
from gnvpro.curves.search import SearchEnd
from gnvpro.curves.uncertainty import Uncertainty
from gnvpro.drawing import BLUE, GREY, VERMILION, new_figure
from gnvpro.minimize.status import Status
from gnvpro.training.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_IN_COVARIANCE = 4000  # rows of the covariance of everything
MOST_IN_SUMMARY = 20  # curves whose coefficients a summary lists
CURVES_DRAWN = 6
ILL = 1e5  # condition number above which a note names it


@dataclass(frozen=True)
class Starts:
    """Number of starts, and how many of them ended in the best."""

    count: int
    in_best: int  # that ended in the best sum of squares
    rescues: int  # draws around the start, made because no start led to a minimum


@dataclass(frozen=True, repr=False)
class Fit:
    """Fitted curves.

    `curves.fit` returns it. Its numbers are NumPy arrays and floats.

    Attributes:
        rss: weighted sum of squared residuals.
        dof: degrees of freedom, values minus unknowns.
        starts: number of starts, and how many of them ended in the best minimum.
        noise_known: True if the noise was given, False if it was estimated.

    >>> import torch
    >>> from gnvpro import curves
    >>> x = torch.linspace(0, 4, 60, dtype=torch.float64)
    >>> y = 2 * torch.exp(-0.5 * x) + 1
    >>> found = curves.fit(lambda x, k: [torch.exp(-k * x), 1.0], x, y, start={"k": 1.0})
    >>> round(found.parameters["k"], 6), found.coefficients.round(6).tolist(), found.dof
    (0.5, [2.0, 1.0], 57)
    >>> found.names, found.covariance.shape
    (('k', 'c0', 'c1'), (3, 3))
    """

    _objective: CurveObjective
    _found: SearchEnd
    _uncertainty: Uncertainty
    _data: Data
    _W: Array
    rss: float
    dof: int
    starts: Starts
    noise_known: bool

    @property
    def status(self) -> Status:
        """Why the search ended."""
        return self._found.status

    @property
    def solved(self) -> bool:
        """True if this is a minimum: the gradient is zero, the curvature positive, nothing collinear."""
        return self._found.solved

    @property
    def iterations(self) -> int:
        """Trial steps of the search that ended here."""
        return self._found.iterations

    @property
    def condition(self) -> float:
        """The condition number of columns and Jacobian, each column of length one."""
        return self._found.verdict.condition

    @cached_property
    def parameters(self) -> dict[str, float]:
        """The nonlinear parameters, fixed and tied ones included."""
        point = self._found.point
        return {name: float(v) for name, v in zip(point.objective.parameters.names, point.values, strict=True)}

    @property
    def coefficients(self) -> Array:
        """The coefficients of the columns, (m,) or (m, curves)."""
        return self._like_y(self._W)

    @cached_property
    def coefficient_errors(self) -> Array:
        """Their standard errors; zero if a coefficient is fixed or held at zero."""
        return self._like_y(self._uncertainty.coefficient_errors())

    @cached_property
    @np.errstate(all="ignore")
    def standard_errors(self) -> dict[str, float]:
        """The standard errors of the parameters: zero if fixed, NaN on a bound."""
        point = self._found.point
        T = point.objective.parameters.jacobian(point.theta) @ self._uncertainty.root
        errors = np.sqrt(self._uncertainty.variance * np.square(T).sum(1)).tolist()
        named = dict(zip(point.objective.parameters.names, errors, strict=True))
        return named | dict.fromkeys(self._found.on_bounds, math.nan)

    @property
    def residual_deviation(self) -> float:
        """The standard deviation of a value of weight one: estimated, or as given."""
        return math.sqrt(self._uncertainty.variance)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The rows of `covariance`: parameters, then coefficients curve by curve."""
        m, K = self._W.shape
        own = [f"c{j}" if self._data.single else f"c{j}[{k}]" for k in range(K) for j in range(m)]
        return (*self._found.point.objective.parameters.names, *own)

    @cached_property
    def covariance(self) -> Array:
        """The covariance of parameters and coefficients, in the order of `names`."""
        size = len(self._found.point.objective.parameters.names) + self._W.size
        if size > MOST_IN_COVARIANCE:
            raise ValueError(
                f"the covariance of {size} numbers would take {8e-9 * size**2:.0f} GB; use standard_errors and "
                "coefficient_errors, or fit fewer curves"
            )
        point = self._found.point
        return self._uncertainty.covariance(point.objective.parameters.jacobian(point.theta))

    @cached_property
    def correlation(self) -> Array:
        """The covariance in units of the standard errors."""
        errors = np.sqrt(np.diag(self.covariance))
        correlation: Array = self.covariance / np.outer(errors, errors)
        return correlation

    @np.errstate(all="ignore")
    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """The profile-likelihood interval of a parameter, or of a coefficient ("c0") of a single curve.

        Args:
            name: which.
            level: the probability that the interval covers the true value.

        Returns:
            Both ends; an end is infinite, or the bound, if the data set no limit.
        """
        check_number("level", level, 0.0, strict=True)
        if not level < 1:
            raise ValueError(f"level must be below 1; got {level!r}")
        if self.dof == 0 and not self.noise_known:
            raise ValueError("there are as many unknowns as values, so the noise is unknown; pass noise= to curves.fit")
        quantile = float(ndtri((1 + level) / 2) if self.noise_known else stdtrit(self.dof, (1 + level) / 2))
        point = self._found.point
        objective, variance = point.objective, self._uncertainty.variance
        if name in objective.parameters.free:
            bound = objective.parameters.bounds[name]
            limits = (-math.inf if bound.low is None else bound.low, math.inf if bound.high is None else bound.high)
            theta = objective.parameters.named(point.theta)
            rss = held_rss(objective, name, theta)
            return profile_interval(rss, theta[name], self.standard_errors[name], variance, quantile, limits)
        free = [f"c{j}" for j in range(len(self._W)) if j not in objective.asked.fixed] if self._data.single else []
        if name not in free:
            raise ValueError(
                f"interval is for {', '.join((*objective.parameters.free, *free))}; got {name!r} (fixed, tied, on a bound, "
                "unknown, or a coefficient of one of several curves, whose errors are in coefficient_errors)"
            )
        column = int(name[1:])
        limits = (0.0 if objective.asked.nonnegative else -math.inf, math.inf)
        best, error = float(self._W[column, 0]), float(self.coefficient_errors[column])
        return profile_interval(
            held_coefficient_rss(objective, column, point.x), best, error, variance, quantile, limits
        )

    def predict(self, x: Any, return_std: bool = False) -> Any:
        """The curves at other samples.

        Args:
            x: like the x of the fit.
            return_std: whether to return the standard errors of the curves too, noise not included.

        Returns:
            An array (n,) or (n, curves); with `return_std` two of them.
        """
        at = as_tensor("x", x)
        if at.ndim != self._data.x.ndim or at.shape[1:] != self._data.x.shape[1:]:
            raise ValueError(
                f"x must have shape {('n', *self._data.x.shape[1:])} as in the fit; got {tuple(at.shape)}".replace(
                    "'", ""
                )
            )
        point = self._found.point
        columns = point.objective.basis.on(at).at(point.values)
        Z = columns.Z
        curves = self._like_y(Z @ self._W)
        if not return_std:
            return curves
        dZ = columns.dZ @ point.objective.parameters.jacobian(point.theta)
        return curves, self._like_y(self._uncertainty.band(Z, dZ, self._W))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Sentences about this fit that a user should read."""
        found = list(self._found.verdict.reasons)
        found += [
            f"{name} is on its {side} bound; the other standard errors hold for {name} fixed there"
            for name, side in self._found.on_bounds.items()
        ]
        if self.starts.rescues:
            found.append(
                f"the search from the start did not end in a minimum; {self.starts.rescues} draws around it were tried"
            )
        if self.solved and self.condition > ILL:
            found.append(f"columns are nearly collinear: condition number {self.condition:.1e}")
        resolution = self._found.point.resolution
        if self.solved and resolution > 1e-8:
            known = (
                f"the sum of squares is right to about {resolution:.0e}" if resolution < 0.1 else "errors mean little"
            )
            found.append(f"the residuals are near rounding error; {known}")
        if self.dof == 0 and not self.noise_known:
            found.append("as many unknowns as values: the noise, and with it every error, is unknown")
        if self._held_at_zero:
            found.append(self._held_at_zero)
        return tuple(found)

    @property
    def _held_at_zero(self) -> str:
        objective = self._found.point.objective
        if not objective.asked.nonnegative:
            return ""
        zero = int((self._W == 0).sum()) - sum(v == 0 for v in objective.asked.fixed.values()) * self._W.shape[1]
        verb = "coefficient is" if zero == 1 else "coefficients are"
        return f"{zero} {verb} held at zero by nonnegative=True" if zero else ""

    def summary(self) -> Summary:
        """Values, errors and how the fit went: text on the terminal, a table in a notebook."""
        curves = "1 curve" if self._W.shape[1] == 1 else f"{self._W.shape[1]} curves"
        facts = {
            "ended": str(self.status) + ("" if self.solved else " Not solved."),
            "data": f"{self._data.n_observed} values in {curves}, {self.dof} degrees of freedom",
            "residual": f"sum of squares {self.rss:.8g}, standard deviation {self.residual_deviation:.4g}",
            "starts": f"{self.starts.in_best} of {self.starts.count} ended in the best",
            **{f"note {i + 1}": note for i, note in enumerate(self.notes)},
        }
        rows = [["", "value", "std. error", "relative"]]
        fixed = {
            *self._found.point.objective.parameters.fixed,
            *(f"c{j}" for j in self._found.point.objective.asked.fixed),
        }
        rows += [
            _row(name, value, self.standard_errors[name], name in fixed) for name, value in self.parameters.items()
        ]
        m, K = self._W.shape
        W, errors = self._W.reshape(m, K), np.reshape(self.coefficient_errors, (m, K))
        names = self.names[len(self.parameters) : len(self.parameters) + m * min(K, MOST_IN_SUMMARY)]
        for i, name in enumerate(names):
            k, j = divmod(i, m)
            rows.append(_row(name, float(W[j, k]), float(errors[j, k]), f"c{j}" in fixed))
        if K > MOST_IN_SUMMARY:
            facts["coefficients"] = f"of the first {MOST_IN_SUMMARY} of {K} curves"
        return Summary.of(facts, rows)

    def plot(self) -> Figure:
        """The first curves over their values with 95% bands, and the residuals below."""
        single = self._data.x.ndim == 1
        x = self._data.x.numpy() if single else np.arange(len(self._data.x))
        y, order = self._data.Y, np.argsort(x)
        w = self._data.weights
        seen = np.ones(y.shape, dtype=bool) if w is None else np.broadcast_to(w > 0, y.shape)
        few = y.shape[1] <= CURVES_DRAWN
        curves, std = self.predict(self._data.x, return_std=True) if few else (self.predict(self._data.x), 0.0)
        curves, std = np.reshape(curves, y.shape), np.broadcast_to(np.reshape(std, y.shape if few else (1, 1)), y.shape)
        figure = new_figure(6.4, 4.8)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        for k in range(min(y.shape[1], CURVES_DRAWN)):
            own, value, band = seen[:, k], curves[order, k], 1.96 * std[order, k]
            above.plot(x[own], y[own, k], ".", color=GREY, markersize=3)
            above.plot(x[order], value, color=BLUE, linewidth=1.2)
            above.fill_between(x[order], value - band, value + band, color=BLUE, alpha=0.2, linewidth=0)
            below.plot(x[own], y[own, k] - curves[own, k], ".", color=VERMILION, markersize=3)
        below.axhline(0, color=GREY, linewidth=0.8)
        above.set_ylabel("y")
        below.set(ylabel="residual", xlabel="x" if single else "sample")
        return figure

    def _like_y(self, A: Array) -> Array:
        return A[:, 0] if self._data.single else A

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.6g}" for name, value in self.parameters.items())
        return f"Fit({values}; rss={self.rss:.6g}, {'solved' if self.solved else 'not solved'})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def _row(name: str, value: float, error: float, fixed: bool) -> list[str]:
    relative = f"{abs(error / value):.1%}" if value and math.isfinite(error) and error else ""
    return [name, f"{value:.6g}", "fixed" if fixed and not error > 0 else f"{error:.2g}", relative]
