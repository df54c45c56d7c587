"""Choice of the best model: scores on the validation set, and the user's own metrics.

    outputs, targets of the validation set  ->  loss, accuracy, metrics  ->  one score, larger is better

The score is the accuracy, or minus the loss if there is none, or the metric that `keep` names.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gnvpro.training.history import FIELDS, Record

TURNED_UP = 1.1  # rise of a validation loss over its least value that triggers a warning
RESERVED = ("last", "best")  # values of `keep` other than names of metrics


@dataclass(frozen=True)
class Metric:
    """A number that measures the quality of outputs.

    Args:
        function: maps outputs and targets, one row per sample, to a number. Outputs are in float64; targets are as passed to
            `train`, in the outputs' shape if they have as many entries.
        higher_is_better: whether `keep` and `patience` look for larger values. A plain function in `train(metrics=...)` is a
            metric for which lower is better.

    >>> Metric(lambda outputs, targets: (outputs.argmax(1) == targets).double().mean(), higher_is_better=True).better(0.9, 0.8)
    True
    """

    function: Callable[[Tensor, Tensor], object]
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"Metric: function must be a function of outputs and targets, got {self.function!r}")

    def score(self, value: float) -> float:
        """Return the score; larger is better."""
        return value if self.higher_is_better else -value

    def better(self, value: float, than: float) -> bool:
        """Return True if a value is better than another."""
        return self.score(value) > self.score(than)

    def value(self, name: str, outputs: Tensor, targets: Tensor) -> float:
        """Evaluate the function."""
        found = self.function(outputs, targets)
        try:
            return float(found)  # type: ignore[arg-type]  # a tensor of one element will do
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"metrics: {name!r} must return one number, got {type(found).__name__} ({error})") from None


def check_metrics(metrics: object) -> dict[str, Metric]:
    """Return the metrics by name."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f'metrics must be a dictionary such as {{"mae": f}}, got {type(metrics).__name__}')
    for name in metrics:
        if not isinstance(name, str) or name in (*FIELDS, *RESERVED, "metrics"):
            raise ValueError(
                f"metrics: {name!r} cannot be the name of a metric; it is no string, or has a meaning already"
            )
    return {name: each if isinstance(each, Metric) else Metric(each) for name, each in metrics.items()}


@dataclass(frozen=True)
class Scores:
    """Scores of one model."""

    loss: float | None = None
    accuracy: float | None = None
    metrics: dict[str, float] | None = None

    @staticmethod
    def of(record: Record) -> Scores:
        """Return the scores of a record."""
        return Scores(record.validation_loss, record.validation_accuracy, record.metrics)


@dataclass(frozen=True)
class Judge:
    """The choice of the kept model, and its score."""

    keep: str = "last"  # "last", "best", or the name of a metric
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def keeps_best(self) -> bool:
        """True if another model than the last may be kept."""
        return self.keep != "last"

    def score(self, scores: Scores) -> float:
        """Return the score, larger is better; the worst of all if there is none."""
        if self.keep in self.metrics:
            value = None if scores.metrics is None else self.metrics[self.keep].score(scores.metrics[self.keep])
        else:
            value = scores.accuracy if scores.loss is None or scores.accuracy is not None else -scores.loss
        return -math.inf if value is None or math.isnan(value) else value


@dataclass(frozen=True)
class Improved:
    """The record with the best score of a level."""

    level: int = -1
    score: float = -math.inf
    iteration: int = 0

    def after(self, record: Record, judge: Judge) -> Improved:
        """Return the best after one more record."""
        if record.level == self.level and record.validation_loss is None and record.metrics is None:
            return self  # without a score
        value = judge.score(Scores.of(record))
        better = record.level > self.level or value > self.score
        return Improved(record.level, value, record.iteration) if better else self


@dataclass(frozen=True)
class Rise:
    """A validation loss that was lower earlier, when the training set was fitted less closely."""

    least: Record
    last: Record  # last record with a validation loss
    kept: Record  # the record that keep="best" would return

    @staticmethod
    def of(history: Sequence[Record]) -> Rise | None:
        """Return None if it is at most the training loss, or if the accuracy has still improved."""
        end = history[-1]
        known = [r for r in history if r.level == end.level and r.validation_loss is not None]
        if not known:
            return None
        least = min(known, key=lambda r: r.validation_loss or 0.0)
        last, now = known[-1], end.validation_accuracy
        no_better = now is None or now <= (least.validation_accuracy or 0.0)
        floor = TURNED_UP * max(least.validation_loss or 0.0, end.misfit)
        if not (no_better and end.misfit < least.misfit and (last.validation_loss or 0.0) > floor):
            return None
        return Rise(least, last, max(known, key=lambda r: Judge().score(Scores.of(r))))

    def warn(self, stacklevel: int) -> None:
        """Warn, with advice."""
        warnings.warn(
            f"the validation loss was {self.least.validation_loss:.4g} at iteration {self.least.iteration} and is "
            f"{self.last.validation_loss:.4g} at the end: the last steps fitted what is not in the validation set. "
            f'keep="best" returns the model of iteration {self.kept.iteration}, patience=10 ends such a run early, a larger '
            "theta_penalty or head_penalty, or more samples, make it less likely",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
