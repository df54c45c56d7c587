"""Losses of one output row and its target row; their mean over a batch is in `misfit`.

    least squares   l(x, c) = 1/2 |x - c|^2                 c in R^K
    logistic        l(x, c) = log(1 + e^x) - c x            c in [0, 1], one output
    multinomial     l(x, c) = log(sum_k e^{x_k}) - c . x    c in the unit simplex of R^K

A loss is independent of networks and heads. It must be convex in x. To add one, subclass `Loss` and write `value`, `gradient`
and `hessian`; the other five members have defaults:

>>> class PseudoHuber(Loss):
...     def value(self, outputs, targets):
...         return (torch.sqrt(1 + (outputs - targets) ** 2) - 1).sum(1)
...     def gradient(self, outputs, targets):
...         residual = outputs - targets
...         return residual / torch.sqrt(1 + residual**2)
...     def hessian(self, outputs, targets):
...         curvature = (1 + (outputs - targets) ** 2) ** -1.5
...         return lambda d_outputs: curvature * d_outputs
>>> PseudoHuber().gradient(torch.tensor([[1.0]]), torch.tensor([[1.0]]))
tensor([[0.]])

Legend: L -> Loss, X -> outputs, C -> targets, grad L -> gradient, grad^2 L -> hessian, h(x) -> softmax / sigmoid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnvpro.arguments import check_choice, has_method
from gnvpro.linalg.columns import log_sum_exp, softmax


class Loss(ABC):
    """A convex loss of (rows, n_targets) outputs; every method works on all rows at once.

    Subclasses write `value`, `gradient` and `hessian`, and override the other members if they have more to offer.

    The methods take `outputs` and `targets` of shape (rows, n_targets), the targets as `prepare` returns them.

    >>> class PseudoHuber(Loss):
    ...     def value(self, outputs, targets):
    ...         return (torch.sqrt(1 + (outputs - targets) ** 2) - 1).sum(1)
    ...     def gradient(self, outputs, targets):
    ...         residual = outputs - targets
    ...         return residual / torch.sqrt(1 + residual**2)
    ...     def hessian(self, outputs, targets):
    ...         curvature = (1 + (outputs - targets) ** 2) ** -1.5
    ...         return lambda d_outputs: curvature * d_outputs
    >>> PseudoHuber().value(torch.tensor([[3.0]]), torch.tensor([[3.0]]))
    tensor([0.])
    """

    is_least_squares: bool = False  # True: the Hessian of a row is the identity, and formulas never form it

    @property
    def given(self) -> object:
        """The object that the user passed."""
        return self

    @property
    def name(self) -> str:
        """Name of the loss in messages."""
        return type(self.given).__name__

    @abstractmethod
    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row."""

    @abstractmethod
    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Derivative of each row's loss in that row's outputs."""

    @abstractmethod
    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map d_outputs -> Hessian of each row's loss times that row of d_outputs."""

    def prepare(self, targets: Tensor, n_targets: int) -> Tensor:
        """Return checked targets as a (rows, n_targets) float64 tensor; by default they must be real numbers."""
        return real_targets(targets, n_targets)

    def accuracy(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """One entry per row, True if the row is classified correctly; None if the loss does not classify."""
        return None

    def hessian_factors(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
        """Tensors d and v such that the Hessian of each row is diag(d) - v v'; None if it has no such form."""
        return None

    def hessian_root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Roots C (rows, n_targets, .) such that C C' is the Hessian of each row."""
        return matrix_root(self.hessian(outputs, targets), outputs)


REQUIRED = ("value", "gradient", "hessian")
OPTIONAL = ("is_least_squares", "prepare", "accuracy", "hessian_factors", "hessian_root")


class Adopted(Loss):
    """Adapts an object with the three required methods to `Loss`; members that it lacks have the defaults."""

    def __init__(self, own: Any) -> None:
        self.own = own
        for member in OPTIONAL:
            if hasattr(own, member):
                setattr(self, member, getattr(own, member))

    def __repr__(self) -> str:
        return repr(self.own)

    @property
    def given(self) -> object:
        """The object that the user passed."""
        return self.own

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row."""
        result: Tensor = self.own.value(outputs, targets)
        return result

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Derivative of each row's loss in that row's outputs."""
        result: Tensor = self.own.gradient(outputs, targets)
        return result

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map d_outputs -> Hessian of each row's loss times that row of d_outputs."""
        result: Callable[[Tensor], Tensor] = self.own.hessian(outputs, targets)
        return result


class HalfSquaredError(Loss):
    """1/2 |x - c|^2, for regression.

    >>> HalfSquaredError().value(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([12.5000])
    """

    is_least_squares = True

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row."""
        return 0.5 * (outputs - targets).square().sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the residual."""
        return outputs - targets

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the identity."""
        return lambda d_outputs: d_outputs


class Logistic(Loss):
    """log(1 + e^x) - c x for one output, for two classes.

    >>> Logistic().gradient(torch.tensor([[0.0]]), torch.tensor([[1.0]]))  # probability minus target
    tensor([[-0.5000]])
    """

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row."""
        # softplus would lose e^-x beyond x = 20, and x - c x would cancel for a certain class
        logsigmoid = torch.nn.functional.logsigmoid
        return -(targets * logsigmoid(outputs) + (1 - targets) * logsigmoid(-outputs)).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return probability minus target."""
        return torch.sigmoid(outputs) - targets

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Return p (1 - p), written so that it does not cancel when p is near one."""
        curvature = torch.sigmoid(outputs) * torch.sigmoid(-outputs)
        return lambda d_outputs: curvature * d_outputs

    def prepare(self, targets: Tensor, n_targets: int) -> Tensor:
        """Check labels 0 and 1, or probabilities between them."""
        if n_targets != 1:
            raise ValueError(
                f'loss="logistic" needs a head with one output, got {n_targets}; '
                'use loss="multinomial" for a head with one output per class'
            )
        targets = real_targets(targets, 1)
        if targets.min() < 0 or targets.max() > 1:
            raise ValueError(
                'targets for loss="logistic" must be labels 0 and 1 (or probabilities between them), '
                f"got values from {targets.min().item():g} to {targets.max().item():g}"
            )
        return targets

    def accuracy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each row whose more likely class is the target's."""
        return ((outputs > 0) == (targets > 0.5)).all(1)


class Multinomial(Loss):
    """log(sum e^x) - c . x, for classes that each have an output.

    >>> Multinomial().gradient(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # probabilities minus targets
    tensor([[-0.5000,  0.5000]])
    """

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per row."""
        return log_sum_exp(outputs) - (targets * outputs).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return probabilities minus targets."""
        return softmax(outputs) - targets

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map by diag(p) - p p', applied to each row."""
        p = softmax(outputs)

        def apply(d_outputs: Tensor) -> Tensor:
            weighted = p * d_outputs
            return weighted.sub_(p * weighted.sum(1, keepdim=True))

        return apply

    def hessian_factors(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return d and v such that the Hessian of each row is diag(d) - v v'."""
        p = softmax(outputs)
        return p, p

    def hessian_root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return C = diag(sqrt p) - p sqrt(p)', for which C C' = diag(p) - p p'."""
        p = softmax(outputs)
        root = p.sqrt()
        return torch.diag_embed(root) - p[:, :, None] * root[:, None]

    def prepare(self, targets: Tensor, n_targets: int) -> Tensor:
        """Check integer class labels, or rows of the unit simplex (one-hot or soft labels)."""
        if n_targets == 1:
            raise ValueError(
                'loss="multinomial" needs a head with one output per class, got a single output; '
                'use loss="logistic" for two classes with one output'
            )
        if targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1):
            return one_hot(targets.reshape(-1), n_targets)
        targets = real_targets(targets, n_targets)
        sums = targets.sum(1)
        if targets.min() < 0 or not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-6):
            raise ValueError(
                'targets for loss="multinomial" must be class labels, or rows of non-negative numbers that sum to one; '
                f"got entries down to {targets.min().item():g} and row sums from {sums.min().item():g} to {sums.max().item():g}"
            )
        return targets

    def accuracy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each row whose most likely class is the target's."""
        return outputs.argmax(1) == targets.argmax(1)


LOSSES: dict[str, Callable[[], Loss]] = {
    "least_squares": HalfSquaredError,
    "logistic": Logistic,
    "multinomial": Multinomial,
}


ALIASES = {
    "mse": "least_squares",
    "squared_error": "least_squares",
    "cross_entropy": "multinomial",
    "log_loss": "multinomial",  # logistic if the head has one output
}


def get_loss(loss: str | Loss, n_outputs: int | None = None) -> Loss:
    """Return the loss of that name for a head with `n_outputs` outputs, or the object itself if it is a loss."""
    if isinstance(loss, str):
        check_choice("loss", loss, (*LOSSES, *ALIASES))
        one_score = loss == "log_loss" and n_outputs == 1
        return Logistic() if one_score else LOSSES[ALIASES.get(loss, loss)]()
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type) or not all(has_method(loss, member) for member in REQUIRED):
        raise TypeError(
            f"loss must be one of {', '.join(map(repr, LOSSES))} or an object with the methods "
            f"value, gradient and hessian (see gnvpro.extend.Loss), got {loss!r}"
        )
    return Adopted(loss)


