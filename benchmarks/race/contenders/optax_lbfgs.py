"""optax.lbfgs with its zoom line search, one compiled step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from benchmarks.race.in_jax import objective
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Outputs, Referee
from jax import Array


def grid(spec: Spec) -> list[dict[str, Any]]:
    """History sizes; for classification."""
    return [{"memory_size": size} for size in (10, 100)] if spec.loss == "multinomial" else []


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Iterate until the time is up or nothing changes."""
    referee.start()
    value = objective(problem)
    optimizer = optax.lbfgs(**settings)
    value_and_grad = optax.value_and_grad_from_state(value)

    def advance(y: Array, state: Any) -> tuple[Array, Any]:
        now, gradient = value_and_grad(y, state=state)
        updates, state = optimizer.update(gradient, state, y, value=now, grad=gradient, value_fn=value)
        return optax.apply_updates(y, updates), state

    y = jnp.asarray(problem.weights.numpy())
    state = jax.jit(optimizer.init)(y)
    step = jax.jit(advance).lower(y, state).compile()
    referee.compiled()

    def model() -> Outputs:
        return problem.outputs_at(torch.from_numpy(np.array(y)))

    work = 0
    while True:
        before = y
        y, state = step(y, state)
        y.block_until_ready()
        work += 2 * int(optax.tree.get(state, "num_linesearch_steps"))
        referee.look(model, work)
        if bool((y == before).all()):
            break
    referee.look(model, work, last=True)
