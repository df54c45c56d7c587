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

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("the estimators need scikit-learn: pip install 'gnvpro[sklearn]'") from error

from gnvpro.arguments import check_choice, check_count
from gnvpro.head import with_ones
from gnvpro.losses import Misfit, get_loss
from gnvpro.networks import MLP
from gnvpro.posterior import HeadPosterior, feature_dof, head_dof, head_posterior, noise_variance, shrunk
from gnvpro.training import reduced_point, train

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


class Standardize(nn.Module):
    """(x - mean) / scale, column by column."""

    def __init__(self, mean: Array, scale: Array) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """The columns with mean zero and variance one."""
        return (inputs - self.mean) / self.scale


class _Estimator(BaseEstimator):
    """What the regressor and the classifier share."""

    def _fit(self, X: Array, targets: Array, n_outputs: int, loss: str, weights: Array, labels: Array | None) -> None:
        """Train on inputs and targets in their final form; sets everything but what is known of the uncertainty."""
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
        result = train(
            model,
            inputs[rows],
            goals[rows],
            loss=loss,
            method=self.method,
            sample_weight=shares[rows],
            theta_penalty=self.theta_penalty,
            head_penalty=self.head_penalty,
            work=self.work,
            iterations=self.max_iter,
            solver=self.solver,
            seed=seed,
            head="head",
            validation=None if held_out is None else (inputs[held_out], goals[held_out], shares[held_out]),
            keep="last" if held_out is None else "best",
            patience=None if held_out is None else self.patience,
            progress=self.verbose,
        )
        self.history_, self.status_ = result.history, result.status
        self.loss_curve_ = result.history.column("loss")
        self.n_iter_ = len(result.history) - 1
        self._posterior_of(model, inputs[rows], goals[rows], shares[rows], loss)
        first = [] if scaler is None else [("scaling", Standardize(scaler.mean_, scaler.scale_))]
        self.module_ = nn.Sequential(OrderedDict([*first, ("features", features), ("head", head)])).eval()

    def _posterior_of(self, model: nn.Module, inputs: Tensor, goals: Tensor, shares: Tensor, loss: str) -> None:
        raise NotImplementedError

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
            Z = self._inputs(X)
            for layer in list(self.module_)[:-1]:
                Z = layer(Z)
            return self.module_.head(Z), None if spread is None else spread.spread(with_ones(Z, True))