def prepare_targets(loss: Loss, targets: Tensor, n_targets: int) -> Tensor:
    """Return targets as (rows, n_targets) float64, checked by the loss."""
    rows = loss.prepare(targets, n_targets)
    _check_shapes(loss, rows[:2])
    return rows


def _check_shapes(loss: Loss, targets: Tensor) -> None:
    """Check on a few rows that the methods of a loss return what the protocol requires."""
    outputs = torch.zeros_like(targets)
    rows, shape = tuple(targets.shape[:1]), tuple(targets.shape)
    hessian = loss.hessian(outputs, targets)
    if not callable(hessian):
        raise ValueError(
            f"loss {loss.name}: hessian must return a function of d_outputs, got {type(hessian).__name__}; "
            "see gnvpro.extend.Loss"
        )
    results = [
        ("value", loss.value(outputs, targets), rows),
        ("gradient", loss.gradient(outputs, targets), shape),
        ("hessian(...)(d_outputs)", hessian(outputs), shape),
    ]
    for method, result, wanted in results:
        if not isinstance(result, Tensor) or tuple(result.shape) != wanted:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(
                f"loss {loss.name}: {method} must have shape {wanted} for outputs of shape {shape}, "
                f"got {got}; see gnvpro.extend.Loss"
            )


def real_targets(targets: Tensor, n_targets: int) -> Tensor:
    """Return real-valued targets with one column per output; a vector becomes one column."""
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.ndim != 2 or targets.shape[1] != n_targets:
        raise ValueError(
            f"targets must have shape (samples, {n_targets}) to match the head's {n_targets} outputs, "
            f"got (samples, {', '.join(map(str, targets.shape[1:]))})"
        )
    return targets.to(torch.float64)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Return class labels 0 ... n_classes-1 as rows of the identity."""
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise ValueError(
            "targets given as a vector must be class labels (whole numbers), got fractions; "
            f"soft labels need shape (samples, {n_classes})"
        )
    labels = labels.to(torch.int64)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"targets must be class labels from 0 to {n_classes - 1} (the head has {n_classes} outputs), "
            f"got labels from {low} to {high}"
        )
    return torch.nn.functional.one_hot(labels, n_classes).to(torch.float64)


def matrix_root(hessian: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    """Return roots C with C C' = H for every row's Hessian, from the map that applies it."""
    units = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    H = torch.stack([hessian(unit.expand_as(outputs).contiguous()) for unit in units], dim=2)
    diagonal = H.diagonal(dim1=1, dim2=2)
    if torch.equal(torch.diag_embed(diagonal), H):
        return torch.diag_embed(diagonal.clamp(min=0).sqrt())
    values, vectors = torch.linalg.eigh(H)
    return vectors * values.clamp(min=0).sqrt()[:, None]
