"""Shares of the network and of a linear model in a regressor, chosen by predictions of left-out rows.

    prediction  =  mean  +  a (network - mean)  +  b (linear - mean),          a, b >= 0

a and b minimise the squared error of predictions of left-out rows, which both models have in closed form. Noise may look like
a little signal, so each fitted number must gain more than it would on noise. With n rows, errors E are compared as

    E (1 + sum of CHARGES / n),          and a and b are shrunk by  1 - c / t^2,          t^2 = n (E_mean - E) / E

A network that needs no correction is not changed.

The network may be a mean of several, with weights a_j >= 0 that add up to one and minimise the error E of left-out rows,

    E(a)  -  PRIOR_ROWS / n  sum_j log a_j,                 E: log root mean square error, or log loss

Legend: a -> network, b -> linear, c -> CHARGES[0], t^2 -> gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize, nnls
from scipy.special import softmax
from torch import Tensor

from gnvpro.problem.loss import Loss

CHARGES = (
    4.0,
    5.0,
)  # squared errors of a row: the network's weight; the linear one's, whose penalty was fitted as well
CHARGES_OF_CLASSES = (2.0, 3.0)  # the same in twice the log loss
PRIOR_ROWS = 0.5  # weight, in rows, of the guess that all networks are equally good
NEARLY_WHOLE = 0.98  # share above which a network counts entirely
AS_GOOD = 1.02  # limit on the network's error over the best blend's, below which the network stays alone


@dataclass(frozen=True)
class Blend:
    """Weights of the network and of the linear model, and the predictions of left-out rows, for one target."""

    network: float
    linear: float
    left_out: Tensor

    @property
    def is_network(self) -> bool:
        """Return whether the network is used without a blend."""
        return self.network == 1.0 and self.linear == 0.0

    def of(self, network: Tensor, linear: Tensor, target: Tensor, weights: Tensor) -> Blend:
        """Apply the same weights to other predictions of left-out rows."""
        mean = weights @ target / weights.sum()
        return Blend(self.network, self.linear, mean + self.network * (network - mean) + self.linear * (linear - mean))

    def halfway(self, other: Blend) -> Blend:
        """Return the mean of the weights of two blends, but of the network at most this one's."""
        network = (self.network + min(self.network, other.network)) / 2
        return replace(self, network=network, linear=(self.linear + other.linear) / 2)


def trusted(left_out: Tensor) -> Blend:
    """Return the blend that is the network alone."""
    return Blend(1.0, 0.0, left_out)


def blend(network: Tensor, linear: Tensor, target: Tensor, weights: Tensor) -> Blend:
    """Find the weights from predictions of left-out rows by both models."""
    n, mean = float(weights.sum()), float(weights @ target / weights.sum())
    root = (weights / n).sqrt().numpy()
    columns = root[:, None] * torch.stack([network - mean, linear - mean], 1).numpy()
    goal = root * (target - mean).numpy()
    left = (1 - weights / n).clamp_min(1e-9).numpy()  # without the row, the mean misses it by 1 / left
    start = float(np.sum((goal / left) ** 2))
    if not start > 0:
        return Blend(0.0, 0.0, torch.full_like(target, mean))
    best, found = start, np.zeros(2)
    for chosen in ([0], [1], [0, 1]):
        shares = np.zeros(2)
        shares[chosen] = np.minimum(nnls(columns[:, chosen], goal)[0], 1.0)
        error = float(((goal - columns @ shares) ** 2).sum()) * (1 + sum(CHARGES[j] for j in chosen) / n)
        if error < best:
            best, found = error, shares
    gain = n * (start - best) / max(best, 1e-300)
    alone = float(((goal - columns[:, 0]) ** 2).sum())
    if alone <= AS_GOOD * best and gain * (1 - 1 / AS_GOOD) > CHARGES[0]:
        return trusted(network)
    found = found * (max(0.0, 1 - CHARGES[0] / gain) if gain > 0 else 0.0)
    return Blend(float(found[0]), float(found[1]), mean + found[0] * (network - mean) + found[1] * (linear - mean))


