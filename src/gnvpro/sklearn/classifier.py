"""The classifier for scikit-learn: `fit`, `predict`, `predict_proba`, `score`, pipelines, grid searches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from gnvpro.arguments import with_advice
from gnvpro.methods.protocol import Method, Solver
from gnvpro.objectives.posterior import head_posterior, probit_scaled
from gnvpro.policy import Policy
from gnvpro.sklearn.base import WRITE_INSTEAD, NetworkEstimator
from gnvpro.sklearn.blend import Blend, blend_logits, mean_of_logits
from gnvpro.sklearn.combine import Choice, Option, assembled, is_plain, mean_of, plain
from gnvpro.sklearn.equal_rows import merge_equal_rows
from gnvpro.sklearn.left_out import fit_linear_classes, left_out_logits
from gnvpro.sklearn.parts import Posterior
from gnvpro.sklearn.scaling import plain_scaling
from gnvpro.sklearn.trained import Array, Found, Trained, trained_point


class GNvproClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """Logistic (two classes) or multinomial regression by a network whose head is eliminated.

    Takes the arguments and has the attributes of `GNvproRegressor`, and these:

    Args:
        class_weight: a weight for each class, by label; "balanced" makes every class count the same.
        calibrated: whether to correct the probabilities by left-out rows, because errors on the training set are too small.
            Probabilities move towards logistic regression and the shares of the classes as far as that predicts left-out
            rows better. With `early_stopping`, `warm_start`, `features` or given penalties, probabilities take the
            posterior variance of the logits into account instead.

    Attributes: `classes_`, and no `noise_std_`; `module_` returns logits.

    With many samples, columns may be cut into pieces, so that the model can be steep along them (`gnvpro.sklearn.scaling`).

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> GNvproClassifier(random_state=0).fit(X, y).score(X, y) > 0.95
    True
    """

    @with_advice(WRITE_INSTEAD)
    def __init__(
        self,
        hidden: int | Sequence[int] | None = None,
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str | Method = "gnvpro",
        solver: str | Solver | None = None,
        work: float | None = None,
        theta_penalty: float | str = "auto",
        head_penalty: float | str = "auto",
        max_iter: int | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        class_weight: dict[Any, float] | str | None = None,
        calibrated: bool = True,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool | int = False,
        memory: float | None = None,
        policy: Policy | None = None,
        n_members: int | None = None,
    ) -> None:
        super().__init__(
            hidden,
            activation,
            features,
            method=method,
            solver=solver,
            work=work,
            theta_penalty=theta_penalty,
            head_penalty=head_penalty,
            max_iter=max_iter,
            standardize=standardize,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
            memory=memory,
            policy=policy,
            n_members=n_members,
        )
        self.class_weight, self.calibrated = class_weight, calibrated

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproClassifier:
        """Fit to inputs and labels.

        Args:
            X: (samples, features): numbers, or a DataFrame with columns of numbers, text, categories, bools and dates. Values
                may be missing (`gnvpro.sklearn.encoding`).
            y: (samples,), labels of any kind, of at least two classes.
            sample_weight: (samples,), not negative; a weight of two counts as a sample that occurs twice.

        Returns:
            The fitted estimator itself.

        Raises:
            ValueError: a column of X mixes numbers and text, y has one class only, or the weights are all zero.
        """
        X, y = self._checked(X, y=y)
        check_classification_targets(y)
        X, y, weights = self._check_weights(X, y, sample_weight=sample_weight)
        self.classes_, labels = np.unique(y, return_inverse=True)
        X, labels, weights = merge_equal_rows(X, labels, weights)
        if self.class_weight is not None:
            shares = np.bincount(labels, weights)
            by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[labels])
            if self.class_weight == "balanced":
                by_class = shares.sum() / (len(shares) * shares)
            weights = weights * by_class[labels]
        n = len(self.classes_)
        if n < 2:
            raise ValueError(f"y must have samples of at least two classes, got one class: {self.classes_[0]!r}")
        X = self._encode(X, shares_of_classes(labels, n), weights)
        loss = "logistic" if n == 2 else "multinomial"
        networks = [each for _, each in self._find_members(X, labels, loss, weights, labels, self._seed())]
        found = networks[0]
        self._keep(found, X.shape[1])
        self._posterior: Posterior | None = None
        if (self.calibrated or len(networks) > 1) and self._blends(found):
            self._blend(networks, X, weights)
            return self
        self.module_ = nn.Sequential(OrderedDict([*found.layers.items(), ("head", found.trained.model[-1])])).eval()
        if self.calibrated:
            self._posterior = posterior_of(found.trained)
        return self

    def _blend(self, found: list[Found], X: Array, weights: Array) -> None:
        """Weigh networks against a linear model and the shares of the classes, by logits of rows left out."""
        trained, shares, columns = found[0].trained, torch.tensor(weights), plain_scaling(X, weights)
        loss, targets = trained.problem.loss, trained.problem.misfit.targets
        prior = class_logits(shares @ targets / shares.sum())
        linear = fit_linear_classes(columns(torch.tensor(X)), loss, targets, shares)
        logits, coefficients = (None, None) if linear is None else (linear.left_out, linear.coefficients)
        options = []
        for each in found:
            left_out = left_out_by(each.trained)
            options.append(Option(each, range(len(prior)), posterior_of(each.trained), left_out, left_out))
        members = mean_of_logits([each.left_out for each in options], loss, targets, shares)
        option = mean_of(options, torch.from_numpy(members)[:, None].expand(-1, len(prior)))
        left_out = option.left_out
        network, beside = 1.0, 0.0
        if self.calibrated:
            network, beside = blend_logits(left_out, logits, prior, loss, targets, shares)
        choices = [Choice(option, k, Blend(network, beside, left_out[:, k])) for k in option.targets]
        if is_plain(choices):
            self.module_ = plain(choices)
        else:
            self.module_ = assembled(choices, coefficients, columns, X.shape[1])[0]
        with torch.no_grad():
            bias = self.module_.get_submodule("head").get_parameter("bias")
            bias.add_((1 - network - beside) * prior)
            if linear is not None:
                bias.add_(beside * linear.bias)

    def _cuts(self, n_samples: float) -> tuple[bool, ...]:
        return (self._has_own_layers() and n_samples >= 2 * self._rules.pieces_from,)

    def decision_function(self, X: Any) -> Array:
        """Return logits: (samples,) for two classes (positive for the second), else (samples, classes)."""
        outputs, inputs = self._outputs(X)
        if self._posterior is not None:
            outputs = probit_scaled(outputs, self._spread(self._posterior, inputs))
        return outputs[:, 0].numpy() if len(self.classes_) == 2 else outputs.numpy()

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class in the order of `classes_`, (samples, classes)."""
        logits = torch.from_numpy(self.decision_function(X))
        if logits.ndim == 1:
            logits = torch.stack([-logits / 2, logits / 2], dim=1)
        return torch.softmax(logits, 1).numpy()

    def predict(self, X: Any) -> Array:
        """Return the most likely label of each sample, (samples,)."""
        most_likely = self.predict_proba(X).argmax(1)
        labels: Array = self.classes_[most_likely]
        return labels


