"""The race's networks in JAX, from equal vectors of weights: for contenders that need JAX functions.

Layers as in `gnvpro.networks`: tanh layers, forward Euler steps (ResNet), RK4 steps of an antisymmetric ODE (NeuralODE).
Float64; loops over layers and stages are unrolled, which compiles longer and runs faster than a scan for these depths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from torch import nn

from gnvpro.networks import NeuralODE, ResNet

from .problems import Problem

jax.config.update("jax_enable_x64", True)

Weights = dict[str, Array]


def outputs(problem: Problem) -> Callable[[Array, Array], Array]:
    """Return the function (weights, inputs) -> outputs."""
    model, shapes = problem.model, [(name, p.shape) for name, p in problem.model.named_parameters()]

    def run(weights: Array, inputs: Array) -> Array:
        parts, u = by_name(shapes, weights), inputs
        for name, layer in model.named_children():
            own = {key.removeprefix(name + "."): value for key, value in parts.items() if key.startswith(name + ".")}
            u = apply(layer, own, u)
        return u

    return run


def by_name(shapes: Sequence[tuple[str, Any]], weights: Array) -> Weights:
    """Split the vector of all weights into parameters by name."""
    parts, start = {}, 0
    for name, shape in shapes:
        parts[name] = weights[start : start + shape.numel()].reshape(shape)
        start += shape.numel()
    return parts


def penalised(problem: Problem) -> Callable[[Array], Array]:
    """Return the function from weights to B theta and W."""
    shapes = [(name, p.shape) for name, p in problem.model.named_parameters()]
    return lambda weights: jnp.concatenate(problem.penalised(by_name(shapes, weights)))


def apply(layer: nn.Module, own: Weights, u: Array) -> Array:
    """Apply one layer of a model to inputs, one sample per row."""
    if isinstance(layer, nn.Linear):
        return u @ own["weight"].T + own["bias"]
    if isinstance(layer, nn.Tanh):
        return jnp.tanh(u)
    if isinstance(layer, ResNet):
        return euler(layer, own, u)
    if isinstance(layer, NeuralODE):
        return runge_kutta(layer, own, u)
    raise TypeError(f"no JAX version of a layer {type(layer).__name__}: add it to in_jax.apply")


def euler(layer: ResNet, own: Weights, inputs: Array) -> Array:
    """Steps of u' = tanh(K u + b)."""
    h = layer.time_step
    u = jnp.tanh(inputs @ own["K_in"].T + own["b_in"])
    for j in range(layer.depth):
        u = u + h * jnp.tanh(u @ own["K"][j].T + own["b"][j])
    return u


def runge_kutta(layer: NeuralODE, own: Weights, inputs: Array) -> Array:
    """RK4 steps of u' = tanh((K - K' - gamma I) u + b)."""
    h, K, b = layer.time_step, own["K"], own["b"]
    A = K - jnp.swapaxes(K, 1, 2) - layer.gamma * jnp.eye(layer.width)

    def slope(u: Array, A: Array, b: Array) -> Array:
        return jnp.tanh(u @ A.T + b)

    u = jnp.tanh(inputs @ own["K_in"].T + own["b_in"])
    for j in range(layer.depth):
        middle = ((A[j] + A[j + 1]) / 2, (b[j] + b[j + 1]) / 2)
        k1 = slope(u, A[j], b[j])
        k2 = slope(u + h / 2 * k1, *middle)
        k3 = slope(u + h / 2 * k2, *middle)
        k4 = slope(u + h * k3, A[j + 1], b[j + 1])
        u = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return u


def residuals(problem: Problem) -> Callable[..., Array]:
    """Return residuals whose half square is the least-squares objective: the misfit over sqrt(n), then the
    penalties.
    """
    inputs, targets = (jnp.asarray(np.asarray(part)) for part in problem.train)
    run, penalties, root = outputs(problem), penalised(problem), problem.spec.penalty**0.5

    def compute(weights: Array, args: Any = None) -> Array:
        misfit = (run(weights, inputs) - targets) / len(targets) ** 0.5
        return jnp.concatenate([misfit.reshape(-1), root * penalties(weights)])

    return compute


def objective(problem: Problem) -> Callable[[Array], Array]:
    """Return the objective for classification."""
    inputs, labels = (jnp.asarray(np.asarray(part)) for part in problem.train)
    run, penalties, penalty = outputs(problem), penalised(problem), problem.spec.penalty

    def compute(weights: Array) -> Array:
        x = run(weights, inputs)
        fit = jax.nn.logsumexp(x, axis=1) - jnp.take_along_axis(x, labels[:, None], 1)[:, 0]
        return fit.mean() + 0.5 * penalty * jnp.sum(penalties(weights) ** 2)

    return compute
