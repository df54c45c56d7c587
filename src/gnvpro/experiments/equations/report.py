"""The report's sections on equations: a table with the published number, convergence of every method, solution and error."""

from __future__ import annotations

import base64
import csv
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnvpro.drawing import readable_log_axis
from gnvpro.experiments.equations import EQUATIONS, EquationProblem
from gnvpro.experiments.equations.methods import METHODS
from gnvpro.experiments.equations.run import SOLUTION
from gnvpro.experiments.run import CONFIG, HISTORY, METRICS, read_json
from gnvpro.experiments.saved import kind
from gnvpro.experiments.style import new_figure

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
        """How it was solved."""
        return str(self.metrics["method"])


def equation_sections(directory: Path, out: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Anchor, title and section for each equation with finished runs, and a sentence for each run that is not whole."""
    groups: dict[str, list[SolvedRun]] = {}
    problems = []
    for path in (path for path in sorted(directory.rglob(CONFIG)) if kind(path) == "equation"):
        try:
            run = _read(path.parent)
            groups.setdefault(str(run.metrics["experiment"]), []).append(run)
        except (ValueError, OSError, KeyError) as error:
            problems.append(f"{path.parent.relative_to(directory)}: {error}")
    sections = [
        (name, problem.title, section(problem, groups[name], out))
        for name, problem in EQUATIONS.items()
        if name in groups
    ]
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


def section(problem: EquationProblem, runs: list[SolvedRun], out: Path) -> str:
    """All about one equation."""
    runs = sorted(runs, key=lambda run: (list(METHODS).index(run.method), run.metrics["seed"]))
    figures = [("convergence", "Error against processor seconds.", convergence(runs))]
    best = [run for run in runs if run.method == "gnvpro"]
    if best:
        figures.append(("solution", "The solution found by GNvpro, and its error.", solution(problem, best[0])))
    parts = [_figure(problem.name, name, caption, figure, out) for name, caption, figure in figures]
    goal = "" if problem.goal is None else f" Goal: {problem.goal:.0e} in {problem.seconds:g} s."
    published = "" if problem.published in ("", "-") else f"Published: {html.escape(problem.published)}."
    kind = "relative error (L2)" if problem.relative else "root mean square error"
    rows = "".join(
        f'<tr data-run="{html.escape(run.directory.name)}"><th><i style="background:{COLOURS[run.method]}"></i>'
        f"{NAMES[run.method]}</th><td>{run.metrics['seed']}</td><td>{run.metrics['best_error']:.1e}</td>"
        f"<td>{run.metrics['best_seconds']:.1f}</td><td>{run.metrics['error']:.1e}</td><td>{run.metrics['seconds']:.1f}</td><td>{_reached(run)}</td></tr>"
        for run in runs
    )
    return (
        f'<section id="{problem.name}"><h2>{html.escape(problem.title)}</h2><p>{html.escape(problem.summary)}. '
        f"{published}{goal}</p>"
        f'<div class="wide"><table class="scores"><caption>{kind}, on points that nobody trained on; s: processor seconds.'
        "</caption><thead><tr><th>method</th><th>seed</th><th>best error</th><th>at s</th><th>last error</th><th>s</th>"
        "<th>to the goal, s</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div>{_residuals(best)}{''.join(parts)}</section>"
    )


def _reached(run: SolvedRun) -> str:
    at = run.metrics["goal_seconds"]
    return "-" if at is None else f"{at:.1f}"


def _residuals(runs: list[SolvedRun]) -> str:
    if not runs:
        return ""
    items = "".join(
        f"<li>{html.escape(name)}: {r['checked']:.1e} {html.escape(r['how'])}, {r['on_points']:.1e} on its points</li>"
        for name, r in runs[0].metrics["residuals"].items()
    )
    found = "".join(
        f"<li>{html.escape(name)}: found {c['found']:.8g}, true {c['true']:.8g}</li>"
        for name, c in runs[0].metrics["constants"].items()
    )
    return f"<p>Residuals of GNvpro's solution (root mean squares):</p><ul>{items}{found}</ul>"


def convergence(runs: list[SolvedRun]) -> Any:
    """Error against seconds, one line for each run."""
    figure = new_figure(6.0, 3.4)
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


def solution(problem: EquationProblem, run: SolvedRun) -> Any:
    """Two pictures side by side."""
    with open(run.directory / SOLUTION, "rb") as handle, np.load(handle) as file:
        arrays = {key: file[key] for key in file.files}
    figure = new_figure(8.0, 3.2)
    for axes, key, colours in zip(figure.subplots(1, 2), ("solution", "error"), ("viridis", "RdBu_r"), strict=True):
        values = arrays[key]
        largest = float(np.nanmax(np.abs(values)))
        limits = {"vmin": -largest, "vmax": largest} if key == "error" else {}
        drawn = axes.pcolormesh(arrays["a"], arrays["b"], values.T, cmap=colours, shading="gouraud", **limits)
        axes.set(title=key, xlabel=problem.axes[0], ylabel=problem.axes[1])
        figure.colorbar(drawn, ax=axes)
    return figure


def _figure(problem: str, name: str, caption: str, figure: Any, out: Path) -> str:
    path = out / f"{problem}-{name}.png"
    figure.savefig(path)
    content = base64.b64encode(path.read_bytes()).decode()
    alt = html.escape(caption)
    return (
        f'<figure><div class="picture"><img class="narrow" src="data:image/png;base64,{content}" alt="{alt}"></div>'
        f"<figcaption>{alt} <small>({path.name})</small></figcaption></figure>"
    )
