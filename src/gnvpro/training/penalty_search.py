"""Penalties from the data: training in rounds, each judged by the evidence where it ends (see `gnvpro.objectives.evidence`).

    a round: a few iterations with the penalties at hand, then the evidence at the model that they led to
      higher than before    keep the model; next: penalties at which the evidence's slopes vanish, at most a factor REACH away
      lower                 go on with the same penalties for a LONG_ROUND; if it is still lower, the search is over

It is also over when a round gains next to nothing. The model with the highest evidence is the one returned, with its
penalties. Where that model learnt nothing, as strong penalties may lead to, the search begins again with weaker ones, and
the higher evidence decides.

The slopes hold theta and W; but these follow. On noisy data the evidence falls while Phi does, at the same penalties, when
units part that had been one and fit the noise. More training would not bring it back, so a search ends soon after the
evidence has begun to fall. On smooth data it may fall because a round was too short; hence the long one.

The penalties change here and nowhere else. Phi is another function afterwards: its values compare within a round.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.head.newton import DENSE_HEAD
from gnvpro.methods.solvers import Dense, count_directions
from gnvpro.minimize.step_rules import Bound, loaded_bound, saved_bound
from gnvpro.network.subspace import Subspace, choose_subspace
from gnvpro.objectives.evidence import (
    DenseJointMatrix,
    Evidence,
    JointMatrix,
    Penalties,
    dense_joint_matrix,
    evidence,
    noise_by_target,
)
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.problem import Problem, Searched
from gnvpro.objectives.quadrature import KrylovJointMatrix
from gnvpro.objectives.reduced import ReducedPoint

REACH = math.log(10.0)  # by which the logarithm of a penalty may change in a round
MAX_FAILURES = 2  # rounds in a row at which the evidence is lower
MAX_RESTARTS = 2  # from a model that learnt nothing, with penalties
WEAKER = 1e-2  # times as strong
ROUND = 4.0  # iterations, if it takes as many
LONG_ROUND = 8.0  # after the evidence fell
CHEAP_STEP = 0.2  # what a quasi-Newton step counts for
SETTLED = 1e-3  # relative decrease of Phi in three iterations: there is nothing more to wait for
LEAST_GAIN = 1e-3  # of the log evidence, per number fitted to; ten times as much ends a search on its first plateau
MAX_DIRECTIONS = 1500  # up to which, and
MAX_FLOPS = 3e10  # for which, the matrix is assembled


@dataclass(frozen=True)
class Chosen:
    """Penalties found from the data, and what they say about it."""

    theta_penalty: float
    head_penalty: float
    noise: tuple[float, ...]  # standard deviation for each target; empty where the loss is not least squares
    effective_parameters: float  # that the data determine
    log_evidence: float

    @staticmethod
    def of_state(saved: dict[str, Any]) -> Chosen:
        """From plain numbers."""
        return Chosen(**{**saved, "noise": tuple(saved["noise"])})


@dataclass(frozen=True)
class Round:
    """The model that a round led to."""

    penalties: Penalties
    theta: Tensor
    W: Tensor
    bound: Bound | None
    chosen: Chosen
    targets: tuple[float, float]  # penalties to go to

    def state(self) -> dict[str, Any]:
        """As plain tensors and numbers."""
        return {
            "penalties": asdict(self.penalties),
            "theta": self.theta,
            "W": self.W,
            "bound": saved_bound(self.bound),
            "chosen": asdict(self.chosen),
            "targets": list(self.targets),
        }

    @staticmethod
    def of_state(saved: dict[str, Any]) -> Round:
        """The reverse."""
        return Round(
            Penalties(**saved["penalties"]),
            saved["theta"],
            saved["W"],
            loaded_bound(saved["bound"]),
            Chosen.of_state(saved["chosen"]),
            (saved["targets"][0], saved["targets"][1]),
        )


@dataclass
class PenaltySearch:
    """Where the search stands."""

    searched: Searched
    passes: int  # that a judgement takes
    penalties: Penalties  # of the round under way
    best: Round | None = None
    last: Chosen | None = None  # what the last round said
    failures: int = 0
    origin: Tensor | None = None  # theta at the beginning
    trivial: Round | None = None  # a model that learnt nothing, from which the search began again with weaker penalties
    restarts: int = 0
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
        return PenaltySearch(problem.searched, passes_of_a_judgement(problem), first, origin=problem.theta())

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
        self.length = ROUND if self.failures == 0 else LONG_ROUND
        if self.failures > 0 and not self.over:
            return made
        if self.over and self.restarts < MAX_RESTARTS and self.best.chosen.effective_parameters < len(W) + 1:
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
        assert self.origin is not None
        now, weaker = trivial.penalties, WEAKER**self.restarts
        self.penalties = Penalties(
            now.theta * weaker if self.searched.theta else now.theta,
            now.head * weaker if self.searched.head else now.head,
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
        return Penalties(*(max(a * math.exp(step), LEAST_PENALTY) for a, step in zip(now, steps, strict=True)))

    def state(self) -> dict[str, Any]:
        """As plain tensors and numbers."""
        numbers = {name: value for name, value in vars(self).items() if name != "searched"}
        return {
            **numbers,
            "penalties": asdict(self.penalties),
            "best": self.best and self.best.state(),
            "last": self.last and asdict(self.last),
            "trivial": self.trivial and self.trivial.state(),
        }

    def resumed(self, saved: dict[str, Any]) -> PenaltySearch:
        """Where a checkpoint left it."""
        return replace(
            self,
            **{
                **saved,
                "penalties": Penalties(**saved["penalties"]),
                "best": saved["best"] and Round.of_state(saved["best"]),
                "trivial": saved["trivial"] and Round.of_state(saved["trivial"]),
                "last": saved["last"] and Chosen.of_state(saved["last"]),
            },
        )


LEAST_PENALTY = 1e-14


def judged(problem: Problem, theta: Tensor, W: Tensor, bound: Bound | None) -> Round:
    """The evidence at theta, the head eliminated there with the problem's penalties."""
    problem = problem.with_passes(Dense().pass_plan(problem)) if is_assembled(problem) else problem
    point = problem.reduced.start(theta, WarmStart(W))
    at = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
    found = evidence(point, joint_matrix(point), at, problem.n_observed)
    point.free()
    chosen = Chosen(at.theta, at.head, noise(point, found), found.gamma, found.log)
    return Round(at, theta, point.W, bound, chosen, found.targets)


