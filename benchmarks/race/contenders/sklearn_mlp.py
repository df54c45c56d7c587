"""scikit-learn's MLPRegressor and MLPClassifier with solver="lbfgs".

On the regression it trains the same network from the same first weights. It supports tanh layers only: on the other
problems it trains its own tanh network from its own first weights; the search includes its sizes and its own penalty
alpha. scipy's L-BFGS-B inside stops at a fixed relative decrease, so `fit` is called again (warm_start) until
nothing changes. It has no callback, so the referee evaluates every point that it evaluates.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from benchmarks.race.problems import Problem, Spec
from benchmarks.race.referee import Outputs, Referee
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import Tensor, nn


def grid(spec: Spec) -> list[dict[str, Any]]:
    """Penalties; also layers if it cannot build the problem's network."""
    alphas = (0.0, 1e-6) if spec.loss == "least_squares" else (1e-4, 1e-1)
    layers = {
        "regression": [[16, 16]],
        "cdr": [[16], [16, 16]],
        "peaks": [[8, 8], [16, 16]],
        "indian-pines": [[32], [32, 32]],
    }
    return [{"alpha": alpha, "hidden_layer_sizes": sizes} for alpha in alphas for sizes in layers[spec.name]]


def fit(problem: Problem, settings: dict[str, Any], referee: Referee) -> None:
    """Fit again and again until nothing changes."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    inputs, targets = (part.numpy() for part in problem.train)
    work = 0
    first = [m for m in problem.model if isinstance(m, nn.Linear)] if problem.spec.name == "regression" else []

    class Watched(MLPClassifier if problem.classification else MLPRegressor):  # type: ignore[misc]
        def _loss_grad_lbfgs(self, packed: np.ndarray, *args: Any) -> Any:
            nonlocal work
            answer = super()._loss_grad_lbfgs(packed, *args)
            work += 2
            referee.look(lambda: forward(self), work)
            return answer

        def _init_coef(self, fan_in: int, fan_out: int, dtype: Any) -> Any:
            if not first:
                return super()._init_coef(fan_in, fan_out, dtype)
            layer = first.pop(0)
            return layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()

    referee.start()
    estimator = Watched(
        solver="lbfgs",
        activation="tanh",
        max_iter=10**6,
        max_fun=10**9,
        tol=1e-15,
        warm_start=True,
        random_state=0,
        **settings,
    )
    before = np.inf
    while True:
        estimator.fit(inputs, targets)
        if not estimator.loss_ < before:
            break
        before = estimator.loss_
    referee.look(lambda: forward(estimator), work, last=True)


def forward(estimator: Any) -> Outputs:
    """Outputs of its network, before the softmax."""
    layers = [
        (torch.from_numpy(np.array(coef)), torch.from_numpy(np.array(bias)))
        for coef, bias in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]

    def outputs(inputs: Tensor) -> Tensor:
        for coef, bias in layers[:-1]:
            inputs = torch.tanh(inputs @ coef + bias)
        return inputs @ layers[-1][0] + layers[-1][1]

    return outputs