def shares_of_classes(labels: Array, count: int) -> Array:
    """Return one column of zeros and ones per class; for two classes only that of the second."""
    shares: Array = np.eye(count)[labels][:, int(count == 2) :]
    return shares


def class_logits(shares: Tensor) -> Tensor:
    """Return logits of the classes' shares; for a single share, the logit of the second of two classes."""
    return torch.log(shares / (1 - shares)) if len(shares) == 1 else shares.log()


def posterior_of(trained: Trained) -> Posterior:
    """Return the posterior of theta and head, or of the head alone if the joint matrix is too large."""
    if trained.joint is not None:
        return trained.joint[1]
    problem, point = trained.problem, trained_point(trained.problem)
    return head_posterior(point.Z, problem.misfit, point.outputs, problem.head_penalty, problem.n_observed)


def left_out_by(trained: Trained) -> Tensor:
    """Return left-out logits of the training rows, or their fitted logits if the joint matrix is too large."""
    part, problem = trained.samples.part, trained.problem
    with torch.no_grad():
        logits: Tensor = trained.model(part.inputs)
        if trained.joint is None:
            return logits
        covariance = trained.joint[1].covariance(trained.model, part.inputs)
        return left_out_logits(problem.loss, logits, problem.misfit.targets, part.weights, covariance)
