"""The model that the user gets: the last or the best, with the best head for all training samples.

A method on batches leaves the head of the last batch, or of an evaluation on some samples (`Iterate`s with
`provisional`). However its run ends, including by an error or Ctrl-C, that head is eliminated over the whole
training set once more, at the theta that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.methods.protocol import Iterate
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.training.scorer import Scorer
from gnvpro.training.scores import Judge, Scores


@dataclass(frozen=True)
class Best:
    """The model with the best validation score so far."""

    level: int
    score: float
    theta: Tensor
    W: Tensor
    provisional: bool


class Keeper:
    """The current model and the best so far; `in_parts`: each method sees only a part of the samples."""

    def __init__(self, judge: Judge, scorer: Scorer, in_parts: bool) -> None:
        self.judge, self.scorer, self.in_parts, self._keeps_best = judge, scorer, in_parts, judge.keeps_best
        self.watches = (
            scorer.validation is not None or scorer.measured is not None
        )  # whether there are samples to score
        self.best: Best | None = None
        self.scores = Scores()
        self._provisional = False  # of the head in the model

    def store(self, problem: Problem, point: Iterate) -> None:
        """Write a point into the model."""
        problem.store(point.theta, point.W)
        self._provisional = self.in_parts or point.provisional

    def validate(self, problem: Problem, level: int, point: Iterate) -> None:
        """Score the model on the validation set, and store it if it is the best."""
        self.scores = self.scorer.scores(problem.network, point.theta, point.W)
        if not self._keeps_best:
            return
        # The best model of an earlier level is another network than the result.
        rank = (level, self.judge.score(self.scores))
        if self.best is None or rank > (self.best.level, self.best.score):
            self.best = Best(*rank, point.theta.clone(), point.W.clone(), self.in_parts or point.provisional)

    def leave(self, problem: Problem, level: int) -> ReducedPoint | None:
        """Leave the model to the user; return the point if its head had to be eliminated, else None."""
        provisional = self._provisional
        if self.best is not None and self.best.level == level:
            problem.store(self.best.theta, self.best.W)
            provisional = self.best.provisional
        if not problem.same_samples:
            problem.measure_statistics(problem.theta())
        if not provisional:
            return None
        point = problem.reduced.start(problem.theta(), WarmStart(problem.W()), keep=False)
        problem.store(point.theta, point.W)
        self._provisional = False
        return point
