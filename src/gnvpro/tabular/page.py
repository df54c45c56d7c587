"""Report on a model of a table: scores compared with other models, and plots of the held-out rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.drawing import BLUE, GREY, ORANGE, VERMILION, page_figure, plain
from gnvpro.files import CONFIG, HISTORY, METRICS, read_json
from gnvpro.pages import Section, TableRow, drawn, own_file, page, paragraph, picture, section, table
from gnvpro.tabular.table_run import PREDICTIONS, finished_tables
from gnvpro.training.history import History, Record
from gnvpro.training.plots import history_figure

REPORT = "report.html"
NAMES = {
    "r2": "R² (1 is perfect)",
    "rmse": "root mean square error",
    "mae": "mean absolute error",
    "accuracy": "accuracy",
    "log_loss": "log loss",
}
SHOWN = 4  # targets, inputs x 3 in the figures
LONGEST_NAME = 40  # of a column or class in a figure
Array = NDArray[Any]


def write_page(directory: Path) -> Path:
    """Write the page of one run into its directory."""
    config = read_json(directory / CONFIG)
    title = f"{config['data']}: {', '.join(config['targets'])}"
    path = own_file(directory / REPORT)
    intro = (
        "A model of a table, trained by gnvpro and compared with simpler and common models on the same held-out rows."
    )
    path.write_text(page(title, intro, [run_section(directory)], {}), encoding="utf-8")
    return path


def table_sections(directory: Path) -> tuple[list[Section], list[str]]:
    """Return a section for each run on a table below a directory, and a sentence for each that cannot be shown."""
    sections, problems = [], []
    for path in finished_tables(directory):
        try:
            sections.append(run_section(path))
        except Exception as error:  # files that somebody altered
            problems.append(f"{path.name}: {type(error).__name__}: {error}")
    return sections, problems


def run_section(directory: Path) -> Section:
    """Return all about one run."""
    config, metrics = read_json(directory / CONFIG), read_json(directory / METRICS)
    figures = []
    if "test" in metrics:
        rows = held_out(directory)
        if config["task"] == "classification":
            figures.append(("Held-out rows by class. On the diagonal: right.", confusion(rows)))
        else:
            text = "Held-out rows: observed against predicted; grey bars: two standard deviations. On the line: exact."
            figures.append((text, observed(rows, config)))
            text = "Errors of the held-out rows, and how large the model expected them to be."
            figures.append((text, errors(rows, config)))
        text = "How much the error grows when an input is shuffled among the held-out rows: what the model relies on."
        figures.append((text, importances(metrics)))
    text = "The run: objective, misfit, size of the steps and gradient against the seconds it took."
    figures.append((text, history_figure(read_history(directory / HISTORY), "seconds")))
    anchor = "table-" + "".join(c if c.isalnum() else "-" for c in directory.name)
    name, counts = f"{config['data']}: {', '.join(config['targets'])}", metrics["rows"]
    n, m = len(config["inputs"]), config.get("encoded", len(config["inputs"]))
    about = paragraph(
        f"{str(config['task']).capitalize()} from {n} column{'s' * (n > 1)}{f' ({m} inputs)' if m > n else ''}; "
        f"{int(counts['train'])} rows to train on, {int(counts['test'])} held out (seed {int(config['seed'])}). "
        f"{metrics['status']}"
    )
    pictures = [picture(drawn(figure), caption, narrow=True) for caption, figure in figures]
    return section(anchor, name, about, scores_table(metrics), *pictures)


def scores_table(metrics: dict[str, Any]) -> str:
    """Return the scores of the model, and of others on the same rows."""
    own = metrics.get("test", metrics["train"])
    names = [name for name in own if name in NAMES]
    shown = {"gnvpro": {**own, "seconds": metrics["seconds"]}, **metrics.get("baselines", {})}
    rows = [
        TableRow([name, *(f"{float(each[n]):.5g}" for n in names), f"{float(each['seconds']):.2f}"])
        for name, each in shown.items()
    ]
    which = "held-out rows, the same for all" if "test" in metrics else "rows the model was trained on"
    within = (
        f" Within one and two of the model's standard deviations: {own['within_1_std']:.0%} and {own['within_2_std']:.0%} "
        "of the rows (68% and 95% would be exact)."
        if "within_1_std" in own
        else ""
    )
    caption = f"Scores on the {which}; the others with scikit-learn's defaults. s: seconds to train.{within}"
    return table(caption, ["model", *(NAMES[n] for n in names), "s"], rows, "scores")


def held_out(directory: Path) -> list[list[str]]:
    """Return the columns of the predictions: row, targets, and then predictions as `run.predictions` puts them."""
    with open(directory / PREDICTIONS, newline="") as file:
        _, *rows = csv.reader(file)
    return [list(column) for column in zip(*rows, strict=True)]


def target(rows: list[list[str]], k: int, n_targets: int) -> tuple[Array, Array, Array]:
    """Return what was observed of a target, its predictions and their standard deviations."""
    first = 1 + n_targets + 2 * k
    observed, mean, std = (np.array(rows[i], dtype=np.float64) for i in (1 + k, first, first + 1))
    return observed, mean, std


def short(name: str) -> str:
    """Return a name as it fits into a figure."""
    return plain(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}...")


def observed(rows: list[list[str]], config: dict[str, Any]) -> Any:
    """Draw observed against predicted, one panel per target."""
    targets = config["targets"][:SHOWN]
    figure = page_figure(min(4.6 * len(targets), 13), 4.2)
    for k, (axes, name) in enumerate(zip(figure.subplots(1, len(targets), squeeze=False)[0], targets, strict=True)):
        truth, mean, std = target(rows, k, len(config["targets"]))
        axes.errorbar(mean, truth, xerr=2 * std, fmt="none", ecolor="0.8", elinewidth=0.8, zorder=1)
        axes.plot(mean, truth, ".", color=BLUE, ms=5, zorder=2)
        ends = [min(truth.min(), mean.min()), max(truth.max(), mean.max())]
        axes.plot(ends, ends, color=VERMILION, lw=1, zorder=3)
        axes.set(xlabel=f"predicted {short(name)}", ylabel=f"observed {short(name)}")
        axes.grid(alpha=0.3, lw=0.5)
    return figure


def errors(rows: list[list[str]], config: dict[str, Any]) -> Any:
    """Draw sorted absolute errors compared with the mean's, and errors over standard deviations."""
    name = short(config["targets"][0])
    truth, mean, std = target(rows, 0, len(config["targets"]))
    figure = page_figure(9.4, 3.4)
    left, right = figure.subplots(1, 2)
    share = np.linspace(0, 100, len(truth))
    left.plot(share, np.sort(np.abs(truth - mean)), color=BLUE, lw=1.8, label="this model")
    left.plot(share, np.sort(np.abs(truth - truth.mean())), color=GREY, lw=1.2, ls="--", label="mean of these rows")
    left.set(xlabel="share of held-out rows, %", ylabel=f"error of {name} at most", yscale="log")
    left.legend(frameon=False, fontsize="small")
    far = (truth - mean) / np.maximum(std, np.finfo(float).tiny)
    right.hist(np.clip(far, -5, 5), bins=30, color=BLUE, alpha=0.7, density=True, label="held-out rows")
    grid = np.linspace(-5, 5, 200)
    right.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=ORANGE, lw=1.8, label="if std were exact")
    right.set(xlabel="error / standard deviation", ylabel="density")
    right.legend(frameon=False, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3, lw=0.5)
    return figure


