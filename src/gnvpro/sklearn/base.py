"""What the regressor and the classifier share: from arrays to a trained module.

    standardise inputs (and targets)  ->  features: an MLP or a module of your own  ->  linear head, eliminated

What is fitted is the plain module `module_`: it takes inputs as they came and returns targets as they came, or logits;
the scaling of the inputs is its first layer, the scaling of the targets is folded into its head. Everything is computed in
double precision. Attributes that end in an underscore exist after `fit`, as everywhere in scikit-learn.

    penalties = c / n                    classification
    penalties = c noise / n              least squares: noise, the variance of the residuals with the parameters that the
                                         data determine counted (`posterior`), is estimated between rounds of training

A Gaussian prior of unit variance on the weights of a network of standardised inputs and targets would have c = 1. Only a
penalty that follows the noise serves both a surrogate of a smooth function and the diabetes data, which are half noise.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.head.eliminator import WarmStart, append_bias_column
from gnvpro.methods.choose import as_method
from gnvpro.methods.protocol import Method, Solver
from gnvpro.network.evaluation import evaluating
from gnvpro.networks import MLP
from gnvpro.objectives.posterior import HeadPosterior
from gnvpro.objectives.problem import Problem
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.training.history import History
from gnvpro.training.train import train

Array = NDArray[Any]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "logistic": nn.Sigmoid,
}
# Defaults of both penalties, divided by the number of samples; docs/estimators.md says what they were chosen on.
# Weights of a unit Gaussian prior would have 1 for classification and the variance of the noise for least squares.
PENALTY = {"least_squares": 10.0, "logistic": 3.0, "multinomial": 3.0}
FIRST_NOISE = 0.02  # share of the targets' variance; from a large one training may never leave a too smooth model
ROUNDS = (0.25, 0.25, 0.5)  # shares of the work, after which the variance of the noise is estimated again


class Standardize(nn.Module):
    """(x - mean) / scale, column by column."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Array, scale: Array) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """The columns with mean zero and variance one."""
        return (inputs - self.mean) / self.scale


@dataclass(frozen=True)
class Part:
    """Samples to train on, or to hold out."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Penalties:
    """Those of a round of training."""

    theta: float
    head: float


