"""Appendix A: how well must the inner problem be solved for the gradient of the reduced objective to be one?

    error(h) = |Phi_red(theta) + h grad Phi_red(theta)' d - Phi_red(theta + h d)|,       |d| = 1

falls like h^2 if the gradient is right. W(theta) is found by Newton-Krylov, with spaces of several largest ranks and
to several tolerances on |grad_W Phi|, from W = 0 each time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.experiments.settings import Settings, ThreeSets
from gnvpro.head.newton import NewtonKrylov
from gnvpro.objectives.problem import Problem

TOLERANCES = (1e-2, 1e-4, 1e-6, 1e-10)
RANKS = (5, 10, 15, 20, 25)
STEPS = tuple(4.0**-k for k in range(11))
SAMPLES = 1000  # of the training set; a Taylor error needs no more
ITERATIONS = 50  # of the inner solver; a small rank may not reach a small tolerance


def study(model: nn.Module, loaded: ThreeSets, settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Taylor errors (tolerances, ranks, steps) at the network's parameters, along a random direction."""
    inputs, labels = (part[:SAMPLES] for part in loaded.split.train)
    problem = Problem(
        model, inputs, labels, loss="multinomial", theta_penalty=settings.penalty(), head_penalty=settings.head_penalty
    )
    theta = problem.theta()
    direction = torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed), dtype=theta.dtype)
    direction /= direction.norm()
    errors = [[taylor_errors(problem, theta, direction, tol, rank) for rank in RANKS] for tol in TOLERANCES]
    return {
        "taylor_errors": np.array(errors),
        "taylor_tolerances": np.array(TOLERANCES),
        "taylor_ranks": np.array(RANKS),
        "taylor_steps": np.array(STEPS),
    }


def taylor_errors(problem: Problem, theta: Tensor, direction: Tensor, tolerance: float, rank: int) -> list[float]:
    """The error for each step."""
    eliminator = NewtonKrylov(max_rank=rank, atol=tolerance, rtol=0.0, iterations=ITERATIONS)
    objective = problem.with_eliminator(eliminator).reduced
    here = objective.start(theta, None)
    slope = float(here.gradient() @ direction)
    return [abs(here.value + h * slope - objective.start(theta + h * direction, None).value) for h in STEPS]
