"""Tikhonov penalties on theta.

    R(theta) = alpha/2 |B theta|^2

B is the identity by default. For networks that discretise a differential equation, `time_differences` returns an
operator that favours weights which change slowly in time, and is the identity on all other weights:

    |B theta|^2 = h sum_j |(theta_{j+1} - theta_j)/h|^2 + |other weights|^2

With the factor h it approximates the integral of |d theta/dt|^2, so its meaning does not depend on the depth.

For ordered inputs, such as the bands of a spectrum, `InputDifferences` favours weights in the first layer that
change slowly along the inputs j. This averages out noise that neighbours do not share:

    |B theta|^2 = |theta|^2 + roughness sum_ij (K_{i,j+1} - K_ij)^2

Legend: alpha_1 -> alpha, B -> operator, K -> weights of the first layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gnvpro.linalg.operators import LinearOperator, identity
from gnvpro.problem.loss import Loss

# Arguments: the model, and the names and shapes of the parameters in theta, in order.
OperatorFactory = Callable[[nn.Module, "Sequence[tuple[str, tuple[int, ...]]]"], LinearOperator]


@dataclass(frozen=True)
class Tikhonov:
    """The penalty alpha/2 |B theta|^2.

    Args:
        alpha: a number, or "auto": `gnvpro.train` finds it from the data.
        operator: B, a function that makes B for a model, or None for the identity.

    >>> penalty = Tikhonov(0.1).bind(nn.Linear(1, 1), [("weight", (2, 1))])
    >>> round(penalty.value(torch.tensor([3.0, 4.0])), 6)
    1.25
    """

    alpha: float | Literal["auto"]  # "auto": `gnvpro.train` finds it from the data
    operator: LinearOperator | OperatorFactory | None = None

    def bind(self, model: nn.Module, parameters: Sequence[tuple[str, tuple[int, ...]]]) -> BoundPenalty:
        """Return the penalty for the parameters of one network."""
        n = sum([math.prod(shape) for _, shape in parameters])
        if self.operator is None:
            return BoundPenalty(1.0 if self.alpha == "auto" else self.alpha, identity((n,)), plain=True)
        if isinstance(self.operator, LinearOperator):
            operator = self.operator
        elif callable(self.operator) and not isinstance(self.operator, nn.Module):
            operator = self.operator(model, parameters)
        else:
            raise TypeError(
                "theta_penalty's operator must be a gnvpro.extend.LinearOperator, or a function that makes one for a model "
                f"such as gnvpro.time_differences, got {type(self.operator).__name__}"
            )
        if tuple(operator.domain) != (n,):
            raise ValueError(
                f"theta_penalty's operator acts on shape {tuple(operator.domain)}, but theta has {n} entries: "
                "give an operator on (n_theta,), or a function that makes one for a model, such as gnvpro.time_differences"
            )
        return BoundPenalty(1.0 if self.alpha == "auto" else self.alpha, operator)


def default_penalty(loss: Loss) -> float:
    """Return the penalty of theta and of the head if none is given."""
    return 1e-10 if loss.is_least_squares else 1e-4


def ridge(alpha: float, W: Tensor) -> float:
    """Return alpha/2 |W|^2, the penalty on the head."""
    return 0.5 * alpha * float(W.square().sum())


@dataclass(frozen=True)
class BoundPenalty:
    """A penalty with its operator for one network."""

    alpha: float
    operator: LinearOperator
    plain: bool = False  # True if B is the identity, which is then never applied

    def value(self, theta: Tensor) -> float:
        """Return alpha/2 |B theta|^2."""
        return 0.5 * self.alpha * float((theta if self.plain else self.operator.mv(theta)).square().sum())

    def added(self, misfit: float, theta: Tensor, head_penalty: float, W: Tensor) -> float:
        """Return misfit + alpha/2 |B theta|^2 + head_penalty/2 |W|^2."""
        return misfit + self.value(theta) + ridge(head_penalty, W)

    def hessian_mv(self, d_theta: Tensor) -> Tensor:
        """Return alpha B'B d_theta, which is also the gradient at d_theta."""
        return self.alpha * (d_theta if self.plain else self.operator.rmv(self.operator.mv(d_theta)))

    def hessian(self, like: Tensor) -> Tensor:
        """Return alpha B'B as a matrix, (n, n) for a vector of n entries."""
        units = torch.eye(like.numel(), dtype=like.dtype, device=like.device)
        if self.plain or not len(units):
            return self.alpha * units
        try:  # all columns at once: a tenth of the time for a Neural ODE with a thousand parameters
            return torch.func.vmap(self.hessian_mv)(units)
        except RuntimeError:  # a custom operator that vmap cannot run
            return torch.stack([self.hessian_mv(unit) for unit in units])


