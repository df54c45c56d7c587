"""Penalties from the data: training in rounds, each judged by the evidence where it ends (see `gnvpro.objectives.evidence`).

    a round: a few iterations with the penalties at hand, then the evidence at the model that they led to
      higher than before    keep the model; next: penalties at which the evidence's slopes vanish, at most a factor REACH away
      lower                 go on with the same penalties for a LONG_ROUND; if it is still lower, the search is over

It is also over when a round gains next to nothing. The model with the highest evidence is the one returned, with its
penalties. Where that model learnt little, as strong penalties may lead to, the search begins again with weaker ones, and
the higher evidence decides. Little: its misfit is more than half of the misfit of the best constant, with hardly more effective
parameters than a linear model has. Such a model may be all there is to learn, or one that no small step leads away from
(a linear fit to several periods of a sine); the evidence of the second search shows it within MAX_BEHIND rounds.

The slopes hold theta and W; but these follow. On noisy data the evidence falls while Phi does, at the same penalties, when
units part that had been one and fit the noise. More training would not bring it back, so a search ends soon after the
evidence has begun to fall. On smooth data it may fall because a round was too short; hence the long one.

For losses without noise penalties stay above LEAST_PRECISION / n. Where classes can be told apart without error, the curvature
of the loss vanishes as the head grows; Laplace's approximation then takes a head without bounds for one that is known, and the
evidence for high.

The penalties change here and nowhere else. Phi is another function afterwards: its values compare within a round.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from torch import Tensor

from gnvpro.minimize.step_rules import Bound
from gnvpro.objectives.evidence import Penalties
from gnvpro.objectives.problem import Problem, Searched
from gnvpro.state import loaded, saved
from gnvpro.training.judgement import LEAST_PENALTY, Chosen, Round, judged, learnt_little, passes_of_a_judgement

REACH = math.log(10.0)  # by which the logarithm of a penalty may change in a round
MAX_FAILURES = 2  # rounds in a row at which the evidence is lower
MAX_RESTARTS = 2  # from a model that learnt little, with penalties
WEAKER = 1e-2  # times as strong
MAX_BEHIND = 2  # rounds after a restart at which the evidence is lower than before it
ROUND = 4.0  # iterations, if it takes as many
LONG_ROUND = 8.0  # after the evidence fell
CHEAP_STEP = 0.2  # what a quasi-Newton step counts for
SETTLED = 1e-3  # relative decrease of Phi in three iterations: there is nothing more to wait for
LEAST_PRECISION = (
    1e-3  # of the prior, for losses without noise: entries of the head up to 30 or so; found are .01 to 1000
)
LEAST_GAIN = 1e-3  # of the log evidence, per number fitted to; ten times as much ends a search on its first plateau


@dataclass
class PenaltySearch:
    """Where the search stands."""

    searched: Searched
    passes: int  # that a judgement takes
    least: float  # penalty
    penalties: Penalties  # of the round under way
    best: Round | None = None
    last: Chosen | None = None  # what the last round said
    failures: int = 0
    origin: Tensor | None = None  # theta at the beginning
    trivial: Round | None = None  # a model that learnt little, from which the search began again with weaker penalties
    restarts: int = 0
    behind: int = 0  # rounds since the restart with less evidence than before it
    over: bool = False
    length: float = ROUND
    effort: float = 0.0  # iterations of this round
    values: list[float] = field(default_factory=list)  # Phi after the last of them

    @staticmethod
    def of(problem: Problem) -> PenaltySearch | None:
        """The search that a problem asks for, if any."""
        if not (problem.searched.theta or problem.searched.head):
            return None
        first = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
        least = LEAST_PENALTY if problem.misfit.identity_hessian else LEAST_PRECISION / problem.n_observed
        passes = passes_of_a_judgement(problem)
        return PenaltySearch(problem.searched, passes, least, first, origin=problem.theta())

    def note(self, value: float, solver: str | None) -> None:
        """One more iteration of the round."""
        self.effort += 1.0 if solver in ("dense", "krylov") else CHEAP_STEP
        self.values = [*self.values[-3:], value]

    def settle(self) -> bool:
        """The method can go no further; whether the search can."""
        self.effort = self.length
        return not self.over

    @property
    def due(self) -> bool:
        """Whether the round is at its end."""
        return not self.over and (self.effort >= self.length or self._still)

    @property
    def ended(self) -> bool:
        """Whether the best model is one to go back to: training it on made the evidence fall."""
        return self.over and self.failures > 0

    @property
    def finished(self) -> bool:
        """Whether the search is over and the model has settled at the penalties found."""
        return self.over and self._still

    @property
    def _still(self) -> bool:
        return len(self.values) == 4 and self.values[0] - self.values[-1] <= SETTLED * abs(self.values[-1])

    def judge(self, problem: Problem, theta: Tensor, W: Tensor, bound: Bound | None) -> Round:
        """End the round; the model and penalties to go on from are those of the round returned and of `penalties`."""
        made = judged(problem, theta, W, bound)
        before, self.last, self.effort, self.values = self.best, made.chosen, 0.0, []
        if before is None or made.chosen.log_evidence > before.chosen.log_evidence:
            self.best = made
            gain = math.inf if before is None else made.chosen.log_evidence - before.chosen.log_evidence
            numbers = problem.n_observed * (len(W) if problem.misfit.identity_hessian else 1)
            tolerance = 0.0 if theta.numel() == 0 else LEAST_GAIN * numbers
            self.over = (gain <= tolerance and self.failures == 0) or self._longest_step(made) < 1e-6
            self.failures = 0
        else:
            self.failures += 1
            self.over = self.failures >= MAX_FAILURES
        assert self.best is not None
        if self.trivial is not None and self.highest is self.trivial:
            self.behind += 1
            if self.behind >= MAX_BEHIND:
                self.failures, self.over = MAX_FAILURES, True
        self.length = ROUND if self.failures == 0 else LONG_ROUND
        if self.failures > 0 and not self.over:
            return made
        if self.over and self.restarts < MAX_RESTARTS and learnt_little(problem, self.best):
            return self._restart(self.best)
        if self.over and self.highest is not None:
            self.best = self.highest
        self.penalties = self.best.penalties if self.over else self._next(self.best)
        return self.best

    @property
    def highest(self) -> Round | None:
        """The round with the highest evidence, those before a restart included."""
        rounds = [each for each in (self.best, self.trivial) if each is not None]
        return max(rounds, key=lambda each: each.chosen.log_evidence, default=None)

    def _restart(self, trivial: Round) -> Round:
        """Begin again: strong penalties can hold theta at zero, where nothing draws it away (inside or outside of a ring)."""
        self.trivial, self.best, self.over = self.highest, None, False
        self.restarts, self.failures, self.length = self.restarts + 1, 0, LONG_ROUND
        self.behind = 0
        assert self.origin is not None
        now, weaker = trivial.penalties, WEAKER**self.restarts
        self.penalties = Penalties(
            max(now.theta * weaker, self.least) if self.searched.theta else now.theta,
            max(now.head * weaker, self.least) if self.searched.head else now.head,
        )
        return replace(trivial, theta=self.origin, bound=None)

    def _steps(self, of: Round) -> list[float]:
        """Of the logarithms, as the slopes have them."""
        pairs = zip((of.penalties.theta, of.penalties.head), of.targets, astuple(self.searched), strict=True)
        return [math.log(to / now) if free else 0.0 for now, to, free in pairs]

    def _longest_step(self, of: Round) -> float:
        return max(map(abs, self._steps(of)))

    def _next(self, of: Round) -> Penalties:
        steps = (max(-REACH, min(REACH, step)) for step in self._steps(of))
        now = (of.penalties.theta, of.penalties.head)
        each = zip(now, steps, astuple(self.searched), strict=True)
        return Penalties(*(max(a * math.exp(step), self.least) if free else a for a, step, free in each))

    def plain(self) -> dict[str, Any]:
        """The search as a checkpoint holds it."""
        return {name: saved(value) for name, value in vars(self).items() if name != "searched"}

    def resumed(self, content: dict[str, Any]) -> PenaltySearch:
        """The search as a checkpoint left it."""
        return replace(self, **loaded(content))
