"""scikit-learn's classifier: `fit`, `predict`, `predict_proba`, `score`, and all that works with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import nn

from gnvpro.arguments import with_advice
from gnvpro.methods.protocol import Method, Solver
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior, head_posterior, probit_scaled
from gnvpro.policy import Policy
from gnvpro.sklearn.base import WRITE_INSTEAD, NetworkEstimator
from gnvpro.sklearn.rows import merge_equal_rows
from gnvpro.sklearn.trained import Array, Trained, trained_point


class GNvproClassifier(ClassifierMixin, NetworkEstimator):
    """Logistic (two classes) or multinomial regression by a network whose head is eliminated.

    The same arguments and attributes as `GNvproRegressor`, and

    Args:
        class_weight: a weight for each class, by label; "balanced" makes every class count the same.
        calibrated: whether probabilities take into account what is not known about the head: they move towards each
            other where there were few samples. The most likely class stays nearly always the same.

    Attributes: `classes_`, and no `noise_std_`; `module_` returns logits.

    With many samples it sees columns in pieces, where it can be steep (`gnvpro.sklearn.scaling`).

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
        calibrated: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool | int = False,
        memory: float | None = None,
        policy: Policy | None = None,
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
        )
        self.class_weight, self.calibrated = class_weight, calibrated

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproClassifier:
        """Fit to inputs (samples, features) and labels of any kind (samples,)."""
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
        found = self._find(X, labels, "logistic" if n == 2 else "multinomial", weights, labels, self._seed())
        self._keep(found, X.shape[1])
        self.module_ = nn.Sequential(
            OrderedDict([*found.scaling.items(), *found.trained.model.named_children()])
        ).eval()
        self._learn_posterior(found.trained)
        return self

    def _cuts(self, n_samples: float) -> tuple[bool, ...]:
        return (self._has_own_layers() and n_samples >= self._rules.classes_pieces_from,)

    def _learn_posterior(self, trained: Trained) -> None:
        self._posterior: JointPosterior | HeadPosterior | None = None
        if self.calibrated and trained.joint is not None:
            self._posterior = trained.joint[1]
        elif self.calibrated:
            problem, point = trained.problem, trained_point(trained.problem)
            self._posterior = head_posterior(
                point.Z, problem.misfit, point.outputs, problem.head_penalty, problem.n_observed
            )

    def decision_function(self, X: Any) -> Array:
        """Logits: one per sample for two classes (positive for the second), else one per class."""
        outputs, inputs = self._outputs(X)
        if self._posterior is not None:
            outputs = probit_scaled(outputs, self._spread(self._posterior, inputs))
        return outputs[:, 0].numpy() if len(self.classes_) == 2 else outputs.numpy()

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of `classes_`."""
        logits = torch.from_numpy(self.decision_function(X))
        if logits.ndim == 1:
            logits = torch.stack([-logits / 2, logits / 2], dim=1)
        return torch.softmax(logits, 1).numpy()

    def predict(self, X: Any) -> Array:
        """The most likely class."""
        return self.classes_[self.predict_proba(X).argmax(1)]
