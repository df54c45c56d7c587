"""The report's sections on equations: a table with the published number, convergence of every method, solution and error."""

from __future__ import annotations

import csv
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnvpro.drawing import page_figure, readable_log_axis
from gnvpro.experiments.equations import EQUATIONS, CatalogueEntry
from gnvpro.experiments.equations.equation_run import SOLUTION
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.files import CONFIG, HISTORY, METRICS, kind_of_run, read_json
from gnvpro.pages import Markup, Section, TableRow, bullets, paragraph, picture, section, table

COLOURS = {"gnvpro": "#0072B2", "lbfgs": "#009E73", "adam": "#E69F00", "frozen": "#666666"}
NAMES = {"gnvpro": "GNvpro", "lbfgs": "L-BFGS", "adam": "ADAM", "frozen": "random features"}


@dataclass(frozen=True)
class SolvedRun:
    """One finished run of an equation."""

    directory: Path
    metrics: dict[str, Any]
    history: np.ndarray  # columns: seconds, loss, error

    @property
    def method(self) -> str:
        """Method and settings of the run."""
        return str(self.metrics["method"])


def equation_sections(directory: Path, out: Path) -> tuple[list[Section], list[str]]:
    """Return a section for each equation with finished runs, and a sentence for each run that is not whole."""
    groups: dict[str, list[SolvedRun]] = {}
    problems = []
    for path in (path for path in sorted(directory.rglob(CONFIG)) if kind_of_run(path) == "equation"):
        try:
            run = _read(path.parent)
            groups.setdefault(str(run.metrics["experiment"]), []).append(run)
        except (ValueError, OSError, KeyError) as error:
            problems.append(f"{path.parent.relative_to(directory)}: {error}")
    sections = [equation_section(problem, groups[name], out) for name, problem in EQUATIONS.items() if name in groups]
    return sections, problems


def _read(directory: Path) -> SolvedRun:
    if not (directory / METRICS).is_file():
        raise ValueError(f"it is not finished: {METRICS} is missing")
    metrics = read_json(directory / METRICS)
    if metrics.get("experiment") not in EQUATIONS or metrics.get("method") not in METHODS:
        raise ValueError(f"{METRICS} names an unknown equation or method")
    with open(directory / HISTORY, newline="") as file:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
    if not rows:
        raise ValueError(f"{HISTORY} is empty")
    return SolvedRun(directory, metrics, np.array(rows))


def equation_section(problem: CatalogueEntry, runs: list[SolvedRun], out: Path) -> Section:
    """Return all about one equation."""
    runs = sorted(runs, key=lambda run: (list(METHODS).index(run.method), run.metrics["seed"]))
    kind = "Relative error (L2)" if problem.relative else "Root mean square error"
    figures = [
        (
            "convergence",
            f"{kind} on points that were not trained on, against processor seconds of one core.",
            convergence(runs),
        )
    ]
    best = [run for run in runs if run.method == "gnvpro"]
    if best:
        figures.append(
            (
                "solution",
                "Left: the solution found by gnvpro. Right: its difference from the reference solution.",
                solution(problem, best[0]),
            )
        )
    pictures = [_saved(out / f"{problem.name}-{name}.png", caption, figure) for name, caption, figure in figures]
    goal = "" if problem.goal is None else f" Goal: {problem.goal:.0e} in {problem.seconds:g} s."
    published = "" if problem.published in ("", "-") else f"Published: {problem.published}."
    rows = [TableRow(_cells(run), {"data-run": run.directory.name}) for run in runs]
    scores = table(
        f"{kind} on points that were not trained on. s: processor seconds, of at most {problem.seconds:g} by default.",
        ["method", "seed", "best error", "at s", "last error", "s", "to the goal, s"],
        rows,
        "scores",
    )
    stated = (inspect.getdoc(problem.pose) or "").partition("\n\n")[0]
    about = paragraph(f"{stated} Network and points of each equation: {problem.summary}. {published}{goal}")
    return section(problem.name, problem.title, about, scores, _residuals(best), *pictures)


def _cells(run: SolvedRun) -> list[str]:
    metrics = run.metrics
    name = Markup(f'<i style="background:{COLOURS[run.method]}"></i>{NAMES[run.method]}')
    numbers = f"{metrics['best_error']:.1e}", f"{metrics['best_seconds']:.1f}", f"{metrics['error']:.1e}"
    return [name, str(metrics["seed"]), *numbers, f"{metrics['seconds']:.1f}", _reached(run)]


def _reached(run: SolvedRun) -> str:
    at = run.metrics["goal_seconds"]
    return "-" if at is None else f"{at:.1f}"


def _residuals(runs: list[SolvedRun]) -> Markup:
    if not runs:
        return Markup("")
    metrics = runs[0].metrics
    residuals = metrics["residuals"].items()
    items = [f"{name}: {r['checked']:.1e} {r['how']}, {r['on_points']:.1e} on its points" for name, r in residuals]
    found = [f"{name}: found {c['found']:.8g}, true {c['true']:.8g}" for name, c in metrics["constants"].items()]
    return bullets("Residuals of GNvpro's solution (root mean squares):", [*items, *found])


def convergence(runs: list[SolvedRun]) -> Any:
    """Error against seconds, one line for each run."""
    figure = page_figure(6.0, 3.4)
    axes = figure.subplots()
    named = set()
    for run in runs:
        label = None if run.method in named else NAMES[run.method]
        named.add(run.method)
        style = {"marker": "o", "linestyle": "none"} if run.method == "frozen" else {"linewidth": 1.5}
        axes.plot(run.history[:, 0], run.history[:, 2], color=COLOURS[run.method], label=label, **style)
    axes.set(yscale="log", xlabel="processor seconds", ylabel="error")
    errors = np.concatenate([run.history[:, 2] for run in runs])
    errors = errors[np.isfinite(errors) & (errors > 0)]
    if errors.size:
        readable_log_axis(axes.yaxis, float(errors.min()), float(errors.max()))
    axes.grid(alpha=0.25, lw=0.5)
    figure.legend(loc="outside upper center", ncols=len(named), frameon=False)
    return figure


def solution(problem: CatalogueEntry, run: SolvedRun) -> Any:
    """Two pictures side by side."""
    with open(run.directory / SOLUTION, "rb") as handle, np.load(handle) as file:
        arrays = {key: file[key] for key in file.files}
    figure = page_figure(8.0, 3.2)
    for axes, key, colours in zip(figure.subplots(1, 2), ("solution", "error"), ("viridis", "RdBu_r"), strict=True):
        values = arrays[key]
        largest = float(np.nanmax(np.abs(values)))
        limits = {"vmin": -largest, "vmax": largest} if key == "error" else {}
        drawn = axes.pcolormesh(arrays["a"], arrays["b"], values.T, cmap=colours, shading="gouraud", **limits)
        axes.set(title=key, xlabel=problem.axes[0], ylabel=problem.axes[1])
        figure.colorbar(drawn, ax=axes)
    return figure


def _saved(path: Path, caption: str, figure: Any) -> Markup:
    figure.savefig(path)
    return picture(path.read_bytes(), caption, path.name, narrow=True)
