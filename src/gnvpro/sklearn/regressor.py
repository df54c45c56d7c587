"""scikit-learn's regressor: `fit`, `predict`, `score`, and all that works with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from gnvpro.objectives.evidence import noise_by_target
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior, covering, head_posterior, held_out_variance, noise_variance
from gnvpro.objectives.problem import Problem
from gnvpro.problem.misfit import Misfit
from gnvpro.sklearn.base import NetworkEstimator, Part, Trained, features_of, spread_of, trained_point
from gnvpro.training.penalty_search import is_assembled, joint_posterior


class GNvproRegressor(MultiOutputMixin, RegressorMixin, NetworkEstimator):
    """Least-squares regression by a network whose head is eliminated; for one or more targets.

    Args:
        hidden: widths of the layers of an MLP. Left out: one layer, of 16 units up to 2000 samples, then growing with the
            root of their number up to 64.
        activation: of its layers: "tanh", "relu", "silu", "gelu", "elu", "softplus", "logistic", or a module class.
        features: instead of the MLP, a module that maps inputs to features (a copy is trained), or a function of the
            number of inputs that returns one.
        method, solver, work, memory: as in `gnvpro.train`; work caps the passes over the training set. Left out, the fit ends
            when its objective has settled, and solver is "dense" where exact steps are cheap, else "hybrid".
        theta_penalty, head_penalty: alpha in alpha/2 |theta|^2 and alpha/2 |W|^2, beside the mean of half the squared
            (standardised) errors. "auto", the default, finds them from the data (docs/penalties.md); for methods on batches,
            which cannot, it is 1 over the number of samples.
        max_iter: cap on the iterations.
        standardize: whether inputs and targets are brought to mean zero and variance one; undone at prediction.
        early_stopping: whether to hold out `validation_fraction` of the samples, stop when they have not been fitted
            better for `patience` iterations, and keep the best model.
        warm_start: whether another fit begins from the features of the last one.
        random_state: of the first weights and the held-out samples.
        verbose: whether to show the progress.

    Attributes: `module_` (the fitted nn.Module, from raw inputs to raw targets), `chosen_` (penalties, noise and evidence
    found), `history_`, `loss_curve_`, `n_iter_`, `status_`, `noise_std_` (of each target), `n_features_in_`,
    `feature_names_in_`, `n_outputs_`.

    >>> X = np.linspace(0, 1, 100)[:, None]
    >>> model = GNvproRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((100,), (100,))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproRegressor:
        """Fit to inputs (samples, features) and targets (samples,) or (samples, targets)."""
        X, y = self._checked(X, y=y, multi_output=True, y_numeric=True)
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

    def _learn_posterior(self, trained: Trained, part: Part, rest: Part | None, seed: int) -> None:
        self._posterior, variance, gamma = posterior_and_noise(trained.problem)
        most = MAX_FITTED_BY_HAND if trained.result.chosen is None else MAX_FITTED
        if rest is not None:
            variance = noise_on(rest, trained, self._posterior)
        elif gamma > most * trained.problem.n_independent and len(part.inputs) >= 2 * FOLDS:
            variance = self._cross_validated_noise(part, seed)
        else:
            variance = self._covering(variance, trained, part)
        self.noise_std_ = variance.sqrt().numpy()

    def _covering(self, variance: Tensor, trained: Trained, part: Part) -> Tensor:
        """The variance with which intervals cover, by residuals as they would be without each sample."""
        few = part if len(part.inputs) <= CALIBRATION_ROWS else part.take(np.arange(CALIBRATION_ROWS))
        with torch.no_grad():
            residuals = few.targets - trained.model(few.inputs)
            spread = spread_of(self._posterior, trained.model, few.inputs)
        return covering(variance, residuals, spread, few.weights[:, None])

    def _cross_validated_noise(self, part: Part, seed: int) -> Tensor:
        """From residuals of models that have not seen them: those that many parameters were fitted to say little."""
        folds = np.array_split(np.random.RandomState(seed).permutation(len(part.inputs)), FOLDS)
        found = []
        for fold in folds:
            seen = np.setdiff1d(np.arange(len(part.inputs)), fold)
            model = self._train("least_squares", part.take(seen), None, self.n_outputs_, seed)
            found.append(noise_on(part.take(fold), model, posterior_and_noise(model.problem)[0]))
        return torch.stack(found).mean(0)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The targets; with `return_std` also the standard deviation of a new observation there."""
        outputs, inputs = self._outputs(X)
        mean = outputs[:, 0].numpy() if self._flat else outputs.numpy()
        if not return_std:
            return mean
        std = np.sqrt(1 + self._spread(self._posterior, inputs).numpy()) * self.noise_std_
        return mean, std[:, 0] if self._flat else std


FOLDS = 3
CALIBRATION_ROWS = 5000  # that tell the shape of the residuals
MAX_FITTED = 0.5  # effective parameters per sample, up to which residuals tell the noise
MAX_FITTED_BY_HAND = 0.2  # the same where no evidence chose the penalties


def posterior_and_noise(problem: Problem) -> tuple[JointPosterior | HeadPosterior, Tensor, float]:
    """What is not known at the model's theta, the variance of each target's noise, and parameters fitted per target."""
    if is_assembled(problem):
        point, posterior, found = joint_posterior(problem, problem.theta(), problem.W())
        return posterior, noise_by_target(point, found, problem.n_independent), found.gamma / len(point.W)
    point = trained_point(problem)
    head = head_posterior(point.Z, problem.misfit, point.outputs, problem.head_penalty, problem.n_observed)
    return head, noise_variance(point, head, problem.n_observed), 0.0


def noise_on(rest: Part, trained: Trained, posterior: JointPosterior | HeadPosterior) -> Tensor:
    """The variance of each target's noise, from samples that the model was not trained on."""
    Z, problem = features_of(trained.model, rest.inputs), trained.problem
    spread = spread_of(posterior, trained.model, rest.inputs)
    return held_out_variance(Misfit.mean(problem.loss, rest.targets, rest.weights), Z @ problem.W().T, spread)
