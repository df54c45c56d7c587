"""optimistix's Levenberg-Marquardt, stepped by hand as its documentation shows, so that the referee can look between steps."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
import torch
from benchmarks.race.in_jax import residuals
from benchmarks.race.problems import Problem
from benchmarks.race.referee import Outputs, Referee
from jax import Array


def fit(problem: Problem, linear_solver: lx.AbstractLinearSolver, rtol: float, referee: Referee) -> None:
    """Step until the solver ends."""
    referee.start()
    solver = optx.LevenbergMarquardt(rtol=rtol, atol=rtol, linear_solver=linear_solver)
    compute = residuals(problem)

    def function(weights: Array, args: Any) -> tuple[Array, None]:
        return compute(weights), None

    y = jnp.asarray(problem.weights.numpy())
    common: dict[str, Any] = {"fn": function, "args": None, "options": {"jac": "fwd"}, "tags": frozenset()}
    f_struct, aux_struct = eqx.filter_eval_shape(function, y, None)
    state = solver.init(y=y, f_struct=f_struct, aux_struct=aux_struct, **common)
    step = eqx.filter_jit(eqx.Partial(solver.step, **common)).lower(y=y, state=state).compile()
    end = eqx.filter_jit(eqx.Partial(solver.terminate, **common)).lower(y=y, state=state).compile()
    referee.compiled()

    def model() -> Outputs:
        return problem.outputs_at(torch.from_numpy(np.array(y)))

    while not bool(end(y=y, state=state)[0]):
        y, state, _ = step(y=y, state=state)
        y.block_until_ready()
        referee.look(model)
    referee.look(model, last=True)
