"""The report on a model of a table: scores beside other models, and what a reader wants to see of the held-out rows."""

from __future__ import annotations

import base64
import csv
import html
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnvpro.drawing import BLUE, GREY, ORANGE, VERMILION
from gnvpro.experiments.report import fill, own_file
from gnvpro.experiments.run import CONFIG, HISTORY, METRICS, read_json
from gnvpro.experiments.style import new_figure
from gnvpro.tabular.run import PREDICTIONS, finished_tables
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
Array = NDArray[Any]


def write_page(directory: Path) -> Path:
    """The page of one run, in its directory."""
    config = read_json(directory / CONFIG)
    title = f"{config['data']}: {', '.join(config['targets'])}"
    page = own_file(directory / REPORT)
    intro = "A model of a table, trained with its last layer eliminated. Scores are of rows it has not seen."
    page.write_text(fill([("run", title, section(directory))], {}, [], title, intro), encoding="utf-8")
    return page


def table_sections(directory: Path) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Anchor, title and section of each run on a table below a directory, and a sentence for each that cannot be shown."""
    sections, problems = [], []
    for path in finished_tables(directory):
        try:
            sections.append((anchor(path), f"{path.name} (table)", section(path)))
        except Exception as error:  # files that somebody altered
            problems.append(f"{path.name}: {type(error).__name__}: {error}")
    return sections, problems


def anchor(directory: Path) -> str:
    """The section's name in the page."""
    return "table-" + "".join(c if c.isalnum() else "-" for c in directory.name)


def section(directory: Path) -> str:
    """All about one run."""
    config, metrics = read_json(directory / CONFIG), read_json(directory / METRICS)
    classify = config["task"] == "classification"
    figures = []
    if "test" in metrics:
        rows = held_out(directory)
        if classify:
            figures.append(("Held-out rows by class. On the diagonal: right.", confusion(rows, config)))
        else:
            text = "Held-out rows: observed against predicted; grey bars: two standard deviations. On the line: exact."
            figures.append((text, observed(rows, config)))
            figures.append(
                ("Errors of the held-out rows, and how large the model expected them to be.", errors(rows, config))
            )
        text = "How much the error grows when an input is shuffled among the held-out rows: what the model relies on."
        figures.append((text, importances(metrics)))
    text = "The run: objective, misfit, size of the steps and gradient against the seconds it took."
    figures.append((text, history_figure(read_history(directory / HISTORY), "seconds")))
    name = html.escape(f"{config['data']}: {', '.join(config['targets'])}")
    counts = metrics["rows"]
    return (
        f'<section id="{anchor(directory)}"><h2>{name}</h2>'
        f"<p>{html.escape(config['task'].capitalize())} from {len(config['inputs'])} columns; {int(counts['train'])} rows to "
        f"train on, {int(counts['test'])} held out (seed {int(config['seed'])}). {html.escape(str(metrics['status']))}</p>"
        f"{scores_table(metrics)}{''.join(picture(text, figure) for text, figure in figures)}</section>"
    )


