"""scikit-learn's regressor and classifier: `fit`, `predict`, `score`, and all that works with them.

    standardise inputs (and targets)  ->  features: an MLP or a module of your own  ->  linear head, eliminated

What is fitted is the plain module `module_`: it takes inputs as they came and returns targets as they came, or logits;
the scaling of the inputs is its first layer, that of the targets is folded into its head. Everything is computed in
double precision.

>>> from sklearn.datasets import load_iris
>>> from gnvpro import GNvproClassifier
>>> X, y = load_iris(return_X_y=True)
>>> GNvproClassifier(random_state=0).fit(X, y).score(X, y) > 0.95
True

Legend: attributes that end in an underscore exist after `fit`, as everywhere in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import nn

from gnvpro.sklearn.base import FIRST_NOISE, Array, NetworkEstimator, Part, Penalties, features_of
from gnvpro.problem.losses import Loss, prepare_targets
from gnvpro.problem.misfit import Misfit
from gnvpro.objectives.posterior import head_posterior, held_out_variance, noise_variance, shrunk
from gnvpro.training.train import reduced_point


class GNvproRegressor(MultiOutputMixin, RegressorMixin, NetworkEstimator):
    """Least-squares regression by a network whose head is eliminated; for one or more targets.

    Args:
        hidden: widths of the layers of an MLP.
        activation: of its layers: "tanh", "relu", "silu", "gelu", "elu", "softplus", "logistic", or a module class.
        features: instead of the MLP, a module that maps inputs to features (a copy is trained), or a function of the
            number of inputs that returns one.
        method, solver, work, memory: as in `gnvpro.train`; work is the budget in passes over the training set. Steps on Krylov
            spaces generalise better from noisy data than exact ones; for a smooth function try solver="auto".
        theta_penalty, head_penalty: alpha in alpha/2 |theta|^2 and alpha/2 |W|^2, beside the mean of half the squared
            (standardised) errors. By default they follow the noise found in the data, see `gnvpro.estimator_base`.
        max_iter: cap on the iterations.
        standardize: whether inputs and targets are brought to mean zero and variance one; undone at prediction.
        early_stopping: whether to hold out `validation_fraction` of the samples, stop when they have not been fitted
            better for `patience` iterations, and keep the best model.
        random_state: of the first weights and the held-out samples.
        verbose: whether to show the progress.

    Attributes: `module_` (the fitted nn.Module, from raw inputs to raw targets), `history_`, `loss_curve_`, `n_iter_`,
    `status_`, `noise_std_` (of each target), `n_features_in_`, `feature_names_in_`, `n_outputs_`.

    >>> X = np.linspace(0, 1, 100)[:, None]
    >>> model = GNvproRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((100,), (100,))
    """

    def __init__(
        self,
        hidden: int | Sequence[int] = (32,),
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str = "gnvpro",
        solver: str = "krylov",
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproRegressor:
        """Fit to inputs (samples, features) and targets (samples,) or (samples, targets)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y, weights = self._check_weights(X, np.asarray(y, dtype=np.float64), sample_weight=sample_weight)
        targets = y.reshape(len(y), -1)
        self.n_outputs_ = targets.shape[1]
        scaler = StandardScaler().fit(targets, sample_weight=weights) if self.standardize else None
        scaled = targets if scaler is None else scaler.transform(targets)
        self.noise_std_: Any = None
        self._fit(X, scaled, self.n_outputs_, "least_squares", weights, None)
        if scaler is not None:
            scale, mean = torch.from_numpy(scaler.scale_), torch.from_numpy(scaler.mean_)
            head = self.module_.get_submodule("head")
            with torch.no_grad():
                head.get_parameter("weight").mul_(scale[:, None])
                head.get_parameter("bias").mul_(scale).add_(mean)
            self.noise_std_ = self.noise_std_ * scaler.scale_
        self._flat = y.ndim == 1
        return self

    @property
    def _learns_noise(self) -> bool:
        return self.theta_penalty is None or self.head_penalty is None

    def _noise(self, part: Part) -> float:
        if self.noise_std_ is None:  # nothing is explained yet
            mean = (part.weights @ part.targets) / part.weights.sum()
            return FIRST_NOISE * float((part.weights @ (part.targets - mean).square()).mean() / part.weights.sum())
        return float(np.mean(self.noise_std_**2))

    def _learn_posterior(
        self, model: nn.Sequential, part: Part, rest: Part | None, loss: Loss, penalties: Penalties
    ) -> None:
        n, misfit = float(part.weights.sum()), Misfit.mean(loss, part.targets, part.weights)
        point = reduced_point(model, part.inputs, misfit, penalties.theta, penalties.head, self.memory)
        self._posterior = head_posterior(point.Z, misfit, point.outputs, penalties.head, n)
        if rest is None:
            variance = noise_variance(point, self._posterior, n)
        else:
            Z = features_of(model, rest.inputs)
            misfit = Misfit.mean(loss, rest.targets, rest.weights)
            variance = held_out_variance(misfit, Z @ point.W.T, self._posterior.spread(Z))
        self.noise_std_ = variance.sqrt().numpy()

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The targets; with `return_std` also the standard deviation of a new observation there."""
        outputs, spread = self._outputs(X, self._posterior if return_std and hasattr(self, "_posterior") else None)
        mean = outputs[:, 0].numpy() if self._flat else outputs.numpy()
        if not return_std:
            return mean
        assert spread is not None
        std = np.sqrt(1 + spread.numpy()) * self.noise_std_
        return mean, std[:, 0] if self._flat else std


class GNvproClassifier(ClassifierMixin, NetworkEstimator):
    """Logistic (two classes) or multinomial regression by a network whose head is eliminated.

    Arguments and attributes are those of `GNvproRegressor`, and

    Args:
        calibrated: whether probabilities take into account what is not known about the head: they move towards each
            other where there were few samples. The most likely class stays nearly always the same.

    Attributes: `classes_`, and no `noise_std_`; `module_` returns logits.
    """

    def __init__(
        self,
        hidden: int | Sequence[int] = (32,),
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str = "gnvpro",
        solver: str = "krylov",
        work: float = 200.0,
        theta_penalty: float | None = None,
        head_penalty: float | None = None,
        max_iter: int | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        calibrated: bool = False,
        random_state: Any = None,
        verbose: bool = False,
        memory: float | None = None,
    ) -> None:
        self.hidden, self.activation, self.features = hidden, activation, features
        self.method, self.solver, self.work, self.max_iter = method, solver, work, max_iter
        self.theta_penalty, self.head_penalty = theta_penalty, head_penalty
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.patience = validation_fraction, patience
        self.calibrated, self.random_state, self.verbose, self.memory = calibrated, random_state, verbose, memory

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproClassifier:
        """Fit to inputs (samples, features) and labels of any kind (samples,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        X, y, weights = self._check_weights(X, y, sample_weight=sample_weight)
        self.classes_, labels = np.unique(y, return_inverse=True)
        n = len(self.classes_)
        if n < 2:
            raise ValueError(f"y must have samples of at least two classes, got one class: {self.classes_[0]!r}")
        self._fit(X, labels, 1 if n == 2 else n, "logistic" if n == 2 else "multinomial", weights, labels)
        return self

    def _learn_posterior(
        self, model: nn.Sequential, part: Part, rest: Part | None, loss: Loss, penalties: Penalties
    ) -> None:
        self._posterior = None
        if self.calibrated:
            targets = prepare_targets(loss, part.targets, 1 if len(self.classes_) == 2 else len(self.classes_))
            misfit = Misfit.mean(loss, targets, part.weights)
            point = reduced_point(model, part.inputs, misfit, penalties.theta, penalties.head, self.memory)
            self._posterior = head_posterior(point.Z, misfit, point.outputs, penalties.head, float(part.weights.sum()))

    def decision_function(self, X: Any) -> Array:
        """Logits: one a sample for two classes (positive for the second), else one a class."""
        outputs, spread = self._outputs(X, getattr(self, "_posterior", None))
        if spread is not None:
            outputs = shrunk(outputs, spread)
        return outputs[:, 0].numpy() if len(self.classes_) == 2 else outputs.numpy()

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of `classes_`."""
        logits = torch.from_numpy(self.decision_function(X))
        if logits.ndim == 1:
            logits = torch.stack([torch.zeros_like(logits), logits], dim=1)
        return torch.softmax(logits, 1).numpy()

    def predict(self, X: Any) -> Array:
        """The most likely class."""
        logits = self.decision_function(X)
        return self.classes_[(logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)]
