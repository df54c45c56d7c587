"""Steps on all samples or random batches first: a short trial of both, judged by samples that neither of them sees.

    held out     a fifth of the samples, at random
    full         steps on all of the others
    batches      epochs on the others, whose rate falls to zero at the end of the trial
    goes on      the one with the smaller loss on the samples held out, from the model that it found, with all samples

If the seconds do not last for the trial, few passes are left. Losses of classes then go on with batches without one, since
short steps gain more per pass at first.

There is no trial where exact steps can follow: these fit smooth functions better than batches ever do, but only later.
Both sides spend equal counted cost. A pass in batches costs more than one over all samples at once: much more for small
networks, whose default stays with steps on all samples for that reason, without a trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gnvpro.head.eliminator import append_bias_column
from gnvpro.linalg.columns import matmul_small
from gnvpro.methods.cache import Cache
from gnvpro.methods.costs import sizes_of
from gnvpro.methods.protocol import Budget, Iterate, Start
from gnvpro.methods.stochastic import seeded_permutation
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.policy.cost import seconds_of_pass

HELD_OUT = 5  # one sample in so many
LEAST_SAMPLES = 200  # fewer held out judge nothing
LEAST_PASSES = 4.0  # of two epochs on batches
SHARE = 0.15  # most that each side of the trial takes of the seconds left
SEED = 2_000_003  # of the order that chooses the samples


def price_of_batches(problem: Problem, batch_size: int) -> float:
    """Return the predicted cost of a pass in batches, in passes over all samples at once."""
    cost, sizes = problem.policy.cost, sizes_of(problem)
    parts = problem.n_samples / batch_size
    return parts * seconds_of_pass(cost, replace(sizes, samples=batch_size)) / seconds_of_pass(cost, sizes)


def split(problem: Problem, seed: int) -> tuple[Problem, Problem]:
    """Return the problems of the samples to train on and of those held out."""
    order = seeded_permutation(problem.n_samples, seed, SEED).to(problem.inputs.device)
    held = problem.n_samples // HELD_OUT
    return problem.on_samples(order[held:]), problem.on_samples(order[:held])


@dataclass(frozen=True)
class TrialPart:
    """The samples of a trial, the budget of the run, and the seed."""

    problem: Problem
    budget: Budget
    seed: int

    def trained(self, method: Any, passes: float, theta: Tensor) -> tuple[Iterate, bool]:
        """Return the model of a method after so many passes, and whether its share of the seconds ended it before."""
        given, cache = self.budget, Cache(self.budget.meter)
        share = self.problem.n_samples / given.meter.total_samples
        end = given.clock() + SHARE * given.seconds_left if math.isfinite(given.seconds) else math.inf
        budget = replace(given, limit=min(given.limit, given.meter.work + passes), share=share, seconds=end)
        state = method.begin(self.problem, Start(theta, seed=self.seed), budget, cache)
        while budget.passes_left >= state.next_passes and budget.seconds_left > 0:
            state, outcome = method.step(self.problem, state, budget, cache)
            if not isinstance(outcome, StepReport):
                break
        found: Iterate = state.iterate
        return found, math.isfinite(end) and budget.passes_left >= state.next_passes


def loss_of(problem: Problem, model: Iterate) -> float:
    """Return the mean loss of a model on the samples of a problem; infinite if it is not finite."""
    network = problem.network
    Z = append_bias_column(network.features(model.theta, problem.inputs, problem.passes), network.bias)
    value = problem.misfit.value(matmul_small(Z, model.W.T))
    return value if math.isfinite(value) else math.inf
