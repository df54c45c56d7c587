"""A surrogate from a table of simulator runs: what `gnvpro surrogate` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnvpro.drawing import BLUE, GREY, ORANGE, VERMILION, page_figure
from gnvpro.files import replacing, write_json
from gnvpro.pages import TableRow, drawn, own_file, page, paragraph, picture, section, table
from gnvpro.surrogate import Surrogate
from gnvpro.tabular.page import Array, short
from gnvpro.tabular.read import quoted, read_table

MODEL_FILE, CARD_FILE, PAGE_FILE, SCORES_FILE = "surrogate.safetensors", "surrogate.md", "report.html", "scores.json"
SHOWN_OUTPUTS, SHOWN_INPUTS, POINTS, SOBOL_POINTS = 4, 6, 81, 256


@dataclass(frozen=True)
class SimulatorRuns:
    """Columns of a table: what went into a simulator, and what came out."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    X: Array
    Y: Array


def read_runs(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> SimulatorRuns:
    """Read columns of numbers from a file."""
    if not inputs or not outputs:
        raise ValueError("name the columns: --inputs A B C --outputs Y")
    both = set(inputs) & set(outputs)
    if both:
        raise ValueError(f"{quoted(sorted(both))} cannot be an input and an output")
    frame = read_table(path)
    missing = [name for name in (*inputs, *outputs) if name not in frame.columns]
    if missing:
        raise ValueError(f"{path} has no column {quoted(missing)}; its columns are {quoted(frame.columns)}")
    X, Y = (np.stack([numeric(frame[name], name, path) for name in names], 1) for names in (inputs, outputs))
    return SimulatorRuns(path.name, tuple(inputs), tuple(outputs), X, Y)


def numeric(column: Any, name: str, path: Path) -> Array:
    """Return a column as numbers; the error names the first cell that is none."""
    values = np.empty(len(column))
    for i, cell in enumerate(column):
        try:
            values[i] = float(cell)
        except (TypeError, ValueError):
            values[i] = np.nan
        if not np.isfinite(values[i]):
            raise ValueError(f"column {name!r} of {path} has {str(cell)!r} in row {i + 1}; leave such rows out")
    return values


def make_surrogate(
    runs: SimulatorRuns, out: Path, seed: int, overwrite: bool, tell: Callable[[str], None]
) -> Surrogate:
    """Fit, and write model, card, scores and report into a directory."""
    if (out / MODEL_FILE).exists() and not overwrite:
        raise ValueError(f"{out / MODEL_FILE} exists; choose another --out, or pass --overwrite")
    out.mkdir(parents=True, exist_ok=True)
    tell(f"{len(runs.X)} runs; fitting {len(runs.outputs)} outputs of {len(runs.inputs)} inputs")
    made = Surrogate(random_state=seed).fit(runs.X, runs.Y)
    made.save(out / MODEL_FILE)
    tell(made.summary())
    with replacing(out / CARD_FILE) as file:
        file.write(card(runs, made).encode())
    curve = made.learning_curve()
    tell("drawing the report")
    text = report(runs, made, curve)
    own_file(out / PAGE_FILE).write_text(text, encoding="utf-8")
    errors = dict(zip(runs.outputs, np.asarray(made.loo_error_).tolist(), strict=True))
    write_json(out / SCORES_FILE, {"left_out_error": errors, "learning_curve": curve})
    return made


def card(runs: SimulatorRuns, made: Surrogate) -> str:
    """Return the model card: what it is, where it holds, how good it is."""
    low, high = made.domain_.low.tolist(), made.domain_.high.tolist()
    lines = [
        f"# Surrogate of {runs.name}",
        "",
        f"{len(runs.X)} runs. Load it with `gnvpro.surrogate.Surrogate.load({MODEL_FILE!r})`.",
        "",
        "## Domain",
        "",
        "Predictions outside of these ranges extrapolate, and `predict` warns.",
        "",
        "| input | from | to |",
        "|---|---|---|",
        *(f"| {name} | {a:.6g} | {b:.6g} |" for name, a, b in zip(runs.inputs, low, high, strict=True)),
        "",
        "## Errors",
        "",
        "Each run is predicted by a model without it. Errors are root mean squares over the deviation of the output.",
        "",
        "| output | error at left-out runs |",
        "|---|---|",
        *(f"| {name} | {e:.2g} |" for name, e in zip(runs.outputs, made.loo_error_, strict=True)),
        "",
        "## Form",
        "",
        "```text",
        made.summary(),
        "```",
        "",
    ]
    return "\n".join(lines)


def report(runs: SimulatorRuns, made: Surrogate, curve: list[tuple[int, float]]) -> str:
    """Return the text of the page."""
    indices = made.sobol(n=SOBOL_POINTS)
    rows = [TableRow([name, f"{e:.2g}"]) for name, e in zip(runs.outputs, made.loo_error_, strict=True)]
    parts = [
        section(
            "errors",
            "Left-out runs",
            paragraph(made.summary().splitlines()[0] + ". Each run is predicted by a model without it."),
            table("Root mean square error over the deviation of the output.", ["output", "error"], rows, "scores"),
            picture(drawn(parity(runs, made)), "Simulated against predicted by a model without that run; bars: 95%."),
        ),
        section(
            "sensitivity",
            "Sensitivity",
            picture(drawn(bars(runs, indices)), "Sobol indices: the part of the variance that each input causes."),
        ),
        section(
            "slices",
            "Slices",
            picture(
                drawn(slices(runs, made)), "One input varies, the others are at the middle of their ranges; bands: 95%."
            ),
        ),
        section(
            "more",
            "More runs",
            paragraph(advice(curve)),
            *([picture(drawn(learning(curve)), "Error at left-out runs.", narrow=True)] if len(curve) > 1 else []),
        ),
    ]
    intro = f"A surrogate of {len(runs.X)} runs: {len(runs.inputs)} inputs, {len(runs.outputs)} outputs."
    return page(f"Surrogate of {runs.name}", intro, parts, {})


def advice(curve: list[tuple[int, float]]) -> str:
    """Return how many more runs would halve the error, if it goes on falling as between the last two counts."""
    if len(curve) < 2:
        return "There are too few runs for a learning curve."
    (n, before), (m, error) = curve[-2:]
    if not 0 < error < before:
        return "The error did not fall between the last two counts: more runs may not help, or the outputs have noise."
    rate = np.log(before / error) / np.log(m / n)
    more = m * (2 ** (1 / rate) - 1)
    if more > 100 * m:
        return "The error falls too slowly for more runs to halve it."
    return f"About {more:.2g} more runs would halve the error, if it goes on falling as between {n} and {m} runs."


def parity(runs: SimulatorRuns, made: Surrogate) -> Any:
    """Draw outputs against predictions of left-out runs."""
    mean, std = (each.reshape(len(each), -1) for each in made.left_out())
    count = min(len(runs.outputs), SHOWN_OUTPUTS)
    figure = page_figure(3.6 * count + 0.6, 3.8)
    for k, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        y = runs.Y[: len(mean), k]
        axes.errorbar(mean[:, k], y, xerr=1.96 * std[:, k], fmt="none", ecolor="0.8", elinewidth=0.8, zorder=1)
        axes.plot(mean[:, k], y, ".", color=BLUE, ms=5, zorder=2)
        axes.plot([y.min(), y.max()], [y.min(), y.max()], color=VERMILION, lw=1, zorder=3)
        axes.set(xlabel=f"predicted {short(runs.outputs[k])}", ylabel=f"simulated {short(runs.outputs[k])}")
        axes.grid(alpha=0.3, lw=0.5)
    return figure


def bars(runs: SimulatorRuns, indices: Any) -> Any:
    """Draw Sobol indices with their intervals."""
    count = min(len(runs.outputs), SHOWN_OUTPUTS)
    figure = page_figure(3.6 * count + 0.6, 1.2 + 0.36 * len(runs.inputs))
    places = np.arange(len(runs.inputs))
    names = [short(name) for name in runs.inputs]
    for k, axes in enumerate(figure.subplots(1, count, squeeze=False, sharey=True)[0]):
        for shift, label, color, values, (low, high) in (
            (-0.2, "alone", BLUE, indices.first[k], (each[k] for each in indices.first_interval)),
            (0.2, "with interactions", ORANGE, indices.total[k], (each[k] for each in indices.total_interval)),
        ):
            width = [values - low, high - values]
            axes.barh(places + shift, values, 0.36, xerr=width, color=color, label=label, error_kw={"elinewidth": 0.8})
        axes.set(yticks=places, yticklabels=names, xlabel=f"part of the variance of {short(runs.outputs[k])}")
        axes.grid(alpha=0.3, lw=0.5, axis="x")
    axes.invert_yaxis()
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, fontsize="small"
    )
    return figure