def noise(point: ReducedPoint, found: Evidence) -> tuple[float, ...]:
    """The standard deviation of each target's noise, for least squares."""
    problem = point.problem
    if not problem.misfit.identity_hessian:
        return ()
    return tuple(float(v) for v in noise_by_target(point, found, problem.n_observed).sqrt())


def joint_matrix(point: ReducedPoint) -> JointMatrix:
    """The joint Gauss-Newton matrix: assembled, or known by products where it is large."""
    return assembled(point)[0] if is_assembled(point.problem) else KrylovJointMatrix(point)


def assembled(point: ReducedPoint) -> tuple[DenseJointMatrix, Subspace]:
    """The matrix, and the directions in theta that it is in."""
    problem = point.problem
    prior = replace(problem.theta_penalty, alpha=1.0).hessian(point.theta)
    subspace = choose_subspace(problem.network.model, problem.network.parameters, point.theta, prior)
    return dense_joint_matrix(point, subspace, subspace.reduce(subspace.reduce(prior).T)), subspace


def joint_posterior(problem: Problem, theta: Tensor, W: Tensor) -> tuple[ReducedPoint, JointPosterior, Evidence]:
    """The point at theta, what is not known there, and the evidence; where the matrix can be assembled."""
    point = problem.with_passes(Dense().pass_plan(problem)).reduced.start(theta, WarmStart(W))
    matrix, subspace = assembled(point)
    at = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
    posterior = JointPosterior.of(point, matrix, subspace, problem.n_independent)
    return point, posterior, evidence(point, matrix, at, problem.n_observed)


def is_assembled(problem: Problem) -> bool:
    """Whether the joint matrix is small enough, and the rows of the Jacobian can be had."""
    q, network = count_directions(problem), problem.network
    rows = problem.n_observed * min(network.n_targets, network.n_features)
    small_head = problem.misfit.identity_hessian or network.n_targets * (network.n_features + 1) <= DENSE_HEAD
    if q == 0:
        return small_head
    small = q <= MAX_DIRECTIONS and rows * q**2 <= MAX_FLOPS and small_head
    return small and problem.eliminator.inverse_is_exact and Dense().why_not(problem) is None


def passes_of_a_judgement(problem: Problem) -> int:
    """Work that it takes: the model, and the rows of the Jacobian or two Krylov spaces."""
    if is_assembled(problem):
        return 1 + min(problem.network.n_targets, problem.network.n_features)
    return 2 + 4 * KrylovJointMatrix.rank