def time_differences(model: nn.Module, parameters: Sequence[tuple[str, tuple[int, ...]]]) -> LinearOperator:
    """Differences in time, over sqrt(h), of the nodal parameters of every network in time; the identity on the rest.

    A network in time is a module with `time_step` and `nodal_parameters`, the names of its parameters whose first axis
    is time (`gnvpro.networks.NeuralODE` is one).

    Args:
        model: a model with such a module.
        parameters: name and shape of each parameter, in the order of theta.

    Returns:
        B, a linear operator on theta.

    Raises:
        ValueError: the model has no network in time.

    >>> from gnvpro.networks import NeuralODE
    >>> flow = NeuralODE(3, 2, depth=4)
    >>> B = time_differences(flow, [("b", (5, 2))])
    >>> B.domain, B.codomain
    ((10,), (8,))
    """
    steps = {
        f"{prefix}.{name}" if prefix else name: float(module.time_step)
        for prefix, module in model.named_modules()
        for name in getattr(module, "nodal_parameters", ())
    }
    if not steps:
        raise ValueError(
            "time_differences needs a module with time_step and nodal_parameters (such as gnvpro.networks.NeuralODE); "
            f"{type(model).__name__} has none: leave theta_penalty's operator out to penalise theta itself"
        )
    sizes = [math.prod(shape) for _, shape in parameters]
    rows = [
        (shape[0] - 1) * math.prod(shape[1:]) if name in steps else size
        for (name, shape), size in zip(parameters, sizes, strict=True)
    ]

    def mv(theta: Tensor) -> Tensor:
        parts = []
        for (name, shape), part in zip(parameters, theta.split(sizes), strict=True):
            if name in steps:
                part = part.reshape(shape).diff(dim=0).reshape(-1) / math.sqrt(steps[name])
            parts.append(part)
        return torch.cat(parts)

    def rmv(y: Tensor) -> Tensor:
        parts = []
        for (name, shape), part in zip(parameters, y.split(rows), strict=True):
            if name in steps:
                difference = part.reshape(shape[0] - 1, *shape[1:]) / math.sqrt(steps[name])
                zero = torch.zeros_like(difference[:1])
                part = (torch.cat([zero, difference]) - torch.cat([difference, zero])).reshape(-1)
            parts.append(part)
        return torch.cat(parts)

    return LinearOperator((sum(sizes),), (sum(rows),), mv, rmv)


@dataclass(frozen=True)
class InputDifferences:
    """The identity, stacked on sqrt(roughness) times differences between neighbouring inputs in the first nn.Linear.

    >>> layer = nn.Linear(3, 1, bias=False)
    >>> InputDifferences(4.0)(layer, [("weight", (1, 3))]).mv(torch.tensor([1.0, 2.0, 4.0]))
    tensor([1., 2., 4., 2., 4.])
    """

    roughness: float

    def __call__(self, model: nn.Module, parameters: Sequence[tuple[str, tuple[int, ...]]]) -> LinearOperator:
        """Return the operator for the parameters of one network."""
        shapes = dict(parameters)
        layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        weight = f"{layers[0]}.weight".lstrip(".") if layers else ""
        if weight not in shapes:
            raise ValueError(
                f"InputDifferences needs weights of a first nn.Linear in theta; {type(model).__name__} has none there: "
                "leave theta_penalty's operator out to penalise theta itself"
            )
        rows, inputs = shapes[weight]
        sizes = [math.prod(shape) for shape in shapes.values()]
        begin = sum(sizes[: list(shapes).index(weight)])
        n, here = sum(sizes), slice(begin, begin + rows * inputs)
        scale = math.sqrt(self.roughness)

        def mv(theta: Tensor) -> Tensor:
            return torch.cat([theta, scale * theta[here].reshape(rows, inputs).diff(dim=1).reshape(-1)])

        def rmv(y: Tensor) -> Tensor:
            difference = scale * y[n:].reshape(rows, inputs - 1)
            zero = difference.new_zeros(rows, 1)
            own = torch.cat([zero, difference], 1) - torch.cat([difference, zero], 1)
            return torch.cat([y[:begin], y[here] + own.reshape(-1), y[here.stop : n]])

        return LinearOperator((n,), (n + rows * (inputs - 1),), mv, rmv)
