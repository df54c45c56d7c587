"""The result of `pde.solve` as a figure: field, residuals, points and convergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnvpro.arguments import check_choice
from gnvpro.drawing import BLUE, GREEN, GREY, ORANGE, PINK, VERMILION, new_figure, plain
from gnvpro.pde.equation import Equation
from gnvpro.pde.evaluate import values_of
from gnvpro.pde.field import Field
from gnvpro.training.plots import AXES, PANELS, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gnvpro.training.history import History

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PINK, GREY)
SHOWN = 4000  # points of a panel
SEED = 800_000
LEAST = 1e-300  # below the logarithms


@torch.no_grad()
def solution_figure(u: Field, equations: Sequence[Equation], history: History, against: str = "work") -> Figure:
    """Draw the field's first output, the sizes of the residuals of the equation with most points, the points, and the history.

    Points of more than two coordinates are drawn by their first two.
    """
    check_choice("against", against, AXES)
    figure = new_figure(10.5, 7.0)
    first, second, third, fourth = figure.subplots(2, 2).flat
    at_points = [equation for equation in equations if equation.compiled.own is not None]
    if at_points:
        largest = max(at_points, key=lambda equation: equation.rows)
        there = dense(largest)
        points = there.compiled.sites[0].points
        _values(first, u, points)
        residual = values_of(there.expression, u, points) - there.targets
        name = largest.name or f"equation {list(equations).index(largest)}"
        _drawn(second, points, residual.abs().clamp(min=LEAST).log10(), "viridis")
        second.set_title(f"log10 |residual| of {plain(name)}")
    for i, equation in enumerate(at_points):
        where = equation.compiled.sites[0].points
        ordinate = where[:, 1] if where.shape[1] > 1 else torch.full_like(where[:, 0], float(i))
        label = plain(equation.name or f"equation {i}")
        third.plot(where[:, 0], ordinate, ".", ms=2.5, color=COLOURS[i % len(COLOURS)], label=label)
    third.set_title("points")
    if at_points:
        third.legend(frameon=False, fontsize="small")
    title, lines = PANELS[0]
    panel(fourth, history, lines, against)
    fourth.set(title=title, xlabel=AXES[against])
    return figure


def dense(equation: Equation) -> Equation:
    """The equation at more points, if others can be drawn."""
    if not equation.can_be_redrawn or equation.set is None:
        return equation
    return equation.at(type(equation.set)(equation.set.fresh(SHOWN, SEED)))


def _values(axes: Any, u: Field, points: Tensor) -> None:
    values = u(points)
    if points.shape[1] == 1:
        order = points[:, 0].argsort()
        for k in range(u.outputs):
            axes.plot(points[order, 0], values[order, k], color=COLOURS[k % len(COLOURS)], label=f"u[{k}]")
        axes.legend(frameon=False, fontsize="small")
        axes.set_title("field")
        return
    _drawn(axes, points, values[:, 0], "RdBu_r")
    axes.set_title("field" if u.outputs == 1 else "u[0]")


def _drawn(axes: Any, points: Tensor, values: Tensor, colours: str) -> None:
    """Values over a line, or as colours in the plane."""
    if points.shape[1] == 1:
        axes.plot(points[:, 0], values, ".", ms=2.5, color=BLUE)
        return
    drawn = axes.scatter(points[:, 0], points[:, 1], c=values, s=5, cmap=colours, rasterized=True)
    axes.figure.colorbar(drawn, ax=axes)
