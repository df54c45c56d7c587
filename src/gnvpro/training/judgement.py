"""Judging a model by the evidence (see `gnvpro.objectives.evidence`), and what is known at it: for the search for penalties.

The joint matrix of theta and head is assembled if it is small; otherwise only its products are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from gnvpro.head.eliminator import WarmStart
from gnvpro.linalg.rows import rowwise
from gnvpro.methods.step_solvers import Dense, count_directions
from gnvpro.minimize.step_rules import Bound
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
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.quadrature import KrylovJointMatrix
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.policy import Policy
from gnvpro.policy.cost import seconds_of_joint_matrix
from gnvpro.state import State

HARDLY_MORE = 1.5  # effective parameters over the parameters of a linear model, up to which a model learnt little
LITTLE = 0.5  # explained share of the best constant's misfit, up to which a model learnt little
LEAST_PENALTY = 1e-14


@dataclass(frozen=True)
class Chosen(State):
    """Penalties found from the data, and what they say about it."""

    theta_penalty: float
    head_penalty: float
    noise: tuple[float, ...]  # standard deviation for each target; empty unless the loss is least squares
    effective_parameters: float  # that the data determine
    log_evidence: float


@dataclass(frozen=True)
class Round(State):
    """The model that a round led to."""

    penalties: Penalties
    theta: Tensor
    W: Tensor
    bound: Bound | None
    chosen: Chosen
    targets: tuple[float, float]  # penalties for the next round


def judged(problem: Problem, theta: Tensor, W: Tensor, bound: Bound | None) -> Round:
    """The evidence at theta, the head eliminated there with the problem's penalties."""
    exact = is_assembled(problem)
    problem = problem.with_passes(Dense().pass_plan(problem)) if exact else problem
    point = problem.reduced.start(theta, WarmStart(W))
    at = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
    matrix: JointMatrix = assembled(point)[0] if exact else KrylovJointMatrix(point)
    found = evidence(point, matrix, at, problem.n_observed)
    point.free()
    chosen = Chosen(at.theta, at.head, noise(point, found), found.gamma, found.log)
    return Round(at, theta, point.W, bound, chosen, found.targets)


def learnt_little(problem: Problem, best: Round) -> bool:
    """Return whether a round's model is barely more than linear, and explains less than half of what a constant leaves."""
    fan_in = next((math.prod(shape[1:]) for _, shape in problem.network.parameters if len(shape) > 1), 0)
    if best.chosen.effective_parameters > HARDLY_MORE * len(best.W) * (fan_in + 1):
        return False
    ones = rowwise(lambda C: C.new_ones((len(C), 1), dtype=best.W.dtype), problem.misfit.targets, columns=1)
    constant = problem.eliminator.fit(ones, problem.misfit, LEAST_PENALTY, None)
    there = problem.with_penalties(best.penalties.theta, best.penalties.head)
    point = there.reduced.start(best.theta, WarmStart(best.W), keep=False)
    return point.misfit > (1 - LITTLE) * problem.misfit.value(constant.outputs)


def noise(point: ReducedPoint, found: Evidence) -> tuple[float, ...]:
    """The standard deviation of each target's noise, for least squares."""
    problem = point.problem
    if not problem.misfit.identity_hessian:
        return ()
    return tuple(float(v) for v in noise_by_target(point, found, problem.n_observed).sqrt())


def assembled(point: ReducedPoint) -> tuple[DenseJointMatrix, Subspace]:
    """The matrix, and the directions in theta that it is in."""
    problem = point.problem
    prior = replace(problem.theta_penalty, alpha=1.0).hessian(point.theta)
    subspace = choose_subspace(problem.network.directions, point.theta, prior)
    return dense_joint_matrix(point, subspace, subspace.reduce(subspace.reduce(prior).T)), subspace


def joint_posterior(problem: Problem, theta: Tensor, W: Tensor) -> tuple[ReducedPoint, JointPosterior, Evidence]:
    """Return the point at theta, its posterior and the evidence, from the assembled matrix."""
    point = problem.with_passes(Dense().pass_plan(problem)).reduced.start(theta, WarmStart(W))
    matrix, subspace = assembled(point)
    at = Penalties(problem.theta_penalty.alpha, problem.head_penalty)
    posterior = JointPosterior.of(point, matrix, subspace, problem.n_independent)
    return point, posterior, evidence(point, matrix, at, problem.n_observed)


def is_assembled(problem: Problem, times: float = 1.0) -> bool:
    """Return whether the joint matrix is cheap enough, and the rows of the Jacobian are available."""
    q, network = count_directions(problem), problem.network
    rows = problem.n_observed * min(network.n_targets, network.n_features)
    small_head = (
        problem.misfit.identity_hessian
        or network.n_targets * (network.n_features + 1) <= problem.policy.head.newton_entries
    )
    if q == 0:
        return small_head
    small = small_head and is_affordable(problem.policy, q, rows, times)
    return small and problem.eliminator.supports_exact_steps and Dense().why_not(problem) is None


def is_affordable(policy: Policy, directions: int, rows: float, times: float = 1.0) -> bool:
    """Return whether a joint matrix with these numbers of directions and Jacobian rows may be assembled."""
    return seconds_of_joint_matrix(policy.cost, directions, rows) <= times * policy.head.evidence_below


def passes_of_a_judgement(problem: Problem) -> int:
    """Work that it takes: the model, and the rows of the Jacobian or two Krylov spaces."""
    if is_assembled(problem):
        return 1 + min(problem.network.n_targets, problem.network.n_features)
    return 2 + 4 * KrylovJointMatrix.rank
