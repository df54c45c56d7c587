"""Objective, residuals and Jacobian as functions of the vector of weights, for contenders that take functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from .problems import Problem


class Functions:
    """Functions of one problem; `passes` counts passes over the training set."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.passes = problem, 0
        self._named = [(name, p.shape) for name, p in problem.model.named_parameters()]
        self._below: Tensor | None = None
        self._sizes = [shape.numel() for _, shape in self._named]

    def outputs(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of the network."""
        return functional_call(self.problem.model, self.parts(weights), (inputs,))

    def parts(self, weights: Tensor) -> dict[str, Tensor]:
        """The parameters by name."""
        pieces = weights.split(self._sizes)
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self._named, pieces, strict=True)}

    def penalties(self, weights: Tensor) -> Tensor:
        """Residuals of the penalties."""
        return self.problem.spec.penalty**0.5 * torch.cat(self.problem.penalised(self.parts(weights)))

    def objective(self, weights: Tensor) -> Tensor:
        """Objective; counts the backward pass that follows."""
        self.passes += 2
        return self.problem.objective(self.outputs(weights, self.problem.train[0]), self.parts(weights))

    def residuals(self, weights: Tensor) -> Tensor:
        """Residuals whose half square is the least-squares objective."""
        self.passes += 1
        inputs, targets = self.problem.train
        misfit = (self.outputs(weights, inputs) - targets) / len(targets) ** 0.5
        return torch.cat([misfit.reshape(-1), self.penalties(weights)])

    def jacobian(self, weights: Tensor) -> Tensor:
        """Jacobian of the residuals, sample by sample: as many backward passes as targets."""
        inputs, targets = self.problem.train
        self.passes += targets.shape[1]
        rows = vmap(jacrev(lambda w, x: self.outputs(w, x[None])[0]), (None, 0))(weights, inputs)
        if self._below is None:  # the penalties are linear
            self._below = vmap(self.penalties)(torch.eye(len(weights), dtype=weights.dtype)).T
        return torch.cat([rows.reshape(-1, len(weights)) / len(targets) ** 0.5, self._below])
