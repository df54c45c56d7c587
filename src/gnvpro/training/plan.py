"""What a training run is to do, and where it stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import Tikhonov

STOCHASTIC = ("adam", "nesterov")  # methods that take their batches themselves


@dataclass(frozen=True)
class Data:
    """Inputs and the misfit of outputs on them."""

    inputs: Tensor
    misfit: Misfit

    def where(self, kept: Tensor) -> Data:
        """Without samples of weight zero: they change nothing, and neither work nor batches should see them."""
        if kept.all():
            return self
        samples = kept.nonzero()[:, 0]
        part = self.misfit.take(samples, kept.shape[0])
        return Data(self.inputs[samples], replace(part, weights=part.weights / part.weights.sum()))


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    method: str
    theta_penalty: Tikhonov
    head_penalty: float
    budgets: tuple[float, ...]  # work units, one a level
    iterations: float
    batch_size: int | None
    iterations_per_batch: int
    sweeps: float
    keep_best: bool
    patience: float  # iterations without a better validation score
    checkpoint: Path | None
    checkpoint_every: int

    @property
    def in_batches(self) -> bool:
        """Whether the run itself splits the training set."""
        return self.batch_size is not None and self.method not in STOCHASTIC


@dataclass
class Cursor:
    """Where a run stands."""

    level: int = 0
    sweep: int = 0
    batch: int = 0
    done: int = 0  # iterations on this batch


@dataclass(frozen=True)
class Best:
    """The model with the best validation score so far."""

    level: int
    score: float
    theta: Tensor
    W: Tensor


def score(loss: float | None, accuracy: float | None) -> float:
    """What "best" means on the validation set: the accuracy, or the loss where there is none."""
    value = accuracy if accuracy is not None else -math.inf if loss is None else -loss
    return -math.inf if math.isnan(value) else value
