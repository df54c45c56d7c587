"""What a run is to do, and where it stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnvpro.methods.protocol import Method
from gnvpro.training.checkpoint import Checkpoint
from gnvpro.training.scores import Judge


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    method: Method
    budgets: tuple[float, ...]  # work units, one per level
    seconds: float
    iterations: float
    judge: Judge
    patience: float  # iterations without a better validation score
    checkpoint: Checkpoint | None

    @property
    def caps(self) -> list[float]:
        """Work, seconds and iterations that the run may take."""
        return [sum(self.budgets), self.seconds, self.iterations]

    def limit(self, level: int) -> float:
        """Work units that may be spent until the end of a level."""
        return sum(self.budgets[: level + 1])

    @property
    def capped(self) -> bool:
        """Whether anything was said on how long it may take."""
        return min(*self.budgets, self.seconds, self.iterations, self.patience) < math.inf


@dataclass
class Cursor:
    """Where a run stands."""

    level: int = 0
    sweep: int = 0
    batch: int = 0
    done: int = 0  # iterations on this batch
