"""Settings of a run, and its progress."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnvpro.methods.protocol import Method
from gnvpro.objectives.problem import Problem
from gnvpro.policy import because
from gnvpro.training.checkpoint import Checkpoint
from gnvpro.training.scores import Judge


@dataclass(frozen=True)
class Plan:
    """Settings of a run."""

    method: Method
    budgets: tuple[float, ...]  # work units, one per level
    seconds: float
    iterations: float
    judge: Judge
    patience: float  # iterations without a better validation score
    checkpoint: Checkpoint | None

    @property
    def caps(self) -> list[float]:
        """Limits of work, seconds and iterations."""
        return [sum(self.budgets), self.seconds, self.iterations]

    def limit(self, level: int) -> float:
        """Return the limit of work units until the end of a level."""
        return sum(self.budgets[: level + 1])

    @property
    def capped(self) -> bool:
        """True if the user limits the run."""
        return min(*self.budgets, self.seconds, self.iterations, self.patience) < math.inf


def sentences(problem: Problem, method: Method, entries: int) -> tuple[str, ...]:
    """Return which rules chose what for a problem with inputs of this many numbers, one sentence per choice."""
    rules, few = problem.policy.memory, f"{entries:,} numbers of inputs"
    single = because(few, "<", "memory.one_thread", rules.one_thread, "torch uses one thread")
    several = because(few, ">=", "memory.one_thread", rules.one_thread, "torch uses its own number of threads")
    return (*method.plan(problem), head_sentence(problem), single if entries < rules.one_thread else several)


def head_sentence(problem: Problem) -> str:
    """Return how the head is eliminated, and why."""
    name, network = type(problem.eliminator).__name__, problem.network
    if problem.misfit.identity_hessian:
        return f"the loss is least squares: the head is eliminated by {name}"
    size, rule = network.n_targets * (network.n_features + network.bias), problem.policy.head.newton_entries
    sign = "<=" if size <= rule else ">"
    return because(f"{size:,} entries of the head", sign, "head.newton_entries", rule, f"it is eliminated by {name}")


@dataclass
class Cursor:
    """Progress of a run."""

    level: int = 0
    sweep: int = 0
    batch: int = 0
    done: int = 0  # iterations on this batch