def blend_logits(
    network: Tensor, linear: Tensor | None, prior: Tensor, loss: Loss, targets: Tensor, weights: Tensor
) -> tuple[float, float]:
    """Weights of a network and of a linear model of classes, from logits of left-out rows.

    They minimise the log loss of  prior + a (network - prior) + b (linear - prior),  charged and shrunk as above.
    """
    n, moves = float(weights.sum()), [each - prior for each in (network, linear) if each is not None]
    start = float(weights @ loss.value(prior.expand_as(network), targets)) / n
    best, found = start, np.zeros(2)
    for chosen in ([0], [1], [0, 1])[: 2 * len(moves) - 1]:

        def error(shares: np.ndarray, chosen: list[int] = chosen) -> tuple[float, np.ndarray]:
            logits = prior + sum(float(a) * moves[j] for a, j in zip(shares, chosen, strict=True))
            slopes = weights[:, None] * loss.gradient(logits, targets)
            gradient = np.array([float((slopes * moves[j]).sum()) / n for j in chosen])
            return float(weights @ loss.value(logits, targets)) / n, gradient

        done = minimize(
            error, np.full(len(chosen), 0.5), jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * len(chosen)
        )
        charged = float(done.fun) + sum(CHARGES_OF_CLASSES[j] for j in chosen) / (2 * n)
        if charged < best:
            best, found = charged, np.zeros(2)
            found[chosen] = done.x
    gain = 2 * n * (start - best)
    if found[0] >= NEARLY_WHOLE and found[1] == 0.0 and gain > CHARGES_OF_CLASSES[0] / (1 - NEARLY_WHOLE):
        return 1.0, 0.0
    found = found * (max(0.0, 1 - CHARGES_OF_CLASSES[0] / gain) if gain > 0 else 0.0)
    return float(found[0]), float(found[1])


def member_weights(error: Callable[[np.ndarray], tuple[float, np.ndarray]], count: int, n: float) -> np.ndarray:
    """Weights of networks whose mean predicts left-out rows best; `error` returns a value and its gradient in the weights."""

    def objective(logits: np.ndarray) -> tuple[float, np.ndarray]:
        weights = softmax(logits)
        value, gradient = error(weights)
        slope = gradient - PRIOR_ROWS / n / weights
        return value - PRIOR_ROWS / n * float(np.log(weights).sum()), weights * (slope - weights @ slope)

    found: np.ndarray = softmax(minimize(objective, np.zeros(count), jac=True, method="L-BFGS-B").x)
    return found


def mean_of_outputs(left_out: Sequence[Tensor], target: Tensor, weights: Tensor) -> np.ndarray:
    """Weights of several regressors for one target, from predictions of left-out rows."""
    residuals, n = torch.stack([target - each for each in left_out], 1), float(weights.sum())
    products = ((weights[:, None] * residuals).T @ residuals / n).numpy()
    tiny = 1e-30 * max(float(products.trace()), 1e-270)

    def error(a: np.ndarray) -> tuple[float, np.ndarray]:
        square = float(a @ products @ a) + tiny
        return 0.5 * float(np.log(square)), products @ a / square

    return member_weights(error, len(left_out), n)


def mean_of_logits(left_out: Sequence[Tensor], loss: Loss, targets: Tensor, weights: Tensor) -> np.ndarray:
    """Weights of several classifiers, from logits of left-out rows."""
    stacked, n = torch.stack([*left_out]), float(weights.sum())

    def error(a: np.ndarray) -> tuple[float, np.ndarray]:
        logits = torch.einsum("m,mnk->nk", torch.from_numpy(a), stacked)
        slopes = weights[:, None] * loss.gradient(logits, targets)
        return float(weights @ loss.value(logits, targets)) / n, torch.einsum("nk,mnk->m", slopes, stacked).numpy() / n

    return member_weights(error, len(left_out), n)