def confusion(rows: list[list[str]]) -> Any:
    """Draw the counts of observed and predicted classes."""
    truth, found = rows[1:3]
    labels = sorted({*truth, *found})
    counts = np.zeros((len(labels), len(labels)))
    for a, b in zip(truth, found, strict=True):
        counts[labels.index(a), labels.index(b)] += 1
    size = max(3.6, 0.55 * len(labels) + 1.6)
    figure = page_figure(size + 0.8, size)
    axes = figure.subplots()
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                dark = count > 0.6 * row.sum()
                axes.text(j, i, f"{count:g}", ha="center", va="center", color="white" if dark else "black", fontsize=9)
    axes.set(xticks=range(len(labels)), yticks=range(len(labels)), xlabel="predicted", ylabel="observed")
    axes.set_xticklabels([short(label) for label in labels], rotation=45, ha="right")
    axes.set_yticklabels([short(label) for label in labels])
    return figure


def importances(metrics: dict[str, Any]) -> Any:
    """Draw bars, the most important input on top."""
    pairs = list(metrics["importance"].items())[: 3 * SHOWN][::-1]
    figure = page_figure(6.4, 0.32 * len(pairs) + 1.0)
    axes = figure.subplots()
    axes.barh(range(len(pairs)), [value for _, value in pairs], color=BLUE)
    axes.set_yticks(range(len(pairs)), [short(name) for name, _ in pairs])
    what = "log loss" if metrics["task"] == "classification" else "root mean square error"
    axes.set(xlabel=f"growth of the {what}")
    axes.grid(alpha=0.3, lw=0.5, axis="x")
    return figure


def read_history(path: Path) -> History:
    """Return the records in a file, as far as a figure needs them."""
    fields = Record.__dataclass_fields__

    def value(name: str, text: str) -> Any:
        if text == "" or name in ("note", "solver"):
            return None
        return text == "True" if name == "accepted" else float(text)

    with open(path, newline="") as file:
        return History(
            Record(**{k: value(k, v) for k, v in row.items() if k in fields}) for row in csv.DictReader(file)
        )