def slices(runs: SimulatorRuns, made: Surrogate) -> Any:
    """Draw each output over each input, with bands."""
    low, high = made.domain_.low.numpy(), made.domain_.high.numpy()
    down, across = min(len(runs.outputs), SHOWN_OUTPUTS), min(len(runs.inputs), SHOWN_INPUTS)
    figure = page_figure(2.3 * across + 0.6, 2.2 * down + 0.4)
    grid = figure.subplots(down, across, squeeze=False, sharey="row")
    for i in range(across):
        X = np.tile((low + high) / 2, (POINTS, 1))
        X[:, i] = np.linspace(low[i], high[i], POINTS)
        mean, std = (each.reshape(POINTS, -1) for each in made.predict(X, return_std=True))
        for k in range(down):
            axes, band = grid[k, i], 1.96 * std[:, k]
            axes.fill_between(X[:, i], mean[:, k] - band, mean[:, k] + band, color=BLUE, alpha=0.2, lw=0)
            axes.plot(X[:, i], mean[:, k], color=BLUE, lw=1.4)
            axes.grid(alpha=0.3, lw=0.5)
            axes.tick_params(labelsize="small")
            if k == down - 1:
                axes.set_xlabel(short(runs.inputs[i]))
            if i == 0:
                axes.set_ylabel(short(runs.outputs[k]))
    return figure


def learning(curve: list[tuple[int, float]]) -> Any:
    """Draw the error at left-out runs over the number of runs."""
    figure = page_figure(4.6, 3.2)
    axes = figure.subplots()
    counts, errors = zip(*curve, strict=True)
    axes.plot(counts, errors, "o-", color=BLUE)
    axes.set(xscale="log", yscale="log", xlabel="runs", ylabel="error at left-out runs, deviations")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.grid(alpha=0.3, lw=0.5, color=GREY)
    return figure
