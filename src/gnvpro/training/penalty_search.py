"""Penalties from the data: rounds of training, each judged by the evidence at its end (see `gnvpro.objectives.evidence`).

    a round: a few iterations with fixed penalties, then the evidence of the resulting model
       higher than before    keep the model; next penalties: at zero slope of the evidence, changed by a factor REACH at most
       lower                 continue with the same penalties for a LONG_ROUND; if it is still lower, the search is over

The search is also over when a round gains almost nothing. It returns the model with the highest evidence, and its
penalties. If that model learnt little, because its penalties were strong, the search begins again with weaker ones, and
the higher evidence decides. A model learnt little if its misfit is more than half of the misfit of the best constant, and its
effective parameters are barely more than in a linear model. Nothing more may be there to learn, or no small step may lead away
from the model (a linear fit to several periods of a sine); the second search shows which within MAX_BEHIND rounds.

The slopes hold theta and W fixed, but theta and W follow the penalties. On noisy data the evidence falls with Phi at fixed
penalties, when equal units part and fit the noise. More training would not bring it back, so a search ends soon after the
evidence has begun to fall. On smooth data it may fall because a round was too short; hence the LONG_ROUND.

For losses without noise, penalties stay above LEAST_PRECISION / n. If classes can be separated without error, the curvature
of the loss vanishes as the head grows. Laplace's approximation then mistakes an unbounded head for a certain one, and its
evidence is too high.

Only this module changes the penalties. Each change makes Phi another function: values of Phi compare within a round.
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

REACH = math.log(10.0)  # largest change of a penalty's logarithm in a round
MAX_FAILURES = 2  # largest number of rounds in a row with lower evidence
MAX_RESTARTS = 2  # largest number of restarts with weaker penalties from a model that learnt little
WEAKER = 1e-2  # factor of the penalties at a restart
MAX_BEHIND = 2  # largest number of rounds after a restart with less evidence than before it
ROUND = 4.0  # largest number of iterations of a round
LONG_ROUND = 8.0  # the same after the evidence fell
CHEAP_STEP = 0.2  # iterations that a quasi-Newton step counts for
SETTLED = 1e-3  # relative decrease of Phi in three iterations, below which the round ends
# Smallest precision of the prior for losses without noise: entries of the head up to about 30; searches find 0.01 to 1000.
LEAST_PRECISION = 1e-3
# smallest gain of log evidence per number fitted to; a tenfold threshold ends a search on its first plateau
LEAST_GAIN = 1e-3


@dataclass
class PenaltySearch:
    """State of the search."""

    searched: Searched
    passes: int  # of a judgement
    least: float  # smallest penalty
    penalties: Penalties  # of the current round
    best: Round | None = None
    last: Chosen | None = None  # result of the last round
    failures: int = 0
    origin: Tensor | None = None  # first theta
    trivial: Round | None = None  # a model that learnt little, from which the search began again with weaker penalties
    restarts: int = 0
    behind: int = 0  # rounds since the restart with less evidence than before it
    over: bool = False
    length: float = ROUND
    effort: float = 0.0  # iterations of this round
    values: list[float] = field(default_factory=list)  # Phi after the last of them

    @staticmethod
    def of(problem: Problem) -> PenaltySearch | None:
        """Return the search for the penalties of a problem that are to be found; None if there are none."""
        if not (problem.searched.theta or problem.searched.head):
            return None
        first = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
        least = LEAST_PENALTY if problem.misfit.identity_hessian else LEAST_PRECISION / problem.n_observed
        passes = passes_of_a_judgement(problem)
        return PenaltySearch(problem.searched, passes, least, first, origin=problem.theta())

    def note(self, value: float, solver: str | None) -> None:
        """Count one more iteration of the round."""
        self.effort += 1.0 if solver in ("dense", "krylov") else CHEAP_STEP
        self.values = [*self.values[-3:], value]

    def settle(self) -> bool:
        """Note that the method can make no further progress; return whether the search can."""
        self.effort = self.length
        return not self.over

    @property
    def due(self) -> bool:
        """Return whether the round is at its end."""
        return not self.over and (self.effort >= self.length or self._still)

    @property
    def ended(self) -> bool:
        """Return whether further training lowered the evidence, so that the best model is restored."""
        return self.over and self.failures > 0

    @property
    def finished(self) -> bool:
        """Return whether the search is over and the model has settled at the penalties found."""
        return self.over and self._still

    @property
    def _still(self) -> bool:
        return len(self.values) == 4 and self.values[0] - self.values[-1] <= SETTLED * abs(self.values[-1])

    def judge(self, problem: Problem, theta: Tensor, W: Tensor, bound: Bound | None) -> Round:
        """End the round; return the round whose model is the next start, and set the next penalties."""
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
        """Return the round with the highest evidence, including rounds before a restart."""
        rounds = [each for each in (self.best, self.trivial) if each is not None]
        return max(rounds, key=lambda each: each.chosen.log_evidence, default=None)

    def _restart(self, trivial: Round) -> Round:
        """Restart with weaker penalties: strong ones can hold theta at zero, a saddle point (inside or outside a ring)."""
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
        """Return the changes of the logarithms for zero slopes of the evidence."""
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
        """Return the search as plain data for a checkpoint."""
        return {name: saved(value) for name, value in vars(self).items() if name != "searched"}

    def taken_up(self, content: dict[str, Any]) -> PenaltySearch:
        """Restore the search from a checkpoint."""
        return replace(self, **loaded(content))
