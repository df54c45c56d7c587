"""scikit-learn's regressor: `fit`, `predict`, `score`, and all that works with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import validate_data

from gnvpro.objectives.evidence import noise_by_target
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior, head_posterior, held_out_variance, noise_variance
from gnvpro.objectives.problem import Problem
from gnvpro.problem.misfit import Misfit
from gnvpro.sklearn.base import NetworkEstimator, Part, features_of, trained_point
from gnvpro.training.penalty_search import is_assembled, joint_posterior


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
            (standardised) errors. By default they follow the noise found in the data, see `gnvpro.sklearn.base`.
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

    def _learn_posterior(self, problem: Problem, n_samples: float, rest: Part | None) -> None:
        self._posterior: JointPosterior | HeadPosterior
        if is_assembled(problem):
            point, self._posterior, found = joint_posterior(problem, problem.theta(), problem.W())
            variance = noise_by_target(point, found, n_samples)
        else:
            point = trained_point(problem)
            self._posterior = head_posterior(point.Z, problem.misfit, point.outputs, problem.head_penalty, n_samples)
            variance = noise_variance(point, self._posterior, n_samples)
        if rest is not None:
            Z = features_of(problem.network.model, rest.inputs)
            misfit = Misfit.mean(problem.loss, rest.targets, rest.weights)
            posterior, model = self._posterior, problem.network.model
            spread = (
                posterior.spread(Z) if isinstance(posterior, HeadPosterior) else posterior.spread(model, rest.inputs)
            )
            variance = held_out_variance(misfit, Z @ point.W.T, spread)
        self.noise_std_ = variance.sqrt().numpy()

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The targets; with `return_std` also the standard deviation of a new observation there."""
        outputs, inputs = self._outputs(X)
        mean = outputs[:, 0].numpy() if self._flat else outputs.numpy()
        if not return_std:
            return mean
        std = np.sqrt(1 + self._spread(self._posterior, inputs).numpy()) * self.noise_std_
        return mean, std[:, 0] if self._flat else std
