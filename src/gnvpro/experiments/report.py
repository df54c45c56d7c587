"""One page from saved runs: table, interactive curves and figures, all in one file that needs no network.

The page is page/report.html with the style, the script, the data and the figures put in. The table is written from
each metrics.json, whose numbers are also in the page's data, unrounded.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gnvpro.experiments.catalogue import EXPERIMENTS, SETS
from gnvpro.experiments.comparison import comparison
from gnvpro.experiments.equations.report import equation_sections
from gnvpro.experiments.figures import Captioned, figures_of
from gnvpro.experiments.numbers import NOTHING, reported, reported_work, score, seconds, title
from gnvpro.experiments.paper_numbers import INNER_SHARE, PAPER
from gnvpro.experiments.saved import CURVES, SavedRun, by_experiment, find, standard

Titled = tuple[str, str, str]  # anchor, title and content of a section
LONGEST = 400  # at most so many points of a curve on the page


TITLE = "Training with the last layer eliminated"
INTRO = "Measured runs; where the paper has numbers for the same problem, they stand below ours in grey."


def write_report(
    directory: Path, out: Path, more: Sequence[Titled] = (), cover: Path | None = None
) -> tuple[Path, list[str]]:
    """Write the page and its figures; returns its path, and a sentence per run or figure that is left out.

    `more` are sections made elsewhere: anchor, title and content of each. `cover` is a PNG file to show on top.
    """
    runs, problems = find(directory)
    out.mkdir(parents=True, exist_ok=True)
    sections: list[Titled] = []
    data = {}
    for name, group in by_experiment(runs).items():
        figures, undrawn = figures_of(name, group)
        problems += undrawn
        figures = [captioned for captioned in figures if saves(captioned, name, out, problems)]
        data[name] = [curve_data(run, group) for run in standard(group)]
        sections.append((name, EXPERIMENTS[name].title, section(name, group, figures, out)))
    solved, unsolved = equation_sections(directory, out)
    problems += unsolved
    page = own_file(out / "index.html")
    first = [] if cover is None else [("cover", "In short", cover_section(cover))]
    page.write_text(fill([*first, *sections, *solved, *more], data, problems), encoding="utf-8")
    return page, problems


def cover_section(path: Path) -> str:
    """A picture that stands for everything below."""
    if not path.is_file() or path.read_bytes()[:4] != b"\x89PNG":
        raise ValueError(f"cover={str(path)!r} is no PNG file; leave it out, or name one")
    content = base64.b64encode(path.read_bytes()).decode()
    image = f'<div class="picture"><img src="data:image/png;base64,{content}" alt="the results in one picture"></div>'
    return f'<section id="cover"><figure>{image}</figure></section>'


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


def own_file(path: Path) -> Path:
    """The path, no longer a link: the page goes where it was asked to, and nowhere else."""
    if path.is_symlink():
        path.unlink()
    return path


def fill(
    sections: Sequence[Titled], data: dict[str, Any], problems: list[str], title: str = TITLE, intro: str = INTRO
) -> str:
    """The page's text."""
    parts = {name: resources.files(__package__).joinpath("page", name).read_text() for name in PAGE_FILES}
    left_out = "".join(f"<li>{html.escape(problem)}</li>" for problem in problems)
    contents = {
        "STYLE": parts["report.css"],
        "SCRIPT": parts["report.js"],
        "TITLE": html.escape(title),
        "INTRO": html.escape(intro),
        "CONTENTS": "".join(
            f'<a href="#{name}">{html.escape(text)}</a>' for name, text, _ in sections if len(sections) > 1
        ),
        "PROBLEMS": f'<div class="problems"><p>Left out:</p><ul>{left_out}</ul></div>' if problems else "",
        "SECTIONS": "\n".join(content for _, _, content in sections),
        "DATA": json.dumps(data, allow_nan=False).replace("<", "\\u003c"),  # so that no text in it can end the script
    }
    # at once: a mark that stands in some content is not one
    return re.sub(r"<!--([A-Z]+)-->|/\*([A-Z]+)\*/", lambda mark: contents[mark[1] or mark[2]], parts["report.html"])


PAGE_FILES = ("report.html", "report.css", "report.js")


