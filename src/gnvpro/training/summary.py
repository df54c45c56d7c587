"""Summaries of a run: on the terminal, in a notebook, and as the card of a saved model."""

from __future__ import annotations

import dataclasses
import html
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter

from torch import nn

from gnvpro.minimize.status import Status
from gnvpro.objectives.held_out import HeldOut
from gnvpro.objectives.problem import Problem
from gnvpro.progress import duration
from gnvpro.samples.several import shapes_of
from gnvpro.training.convergence import first_record
from gnvpro.training.history import Record

SCORES = (
    ("loss", "objective", "{:.4g}"),
    ("misfit", "misfit", "{:.4g}"),
    ("accuracy", "accuracy", "{:.2%}"),
    ("validation_loss", "validation misfit", "{:.4g}"),
    ("validation_accuracy", "validation accuracy", "{:.2%}"),
)


class Summary(str):
    """Text with its own display: plain on the terminal, a table in a notebook."""

    facts: Mapping[str, str]
    scores: Sequence[Sequence[str]]

    @classmethod
    def of(cls, facts: Mapping[str, str], scores: Sequence[Sequence[str]]) -> Summary:
        """The summary of facts, and of a table of scores whose first row is its head."""
        width = max(map(len, facts))
        lines = [f"{name:{width}}  {value}" for name, value in facts.items()]
        first = max(len(row[0]) for row in scores)
        table = [f"{row[0]:{first}}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in scores]
        text = cls("\n".join([*lines, "", *table]))
        text.facts, text.scores = facts, scores
        return text

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def cells(row: Sequence[str], tag: str) -> str:
            first, *rest = (html.escape(cell) for cell in row)
            numbers = "".join(f'<{tag} style="text-align:right">{cell}</{tag}>' for cell in rest)
            return f'<tr><th style="text-align:left">{first}</th>{numbers}</tr>'

        facts = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th>'
            f'<td style="text-align:left">{html.escape(value)}</td></tr>'
            for name, value in self.facts.items()
        )
        scores = "".join(cells(row, "td" if i else "th") for i, row in enumerate(self.scores))
        return f"<table>{facts}</table><table>{scores}</table>"

    def to_markdown(self) -> str:
        """Return two tables, as in a model card; names in them are text, whatever they contain."""

        def row(cells: Sequence[str]) -> str:
            return f"| {' | '.join(map(as_markdown, cells))} |"

        head, *scores = self.scores
        lines = [row(["", ""]), "|---|---|", *(row(pair) for pair in self.facts.items()), ""]
        lines += [row(head), "|---|" + "---:|" * (len(head) - 1), *map(row, scores)]
        return "\n".join(lines)


def as_markdown(text: str) -> str:
    """Return text for one cell or line of Markdown, without HTML, links or line breaks.

    >>> as_markdown("<b>")
    '&lt;b&gt;'
    """
    flat = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`\[\]|*])", r"\\\1", flat)


def setup_of(problem: Problem, held_out: HeldOut | None, method: object) -> dict[str, str]:
    """Facts that a history does not hold: the model, the samples and the method."""
    network = problem.network
    theta = problem.theta().numel()
    head = network.n_targets * (network.n_features + network.bias)
    shape = " and ".join(" x ".join(map(str, shape)) or "1" for shape in shapes_of(problem.inputs))
    return {
        "model": f"{type(problem.working.given).__name__}: {theta} parameters before the head, {head} in the head",
        "data": f"{len(problem.inputs)} samples of {shape} inputs and {network.n_targets} outputs, "
        f"on {problem.inputs.device}",
        "precision": problem.working.reason,
        "validation": "none" if held_out is None else f"{len(held_out.inputs)} samples",
        "loss": described(problem.loss),
        "method": described(method),
        "penalties": f"theta_penalty={problem.theta_penalty.alpha:.3g}, head_penalty={problem.head_penalty:.3g}"
        + (", found from the data" if problem.searched.theta or problem.searched.head else ""),
    }


def described(thing: object) -> str:
    """An object of settings as it would be written, without what was left open; or the name of its class."""
    if dataclasses.is_dataclass(thing):
        pairs = [(each.name, getattr(thing, each.name)) for each in dataclasses.fields(thing)]
        given = ", ".join(f"{name}={described(value)}" for name, value in pairs if value is not None)
        return f"{type(thing).__name__}({given})"
    if isinstance(thing, type):
        return thing.__name__
    text = repr(thing)
    return type(thing).__name__ if text.startswith("<") else text


def summary_of(setup: Mapping[str, str], status: Status, records: Sequence[Record]) -> Summary:
    """Summarise a run: its setup, its cost, and its first, last and best scores."""
    last = records[-1]
    trials = [record for record in records if record.ratio is not None or record.radius is not None]
    rejected = sum(not record.accepted for record in trials)
    facts = {
        **setup,
        "ended": str(status) + gradient_left(records),
        "cost": f"{last.work:.4g} work units in {took(last.seconds)}, of which {took(last.inner_seconds)} on the head",
        "iterations": f"{last.iteration}" + (f", {rejected} of them rejected" if rejected else ""),
    }
    return Summary.of(facts, scores_of(records))


def gradient_left(records: Sequence[Record]) -> str:
    """Say how much of the first gradient of the same objective is left; a run that settles need not be at a minimum."""
    first = records[first_record(records, 0, 0)].gradient_norm
    norms = [record.gradient_norm for record in records if record.gradient_norm is not None]
    if first is None or not first > 0 or norms[-1] is first:
        return ""
    return f" The gradient is {norms[-1] / first:.2g} of the first."


def scores_of(records: Sequence[Record]) -> list[list[str]]:
    """A row for every score that was recorded; the best value may belong to a model before the last."""
    rows = [["", "start", "end", "best"]]
    for field, name, form in SCORES:
        values = [value for record in records if (value := attrgetter(field)(record)) is not None]
        if values:
            best = max(values) if "accuracy" in field else min(values)
            rows.append([name, *(form.format(value) for value in (values[0], values[-1], best))])
    return rows


def took(seconds: float) -> str:
    """Return seconds as text, with tenths for small numbers."""
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def versions() -> dict[str, str]:
    """Return the versions and the machine of the run."""
    found = {"python": platform.python_version()}
    for name in ("gnvpro", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[name] = "not installed"
    return found


def model_card(name: str, model: nn.Module, summary: Summary, notes: str = "") -> str:
    """Write the card of a saved model: data, method, settings, scores and versions, in Markdown."""
    parts = [
        f"# Model card: {as_markdown(name)}",
        "Trained with gnvpro by the method named below. Scores marked validation, or held-out, are of samples that nothing "
        "was fitted to.",
        notes,
        "## Data, method, scores",
        summary.to_markdown(),
        "## Architecture",
        f"```text\n{model}\n```",
        "## Versions",
        ", ".join(f"{name} {number}" for name, number in versions().items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
