"""Result of `train`: the trained model, why the run ended, its history; with a plot, a summary and a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from gnvpro.files import replacing
from gnvpro.minimize.status import Status
from gnvpro.objectives.problem import Problem
from gnvpro.training.history import History
from gnvpro.training.judgement import Chosen
from gnvpro.training.saved_model import save_model
from gnvpro.training.summary import Summary, model_card, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """A trained model with its history.

    `gnvpro.train` returns it.

    Args:
        model: the trained model.
        status: why the run ended.
        history: one record per iteration.
        chosen: penalties, noise and evidence, if a penalty was "auto".
        setup: data, method and settings, in words.
        problem: the final objective, as in `result.problem.reduced.at(theta)`.
        plan: rules and their choices for this run, in sentences.

    >>> import torch, gnvpro
    >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> result = gnvpro.train(torch.nn.Linear(1, 1).double(), x, 2 * x, loss="least_squares", head_penalty=0.0)
    >>> result.status.name, result.work, round(float(result.model.weight.item()), 6)
    ('HEAD_ONLY', 1.0, 2.0)
    """

    model: nn.Module
    status: Status
    history: History
    chosen: Chosen | None = None
    setup: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None
    plan: tuple[str, ...] = ()

    @property
    def work(self) -> float:
        """Work units spent: passes, forward or backward, over the whole training set."""
        return self.history[-1].work

    def plot(self, against: str = "work") -> Figure:
        """Plot loss, validation, radius and the rest of the history: see `History.plot`."""
        return self.history.plot(against)

    def summary(self) -> Summary:
        """Summarise data, method, cost and scores: text on the terminal, a table in a notebook."""
        return summary_of(self.setup, self.status, self.history)

    def save(self, path: str | Path, notes: str = "") -> Path:
        """Write the model, which `gnvpro.load` reads, and a model card.

        The file holds the model's state_dict, and its architecture if that is made of layers of torch and this library.

        Args:
            path: the file; `.safetensors` in its name needs the extra `safetensors`, everything else is torch's format.
            notes: a paragraph for the card, such as the purpose of the model and the origin of the data.

        Returns:
            The path of the card: the file's name followed by `.md`, as in `model.safetensors.md`.
        """
        target = Path(path)
        save_model(target, self.model)
        card = target.with_name(f"{target.name}.md")
        with replacing(card) as file:
            file.write(model_card(target.name, self.model, self.summary(), notes).encode())
        return card

    def __repr__(self) -> str:
        return f"Result({self.status.name}: {self.status} {self.history!r})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()