class GNvproRegressor(MultiOutputMixin, RegressorMixin, _Estimator):
    """Least-squares regression by a network whose head is eliminated; for one or more targets.

    Args:
        hidden: widths of the layers of an MLP.
        activation: of its layers: "tanh", "relu", "silu", "gelu", "elu", "softplus", "logistic", or a module class.
        features: instead of the MLP, a module that maps inputs to features (a copy is trained), or a function of the
            number of inputs that returns one.
        method, solver, work: as in `gnvpro.train`; work is the budget in passes over the training set.
        theta_penalty, head_penalty: alpha in alpha/2 |theta|^2 and alpha/2 |W|^2, beside the mean of half the squared
            (standardised) errors.
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
        hidden: int | Sequence[int] = (16, 16),
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str = "gnvpro",
        solver: str = "auto",
        work: float = 200.0,
        theta_penalty: float = 1e-3,
        head_penalty: float = 1e-3,
        max_iter: int | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden, self.activation, self.features = hidden, activation, features
        self.method, self.solver, self.work, self.max_iter = method, solver, work, max_iter
        self.theta_penalty, self.head_penalty = theta_penalty, head_penalty
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.patience = validation_fraction, patience
        self.random_state, self.verbose = random_state, verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproRegressor:
        """Fit to inputs (samples, features) and targets (samples,) or (samples, targets)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y, weights = self._check_weights(X, np.asarray(y, dtype=np.float64), sample_weight=sample_weight)
        targets = y.reshape(len(y), -1)
        self.n_outputs_ = targets.shape[1]
        scaler = StandardScaler().fit(targets, sample_weight=weights) if self.standardize else None
        scaled = targets if scaler is None else scaler.transform(targets)
        self._fit(X, scaled, self.n_outputs_, "least_squares", weights, None)
        if scaler is not None:
            scale, head = torch.from_numpy(scaler.scale_), self.module_.head
            with torch.no_grad():
                head.weight.mul_(scale[:, None])
                head.bias.mul_(scale).add_(torch.from_numpy(scaler.mean_))
            self.noise_std_ = self.noise_std_ * scaler.scale_
        self._flat = y.ndim == 1
        return self

    def _posterior_of(self, model: nn.Module, inputs: Tensor, goals: Tensor, shares: Tensor, loss: str) -> None:
        n = float(shares.sum())
        misfit = Misfit.mean(get_loss(loss), goals, shares)
        point = reduced_point(model, inputs, misfit, self.theta_penalty, self.head_penalty)
        self._posterior = head_posterior(point.Z, misfit, point.outputs, self.head_penalty, n)
        dof = head_dof(point.Z, misfit, self._posterior, n) + feature_dof(point) / goals.shape[1]
        self.noise_std_ = noise_variance(misfit, point.outputs, dof, n).sqrt().numpy()

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The targets; with `return_std` also the standard deviation of a new observation there."""
        outputs, spread = self._outputs(X, self._posterior if return_std and hasattr(self, "_posterior") else None)
        mean = outputs[:, 0].numpy() if self._flat else outputs.numpy()
        if not return_std:
            return mean
        assert spread is not None
        std = np.sqrt(1 + spread.numpy()) * self.noise_std_
        return mean, std[:, 0] if self._flat else std


class GNvproClassifier(ClassifierMixin, _Estimator):
    """Logistic (two classes) or multinomial regression by a network whose head is eliminated.

    Arguments and attributes are those of `GNvproRegressor`, and

    Args:
        calibrated: whether probabilities take into account what is not known about the head: they move towards each
            other where there were few samples. The most likely class stays nearly always the same.

    Attributes: `classes_`, and no `noise_std_`; `module_` returns logits.
    """

    def __init__(
        self,
        hidden: int | Sequence[int] = (16, 16),
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str = "gnvpro",
        solver: str = "auto",
        work: float = 200.0,
        theta_penalty: float = 1e-3,
        head_penalty: float = 1e-3,
        max_iter: int | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        calibrated: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden, self.activation, self.features = hidden, activation, features
        self.method, self.solver, self.work, self.max_iter = method, solver, work, max_iter
        self.theta_penalty, self.head_penalty = theta_penalty, head_penalty
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.patience = validation_fraction, patience
        self.calibrated, self.random_state, self.verbose = calibrated, random_state, verbose

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

    def _posterior_of(self, model: nn.Module, inputs: Tensor, goals: Tensor, shares: Tensor, loss: str) -> None:
        self._posterior = None
        if self.calibrated:
            targets = get_loss(loss).prepare(goals, model.head.out_features)  # type: ignore[attr-defined, operator]
            misfit = Misfit.mean(get_loss(loss), targets, shares)
            point = reduced_point(model, inputs, misfit, self.theta_penalty, self.head_penalty)
            self._posterior = head_posterior(point.Z, misfit, point.outputs, self.head_penalty, float(shares.sum()))

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


def _n_features(features: nn.Module, inputs: Tensor) -> int:
    """How many features the module returns, by running it; inputs have one row a sample."""
    modes = {module: module.training for module in features.modules()}
    try:
        with torch.no_grad():
            Z = features.eval()(inputs)
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not isinstance(Z, Tensor) or Z.ndim != 2 or len(Z) != len(inputs):
        shape = tuple(Z.shape) if isinstance(Z, Tensor) else type(Z).__name__
        raise ValueError(f"features must return (samples, features) for {tuple(inputs.shape)} inputs, got {shape}")
    return Z.shape[1]