def section(name: str, runs: list[SavedRun], figures: list[Captioned], out: Path) -> str:
    """The section of one experiment."""
    experiment = EXPERIMENTS[name]
    # The convergence figure is for print; the page shows the same curves interactively.
    pictures = "".join(picture(name, captioned, out) for captioned in figures if captioned.name != "convergence")
    plots = f'<div class="plots" data-experiment="{name}"></div>' if standard(runs) else ""
    return (
        f'<section id="{name}"><h2>{html.escape(experiment.title)}</h2>'
        f"<p>{html.escape(experiment.summary)}. Data: {html.escape(sources(runs))}.</p>"
        f"{table(name, runs)}{remarks(name, runs)}{class_table(name, runs)}{plots}{pictures}</section>"
    )


def sources(runs: list[SavedRun]) -> str:
    """Where the data comes from, with the seeds of each source."""
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


def table(name: str, runs: list[SavedRun]) -> str:
    """Our results, and the paper's below."""
    measure = "mean relative error ± deviation" if EXPERIMENTS[name].loss == "least_squares" else "accuracy"
    head = "".join(f"<th>{column}</th>" for column in ("method", "settings", "seed", *SETS, "WU", "s", "inner"))
    rows = []
    for run in runs:
        metrics = run.metrics
        share = metrics["inner_seconds"] / metrics["seconds"] if metrics["seconds"] else 0.0
        settings = ", ".join([run.config["settings"], *run.tuned_text])
        cells = [*(score(metrics[part]) for part in SETS), f"{metrics['work']:.0f}", seconds(metrics["seconds"])]
        numbers = "".join(f"<td>{cell}</td>" for cell in [*cells, f"{100 * share:.0f}%"])
        rows.append(
            f'<tr data-run="{html.escape(run.directory.name)}"><th><i style="background:{run.colour(runs)}"></i>'
            f"{title(run.method)}</th><td>{html.escape(settings)}</td><td>{run.seed}</td>{numbers}</tr>"
        )
    for method, row in PAPER.get(name, {}).items():
        share = f"{100 * INNER_SHARE[name]:.1f}%" if method == "gnvpro" and name in INNER_SHARE else NOTHING
        cells = [reported(name, method, part) for part in SETS]
        numbers = "".join(f"<td>{cell}</td>" for cell in [*cells, reported_work(name, method), NOTHING, share])
        note = f"<br><small>{html.escape(row.note)}</small>" if row.note else ""
        rows.append(
            f'<tr class="paper"><th>{title(method)}{note}</th><td>the paper</td><td>{NOTHING}</td>{numbers}</tr>'
        )
    caption = f"Scores: {measure}. WU: work units, passes over the training set. s: seconds. inner: share of them on W."
    return (
        f'<div class="wide"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def remarks(name: str, runs: list[SavedRun]) -> str:
    """What must be known before rows of the table are compared."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in comparison(name, runs))
    return f'<div class="notes"><p>Before comparing rows:</p><ul>{items}</ul></div>' if items else ""


def class_table(name: str, runs: list[SavedRun]) -> str:
    """Test accuracy of each class, folded away."""
    classes = EXPERIMENTS[name].classes
    if not classes:
        return ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in ("class", *map(run_name, runs)))
    rows = []
    for k, label in enumerate(classes):
        shares = [run.metrics["test"]["class_accuracy"].get(str(k)) for run in runs]
        cells = "".join(f"<td>{NOTHING}</td>" if share is None else f"<td>{100 * share:.1f}%</td>" for share in shares)
        rows.append(f"<tr><th>{html.escape(label)}</th>{cells}</tr>")
    return (
        f'<details><summary>Test accuracy by class</summary><div class="wide"><table class="classes"><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def run_name(run: SavedRun) -> str:
    """A name that distinguishes a run from the others of its experiment."""
    return ", ".join([title(run.method), run.config["settings"], *run.tuned_text, f"seed {run.seed}"])


def picture(name: str, captioned: Captioned, out: Path) -> str:
    """A figure, inside the page."""
    content = base64.b64encode((out / f"{name}-{captioned.name}.png").read_bytes()).decode()
    alt = html.escape(captioned.caption)
    return (
        f'<figure><div class="picture"><img src="data:image/png;base64,{content}" alt="{alt}"></div>'
        f"<figcaption>{alt} <small>({name}-{captioned.name}.png, .pdf)</small></figcaption></figure>"
    )


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
