"""Every threshold that selects an algorithm, as data.

One frozen dataclass per subject. Each field carries its unit, what it decides and the command that measured it, so that the
whole policy can be printed, compared and overridden:

    train(..., policy=Policy(batches=BatchPolicy(begin_from=None)))

Code elsewhere receives a policy and compares with its fields; it holds no thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gnvpro.policy.cost import CostPolicy
from gnvpro.policy.row import Row, because, markdown, rows_of, shown
from gnvpro.policy.thresholds import (
    BatchPolicy,
    EquationPolicy,
    EstimatorPolicy,
    HeadPolicy,
    MemoryPolicy,
    PrecisionPolicy,
    SamplePolicy,
    SolverPolicy,
    StoppingPolicy,
)

__all__ = [
    "BatchPolicy",
    "CostPolicy",
    "EquationPolicy",
    "EstimatorPolicy",
    "HeadPolicy",
    "MemoryPolicy",
    "Policy",
    "PrecisionPolicy",
    "Row",
    "SamplePolicy",
    "SolverPolicy",
    "StoppingPolicy",
    "as_policy",
    "because",
    "markdown",
    "rows_of",
    "shown",
]


@dataclass(frozen=True)
class Policy:
    """All thresholds, subject by subject."""

    cost: CostPolicy = field(default_factory=CostPolicy)
    solver: SolverPolicy = field(default_factory=SolverPolicy)
    batches: BatchPolicy = field(default_factory=BatchPolicy)
    equations: EquationPolicy = field(default_factory=EquationPolicy)
    stopping: StoppingPolicy = field(default_factory=StoppingPolicy)
    head: HeadPolicy = field(default_factory=HeadPolicy)
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    estimator: EstimatorPolicy = field(default_factory=EstimatorPolicy)
    precision: PrecisionPolicy = field(default_factory=PrecisionPolicy)
    samples: SamplePolicy = field(default_factory=SamplePolicy)


def as_policy(policy: Policy | None) -> Policy:
    """Return this policy, or the default one for None."""
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(f"policy must be a gnvpro.policy.Policy, got {policy!r}")
    return Policy() if policy is None else policy
