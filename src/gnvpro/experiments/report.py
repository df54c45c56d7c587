"""One page from saved runs: table, interactive curves and figures.

The table is written from each metrics.json, whose numbers are also in the page's data, unrounded.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnvpro.experiments.catalogue import EXPERIMENTS, SETS
from gnvpro.experiments.comparison import comparison
from gnvpro.experiments.equations.equation_report import equation_sections
from gnvpro.experiments.figures import Captioned, figures_of
from gnvpro.experiments.numbers import NOTHING, reported, reported_work, score, seconds, title
from gnvpro.experiments.paper_numbers import INNER_SHARE, PAPER
from gnvpro.experiments.saved import CURVES, SavedRun, by_experiment, find, standard
from gnvpro.pages import Markup, Section, TableRow, bullets, own_file, page, paragraph, picture, section, table

LONGEST = 400  # largest number of points of a curve on the page


TITLE = "gnvpro: small networks trained to high accuracy"
INTRO = (
    "Each section is one problem: the result of gnvpro, and of the methods that it is compared with, measured on this machine. "
    "Rows in grey are published numbers."
)


def write_report(
    directory: Path, out: Path, more: Sequence[Section] = (), cover: Path | None = None
) -> tuple[Path, list[str]]:
    """Write the page and its figures; return its path, and a sentence per run or figure that is left out.

    `more` are sections made elsewhere. `cover` is a PNG file to show on top.
    """
    runs, problems = find(directory)
    out.mkdir(parents=True, exist_ok=True)
    sections: list[Section] = []
    data = {}
    for name, group in by_experiment(runs).items():
        figures, undrawn = figures_of(name, group)
        problems += undrawn
        figures = [captioned for captioned in figures if saves(captioned, name, out, problems)]
        data[name] = [curve_data(run, group) for run in standard(group)]
        sections.append(experiment_section(name, group, figures, out))
    solved, unsolved = equation_sections(directory, out)
    problems += unsolved
    path = own_file(out / "index.html")
    first = [] if cover is None else [cover_section(cover)]
    path.write_text(page(TITLE, INTRO, [*first, *sections, *solved, *more], data, problems), encoding="utf-8")
    return path, problems


def cover_section(path: Path) -> Section:
    """Return the first picture of the page; its caption is the description in the PNG file."""
    if not path.is_file() or path.read_bytes()[:4] != b"\x89PNG":
        raise ValueError(f"cover={str(path)!r} is no PNG file; leave it out, or name one")
    from PIL import Image  # comes with matplotlib

    with Image.open(path) as image:
        caption = str(image.info.get("Description", ""))
    return Section("cover", "Overview", Markup(f'<section id="cover">{picture(path.read_bytes(), caption)}</section>'))


def saves(captioned: Captioned, experiment: str, out: Path, problems: list[str]) -> bool:
    """Write a figure in both formats; one that cannot be laid out joins the problems."""
    name = f"{experiment}-{captioned.name}"
    try:
        for suffix in ("png", "pdf"):
            captioned.figure.savefig(own_file(out / f"{name}.{suffix}"))
    except (ArithmeticError, ValueError, RuntimeError) as error:
        problems.append(f"figure {name}: {error}")
        return False
    return True


def experiment_section(name: str, runs: list[SavedRun], figures: list[Captioned], out: Path) -> Section:
    """Return the section of one experiment."""
    experiment = EXPERIMENTS[name]
    # The convergence figure is for print; the page shows the same curves interactively.
    pictures = [
        picture((out / f"{name}-{each.name}.png").read_bytes(), each.caption, f"{name}-{each.name}.png, .pdf")
        for each in figures
        if each.name != "convergence"
    ]
    plots = Markup(f'<div class="plots" data-experiment="{name}"></div>' if standard(runs) else "")
    about = paragraph(f"{experiment.summary}. Data: {sources(runs)}.")
    notes = bullets("Before comparing rows:", comparison(name, runs), "notes")
    return section(
        name, experiment.title, about, scores_table(name, runs), notes, class_table(name, runs), plots, *pictures
    )


def sources(runs: list[SavedRun]) -> str:
    """Sources of the data, with the seeds of each source."""
    seeds: dict[str, set[int]] = {}
    for text in {str(run.metrics["data"]) for run in runs}:
        words, _, seed = text.rpartition(" seed ")
        seeds.setdefault(words or text, set()).update(
            [int(seed)] if words and seed.isdecimal() and len(seed) < 10 else []
        )
    return "; ".join(
        f"{words} {'seed' if len(own) == 1 else 'seeds'} {', '.join(map(str, sorted(own)))}" if own else words
        for words, own in sorted(seeds.items())
    )


def scores_table(name: str, runs: list[SavedRun]) -> Markup:
    """Return our results, and the paper's below."""
    measure = "mean relative error ± deviation" if EXPERIMENTS[name].loss == "least_squares" else "accuracy"
    rows = []
    for run in runs:
        metrics = run.metrics
        share = metrics["inner_seconds"] / metrics["seconds"] if metrics["seconds"] else 0.0
        settings = ", ".join([run.config["settings"], *run.tuned_text])
        numbers = [*(score(metrics[part]) for part in SETS), f"{metrics['work']:.0f}", seconds(metrics["seconds"])]
        spotted = coloured(run.colour(runs), title(run.method))
        cells = [spotted, settings, str(run.seed), *numbers, f"{100 * share:.0f}%"]
        rows.append(TableRow(cells, {"data-run": run.directory.name}))
    for method, row in PAPER.get(name, {}).items():
        share = f"{100 * INNER_SHARE[name]:.1f}%" if method == "gnvpro" and name in INNER_SHARE else NOTHING
        published = [reported(name, method, part) for part in SETS]
        note = f"<br><small>{html.escape(row.note)}</small>" if row.note else ""
        first = Markup(f"{html.escape(title(method))}{note}")
        numbers = [*published, reported_work(name, method), NOTHING, share]
        rows.append(TableRow([first, "the paper", NOTHING, *numbers], {"class": "paper"}))
    caption = f"Scores: {measure}. WU: work units, passes over the training set. s: seconds. inner: share on W."
    return table(caption, ["method", "settings", "seed", *SETS, "WU", "s", "inner"], rows)