def scores_table(metrics: dict[str, Any]) -> str:
    """The model, and others on the same rows."""
    own = metrics.get("test", metrics["train"])
    names = [name for name in own if name in NAMES]
    head = "".join(f"<th>{html.escape(text)}</th>" for text in ("model", *(NAMES[n] for n in names), "s"))
    shown = [("<b>gnvpro</b>", {**own, "seconds": metrics["seconds"]})]
    shown += [(html.escape(name), each) for name, each in metrics.get("baselines", {}).items()]
    rows = "".join(
        f"<tr><th>{name}</th>{''.join(f'<td>{float(each[n]):.5g}</td>' for n in names)}"
        f"<td>{float(each['seconds']):.2f}</td></tr>"
        for name, each in shown
    )
    which = "held-out rows, the same for all" if "test" in metrics else "rows the model was trained on"
    within = (
        f" Within one and two of the model's standard deviations: {own['within_1_std']:.0%} and {own['within_2_std']:.0%} "
        "of the rows (68% and 95% would be exact)."
        if "within_1_std" in own
        else ""
    )
    return (
        f'<div class="wide"><table class="scores"><caption>Scores on the {which}; the others with scikit-learn\'s defaults. '
        f"s: seconds to train.{within}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def held_out(directory: Path) -> dict[str, list[str]]:
    """The columns of the predictions, by name."""
    with open(directory / PREDICTIONS, newline="") as file:
        rows = list(csv.reader(file))
    return {name: [row[k] for row in rows[1:]] for k, name in enumerate(rows[0])}


def numbers(rows: dict[str, list[str]], name: str) -> Array:
    """A column of numbers."""
    return np.array(rows[name], dtype=np.float64)


def observed(rows: dict[str, list[str]], config: dict[str, Any]) -> Any:
    """Observed against predicted, one panel per target."""
    targets = config["targets"][:SHOWN]
    figure = new_figure(min(4.6 * len(targets), 13), 4.2)
    for axes, name in zip(figure.subplots(1, len(targets), squeeze=False)[0], targets, strict=True):
        truth, mean, std = (numbers(rows, f"{prefix}{name}") for prefix in ("", "predicted ", "std of "))
        axes.errorbar(mean, truth, xerr=2 * std, fmt="none", ecolor="0.8", elinewidth=0.8, zorder=1)
        axes.plot(mean, truth, ".", color=BLUE, ms=5, zorder=2)
        ends = [min(truth.min(), mean.min()), max(truth.max(), mean.max())]
        axes.plot(ends, ends, color=VERMILION, lw=1, zorder=3)
        axes.set(xlabel=f"predicted {name}", ylabel=f"observed {name}")
        axes.grid(alpha=0.3, lw=0.5)
    return figure


def errors(rows: dict[str, list[str]], config: dict[str, Any]) -> Any:
    """Absolute errors in order, beside the ones of the mean; and errors over standard deviations."""
    name = config["targets"][0]
    truth, mean, std = (numbers(rows, f"{prefix}{name}") for prefix in ("", "predicted ", "std of "))
    figure = new_figure(9.4, 3.4)
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


def confusion(rows: dict[str, list[str]], config: dict[str, Any]) -> Any:
    """Counts of observed and predicted classes."""
    name = config["targets"][0]
    truth, found = rows[name], rows[f"predicted {name}"]
    labels = sorted({*truth, *found})
    counts = np.zeros((len(labels), len(labels)))
    for a, b in zip(truth, found, strict=True):
        counts[labels.index(a), labels.index(b)] += 1
    size = max(3.6, 0.55 * len(labels) + 1.6)
    figure = new_figure(size + 0.8, size)
    axes = figure.subplots()
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            if count:
                dark = count > 0.6 * row.sum()
                axes.text(j, i, f"{count:g}", ha="center", va="center", color="white" if dark else "black", fontsize=9)
    axes.set(xticks=range(len(labels)), yticks=range(len(labels)), xlabel="predicted", ylabel="observed")
    axes.set_xticklabels(labels, rotation=45, ha="right")
    axes.set_yticklabels(labels)
    return figure


def importances(metrics: dict[str, Any]) -> Any:
    """Bars, the most important input on top."""
    pairs = list(metrics["importance"].items())[: 3 * SHOWN][::-1]
    figure = new_figure(6.4, 0.32 * len(pairs) + 1.0)
    axes = figure.subplots()
    axes.barh([name for name, _ in pairs], [value for _, value in pairs], color=BLUE)
    what = "log loss" if metrics["task"] == "classification" else "root mean square error"
    axes.set(xlabel=f"growth of the {what}")
    axes.grid(alpha=0.3, lw=0.5, axis="x")
    return figure


def read_history(path: Path) -> History:
    """Records read back; what a figure needs of them."""
    fields = Record.__dataclass_fields__

    def value(name: str, text: str) -> Any:
        if text == "" or name in ("note", "solver"):
            return None
        return text == "True" if name == "accepted" else float(text)

    with open(path, newline="") as file:
        return History(
            Record(**{k: value(k, v) for k, v in row.items() if k in fields}) for row in csv.DictReader(file)
        )


def picture(caption: str, figure: Any) -> str:
    """A figure inside the page."""
    file = BytesIO()
    figure.savefig(file, format="png")
    content, text = base64.b64encode(file.getvalue()).decode(), html.escape(caption)
    image = f'<div class="picture"><img class="narrow" src="data:image/png;base64,{content}" alt="{text}"></div>'
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"