class NetworkEstimator(BaseEstimator, ABC):
    """What the regressor and the classifier share."""

    def __init__(
        self,
        hidden: int | Sequence[int] = (32,),
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str | Method = "gnvpro",
        solver: str | Solver | None = "krylov",
        work: float = 200.0,
        theta_penalty: float | None = None,
        head_penalty: float | None = None,
        max_iter: int | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: Any = None,
        verbose: bool = False,
        memory: float | None = None,
    ) -> None:
        self.hidden, self.activation, self.features = hidden, activation, features
        self.method, self.solver, self.work, self.max_iter = method, solver, work, max_iter
        self.theta_penalty, self.head_penalty = theta_penalty, head_penalty
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.patience = validation_fraction, patience
        self.random_state, self.verbose, self.memory = random_state, verbose, memory

    def _fit(self, X: Array, targets: Array, n_outputs: int, loss: str, weights: Array, labels: Array | None) -> None:
        """Train on inputs and targets in their final form."""
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        scaler = StandardScaler().fit(X, sample_weight=weights) if self.standardize else None
        inputs = torch.from_numpy(X if scaler is None else scaler.transform(X))
        goals, shares = torch.from_numpy(targets), torch.from_numpy(weights)
        rows, held_out = np.arange(len(X)), None
        if self.early_stopping:
            rows, held_out = train_test_split(
                rows, test_size=self.validation_fraction, random_state=seed, stratify=labels
            )
        features = self._make_features(X.shape[1], seed)
        head = nn.Linear(_n_features(features, inputs[:2]), n_outputs).double()
        model = nn.Sequential(OrderedDict(features=features, head=head))
        part = Part(inputs[rows], goals[rows], shares[rows])
        rest = None if held_out is None else Part(inputs[held_out], goals[held_out], shares[held_out])
        history = History()
        # a solver is of "gnvpro" and of "gauss-newton"; the default one is not meant for other methods
        takes_solver = not isinstance(self.method, str) or self.method in ("gnvpro", "gauss-newton")
        method = as_method(self.method, self.solver if takes_solver else None)
        method = replace(method, seed=seed, memory=method.memory if self.memory is None else self.memory)
        for share in ROUNDS if self._learns_noise else (1.0,):
            usual = max(1e-10, PENALTY[loss] * self._noise(part) / float(part.weights.sum()))
            penalties = Penalties(
                usual if self.theta_penalty is None else self.theta_penalty,
                usual if self.head_penalty is None else self.head_penalty,
            )
            result = train(
                model,
                part.inputs,
                part.targets,
                loss=loss,
                method=method,
                sample_weight=part.weights,
                theta_penalty=penalties.theta,
                head_penalty=penalties.head,
                work=share * check_number("work", self.work, 0.0),
                iterations=None if self.max_iter is None else max(0, self.max_iter - len(history)),
                validation=None if rest is None else (rest.inputs, rest.targets, rest.weights),
                keep="last" if rest is None else "best",
                patience=None if rest is None else self.patience,
                listeners=["progress"] if self.verbose else [],
            )
            history = concatenate_runs(history, result.history)
            problem = Problem(
                model,
                part.inputs,
                part.targets,
                loss=loss,
                theta_penalty=penalties.theta,
                head_penalty=penalties.head,
                sample_weight=part.weights,
                memory=method.memory,
            )
            self._learn_posterior(problem, float(part.weights.sum()), rest)
        self.history_, self.status_ = history, result.status
        self.loss_curve_ = history.column("loss")
        self.n_iter_ = len(history) - 1
        first = [] if scaler is None else [("scaling", Standardize(scaler.mean_, scaler.scale_))]
        self.module_ = nn.Sequential(OrderedDict([*first, ("features", features), ("head", head)])).eval()

    @property
    def _learns_noise(self) -> bool:
        """Whether a penalty follows from the variance of the noise."""
        return False

    def _noise(self, part: Part) -> float:
        """The variance of the noise as far as it is known."""
        return 1.0

    @abstractmethod
    def _learn_posterior(self, problem: Problem, n_samples: float, rest: Part | None) -> None:
        """Find out what is not known about the head of the trained model."""

    def _make_features(self, n_inputs: int, seed: int) -> nn.Module:
        """The feature extractor, in double precision, drawn from the seed."""
        if isinstance(self.features, nn.Module):
            return copy.deepcopy(self.features).double()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.features is not None:
                made = self.features(n_inputs) if callable(self.features) else None
                if not isinstance(made, nn.Module):
                    raise TypeError(
                        "features must be a torch.nn.Module, or a function of the number of inputs that returns one, "
                        f"got {self.features!r}"
                    )
                return made.double()
            hidden = [self.hidden] if isinstance(self.hidden, int | np.integer) else list(self.hidden)
            widths = [check_count("hidden", width, 1) for width in hidden]
            activation = self.activation
            if isinstance(activation, str):
                activation = ACTIVATIONS[check_choice("activation", activation, ACTIVATIONS)]
            return MLP(n_inputs, widths, activation, dtype=torch.float64)

    def _check_weights(self, X: Array, *others: Array, sample_weight: Any) -> list[Array]:
        """Everything without the samples of weight zero, and the weights."""
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight is zero for every sample: there is nothing to fit")
        return [X, *others, weights] if kept.all() else [a[kept] for a in (X, *others, weights)]

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False))

    def _outputs(self, X: Any, spread: HeadPosterior | None = None) -> tuple[Tensor, Tensor | None]:
        """What the module computes and, from a posterior of the head, how much is not known there."""
        with torch.no_grad():
            inputs = self._inputs(X)
            outputs = self.module_(inputs)
            return outputs, None if spread is None else spread.spread(features_of(self.module_, inputs))


def trained_point(problem: Problem) -> ReducedPoint:
    """The reduced objective where training ended."""
    return problem.reduced.start(problem.theta(), WarmStart(problem.W()))


def features_of(model: Any, inputs: Tensor) -> Tensor:
    """What the head, the last of a chain of modules, is given, and the column of ones."""
    with torch.no_grad():
        return append_bias_column(model[:-1](inputs), True)


def _n_features(features: nn.Module, inputs: Tensor) -> int:
    """How many features the module returns, by running it; inputs have one row per sample."""
    with evaluating(features), torch.no_grad():
        Z = features(inputs)
    if not isinstance(Z, Tensor) or Z.ndim != 2 or len(Z) != len(inputs):
        shape = tuple(Z.shape) if isinstance(Z, Tensor) else type(Z).__name__
        raise ValueError(f"features must return (samples, features) for {tuple(inputs.shape)} inputs, got {shape}")
    return Z.shape[1]


def concatenate_runs(history: History, more: History) -> History:
    """One history of two runs, the second of which began where the first ended."""
    if not history:
        return more
    last = history[-1]
    return History(
        [
            *history,
            *(
                replace(
                    record,
                    iteration=last.iteration + record.iteration,
                    work=last.work + record.work,
                    seconds=last.seconds + record.seconds,
                    inner_seconds=last.inner_seconds + record.inner_seconds,
                )
                for record in more[1:]
            ),
        ]
    )
