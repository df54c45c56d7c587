"""The plan of a run: which rules chose what, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from gnvpro.methods.protocol import Method
from gnvpro.objectives.problem import Problem
from gnvpro.policy import because


def sentences(problem: Problem, method: Method, entries: int) -> tuple[str, ...]:
    """Return which rules chose what for a problem with inputs of this many numbers, one sentence per choice."""
    rules, few = problem.policy.memory, f"{entries:,} numbers of inputs"
    single = because(few, "<", "memory.one_thread", rules.one_thread, "torch uses one thread")
    several = because(few, ">=", "memory.one_thread", rules.one_thread, "torch uses its own number of threads")
    return (*method.plan(problem), head_sentence(problem), single if entries < rules.one_thread else several)


def mode_sentences(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return why modules of these kinds in training mode chose the method."""
    if not kinds:
        return ()
    return (
        f"the model has {', '.join(kinds)} in training mode: trained in that mode, on random batches, by "
        'method="adam-vpro"; statistics of norms are those of the training set',
    )


def head_sentence(problem: Problem) -> str:
    """Return how the head is eliminated, and why."""
    name, network = type(problem.eliminator).__name__, problem.network
    if problem.misfit.identity_hessian:
        return f"the loss is least squares: the head is eliminated by {name}"
    size, rule = network.n_targets * (network.n_features + network.bias), problem.policy.head.newton_entries
    sign = "<=" if size <= rule else ">"
    return because(f"{size:,} entries of the head", sign, "head.newton_entries", rule, f"it is eliminated by {name}")