def coloured(colour: str, name: str) -> Markup:
    """Return a name behind a spot of its colour in the figures."""
    return Markup(f'<i style="background:{html.escape(colour)}"></i>{html.escape(name)}')


def class_table(name: str, runs: list[SavedRun]) -> Markup:
    """Return the test accuracy of each class, folded away."""
    classes = EXPERIMENTS[name].classes
    if not classes:
        return Markup("")
    rows = []
    for k, label in enumerate(classes):
        shares = [run.metrics["test"]["class_accuracy"].get(str(k)) for run in runs]
        rows.append(TableRow([label, *(NOTHING if share is None else f"{100 * share:.1f}%" for share in shares)]))
    inside = table("", ["class", *map(run_name, runs)], rows, "classes")
    return Markup(f"<details><summary>Test accuracy by class</summary>{inside}</details>")


def run_name(run: SavedRun) -> str:
    """A name that distinguishes a run from the others of its experiment."""
    return ", ".join([title(run.method), run.config["settings"], *run.tuned_text, f"seed {run.seed}"])


def curve_data(run: SavedRun, group: list[SavedRun]) -> dict[str, Any]:
    """Everything that the page's plots need of one run, and its metrics unrounded."""
    history = run.history
    length = len(history["work"])
    kept = sorted({*range(0, length, max(1, -(-length // LONGEST))), length - 1})
    return {
        "label": run.label(standard(group)),
        "colour": run.colour(group),
        "seed": run.seed,
        "settings": run.config["settings"],
        "curves": {name: [history[name][i] for i in kept] for name in CURVES},
        "metrics": run.metrics,
    }
